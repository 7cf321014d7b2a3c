"""Public DFlash and JetSpec drafts as drafter folders; whatever is missing, unknown or contradictory is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jetspec_jax.checkpoints.drafter_files import load_drafter, read_parts
from jetspec_jax.checkpoints.hf_config import target_config_from_hf
from jetspec_jax.checkpoints.public_drafts import draft_config_from_public
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.cli import main
from jetspec_jax.config import RopeConfig, TransformerShape

# For the tiny Llama of conftest.py with four layers (D=32, V=40); the draft has heads of its own.
NUM_LAYERS = 4
DFLASH = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "attention_bias": False,
    "block_size": 6,
    "dflash_config": {"mask_token_id": 39, "target_layer_ids": [0, 2]},
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 48,
    "layer_types": ["full_attention", "full_attention"],
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "num_target_layers": NUM_LAYERS,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "vocab_size": 40,
}
SHAPES = {"fc.weight": (32, 64), "hidden_norm.weight": (32,), "norm.weight": (32,)}
for _layer in ("layers.0", "layers.1"):
    SHAPES |= {f"{_layer}.{name}_layernorm.weight": (32,) for name in ("input", "post_attention")}
    SHAPES |= {f"{_layer}.self_attn.{name}_norm.weight": (16,) for name in "qk"}
    SHAPES |= {f"{_layer}.self_attn.{name}_proj.weight": (size, 32) for name, size in (("q", 64), ("k", 16), ("v", 16))}
    SHAPES |= {f"{_layer}.self_attn.o_proj.weight": (32, 64), f"{_layer}.mlp.down_proj.weight": (32, 48)}
    SHAPES |= {f"{_layer}.mlp.{name}_proj.weight": (48, 32) for name in ("gate", "up")}


def changed(inner: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The DFlash config with settings replaced, `inner` in its `dflash_config`; None removes."""
    config = DFLASH | changes
    config["dflash_config"] = DFLASH["dflash_config"] | (inner or {})
    config["dflash_config"] = {key: value for key, value in config["dflash_config"].items() if value is not None}
    return {key: value for key, value in config.items() if value is not None}


@pytest.fixture
def target_folder(make_config, make_weights, make_folder) -> Path:
    config = make_config(num_hidden_layers=NUM_LAYERS)
    return make_folder(config, make_weights(config))


@pytest.fixture
def make_draft(tmp_path) -> Callable[..., Path]:
    """`make_draft(config, **tensors)`: a public draft with some tensors replaced; None removes one."""

    def make(config: dict[str, Any] | None = None, **tensors: np.ndarray | None) -> Path:
        rng = np.random.default_rng(0)
        weights = {key: rng.normal(size=shape).astype(np.float32) for key, shape in SHAPES.items()} | tensors
        folder = tmp_path / "public"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(changed() if config is None else config))
        save_file({key: value for key, value in weights.items() if value is not None}, folder / "model.safetensors")
        return folder

    return make


@pytest.fixture
def convert(target_folder, tmp_path, capsys) -> Callable[..., tuple[int, str]]:
    """Exit status and what was printed."""

    def run(source: Path, *options: str) -> tuple[int, str]:
        status = main(["convert", str(source), str(tmp_path / "out"), "--target", str(target_folder), *options])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


@pytest.fixture
def target(make_config):
    return target_config_from_hf(make_config(num_hidden_layers=NUM_LAYERS), taps=(0, 2))


@pytest.mark.parametrize(
    ("inner", "outer", "causal"),
    [
        pytest.param({}, {}, False, id="dflash"),
        pytest.param({"causal_head": True}, {}, True, id="jetspec"),
        pytest.param({"causal_head": False}, {}, False, id="bidirectional-head"),
        pytest.param({}, {"is_causal": True}, True, id="dflash-that-says-causal"),
        pytest.param({"block_size": 6}, {"block_size": None}, False, id="block-size-inside"),
        pytest.param({"output_multiplier": 1.0, "draft_shift": False}, {}, False, id="neutral-settings"),
    ],
)
def test_reads_the_config(target, inner, outer, causal):
    config = draft_config_from_public(changed(inner, **outer), target)
    assert config.shape == TransformerShape(
        hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=1, head_dim=16, rms_norm_eps=1e-6, qk_norm=True
    )
    assert (config.num_layers, config.num_taps, config.rope) == (2, 2, RopeConfig(theta=1e6))
    assert (config.block_rows, config.causal, config.shift) == (6, causal, False)
    assert (config.inputs, config.mask_token_id) == ("mask", 39)


@pytest.mark.parametrize(
    ("inner", "outer", "message"),
    [
        pytest.param({"mask_token_id": None}, {}, "no 'mask_token_id'", id="no-mask"),
        pytest.param({"target_layer_ids": None}, {}, "no 'target_layer_ids'", id="no-layers"),
        pytest.param({"target_layer_ids": 2}, {}, "must be a list of layer numbers", id="layers-are-a-number"),
        pytest.param({}, {"block_size": None}, "no 'block_size'", id="no-block-size"),
        pytest.param({"block_size": 8}, {}, "states block_size twice: 6 and, in dflash_config, 8", id="two-sizes"),
        pytest.param({"causal_head": True}, {"is_causal": False}, "contradicts itself", id="causal-or-not"),
        pytest.param({}, {"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel", id="dflash2"),
        pytest.param({"selector_rank": 256}, {}, "dflash_config.selector_rank is not supported", id="unknown"),
        pytest.param({"draft_shift": True}, {}, "draft_shift=True is not supported", id="shifted"),
        pytest.param({"output_multiplier": 0.2}, {}, "output_multiplier=0.2 is not supported", id="scaled-logits"),
        pytest.param({}, {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}, "sliding", id="sliding"),
        pytest.param({}, {"rope_theta": None}, "no 'rope_theta'", id="no-rope"),
        pytest.param({}, {"model_type": "llama"}, "model_type='llama'", id="no-qwen3"),
        pytest.param({"target_layer_ids": [0, 1]}, {}, r"layers \(0, 1\), the target gives \(0, 2\)", id="C29-taps"),
        pytest.param({"mask_token_id": 40}, {}, "mask_token_id=40, the target has 40 ids", id="mask-beyond"),
        pytest.param({}, {"vocab_size": 48}, "vocab_size=48, the target has 40", id="vocabulary"),
        pytest.param({}, {"hidden_size": 64}, "width 64, the target 32", id="width"),
        pytest.param({"target_hidden_size": 64}, {}, "target_hidden_size=64, the target has 32", id="projected-width"),
        pytest.param({}, {"num_target_layers": 36}, "num_target_layers=36, the target has 4", id="depth"),
    ],
)
def test_refuses_configs(target, inner, outer, message):
    with pytest.raises(ValueError, match=message):
        draft_config_from_public(changed(inner, **outer), target)


def test_refuses_the_last_layer(make_config):
    """Public code reads its state after the final norm."""
    target = target_config_from_hf(make_config(num_hidden_layers=NUM_LAYERS), taps=(0, 3))
    with pytest.raises(ValueError, match="reads the last layer, 3"):
        draft_config_from_public(changed({"target_layer_ids": [0, 3]}), target)


def test_converts_and_loads(convert, make_draft, tmp_path, target, weights_of):
    source = make_draft(changed({"causal_head": True}))
    status, printed = convert(source, "--storage", "float32")
    assert status == 0, printed
    assert "2 causal (JetSpec) layers, blocks of 6, taps (0, 2)" in printed
    drafter = load_drafter(tmp_path / "out", target, dtype=jnp.float32)
    assert (drafter.name, drafter.num_drafts, drafter.predictor) == ("parallel", 5, None)
    public, loaded = load_file(source / "model.safetensors"), weights_of(drafter)
    assert sum(value.size for value in loaded.values()) == sum(value.size for value in public.values())
    at = "layers.1.self_attn"
    joined = np.concatenate([public[f"{at}.{name}_proj.weight"] for name in "qkv"])
    np.testing.assert_array_equal(loaded["draft.layers.1.attention.qkv.weight"], joined)
    np.testing.assert_array_equal(loaded["draft.fc.weight"], public["fc.weight"])
    part, _ = read_parts(tmp_path / "out")
    assert (part.target.name, part.training) == ("model", {"converted_from": "public"})


def test_frozen_copies_are_left_out(convert, make_draft, tmp_path):
    copies = {"embed_tokens.weight": np.zeros((40, 32), np.float32), "lm_head.weight": np.ones((40, 32), np.float32)}
    status, printed = convert(make_draft(**copies))
    assert status == 0, printed
    assert load_file(tmp_path / "out/draft/model.safetensors").keys() == SHAPES.keys()


@pytest.mark.parametrize(
    ("tensors", "messages"),
    [
        pytest.param({"norm.weight": None, "fc.weight": None}, ["missing: norm.weight [32]", "fc.weight"], id="C25"),
        pytest.param({"conv.weight": np.zeros(3, np.float32)}, ["unexpected: conv.weight [3]"], id="unexpected"),
        pytest.param({"fc.weight": np.zeros((32, 32), np.float32)}, ["expected [32, 64], found [32, 32]"], id="shape"),
        pytest.param(
            {"lm_head.weight": np.zeros((41, 32), np.float32)},
            ["lm_head.weight [41, 32]: expected [40, 32]"],
            id="copy",
        ),
        pytest.param({"norm.weight": np.full(32, np.nan, np.float32)}, ["norm.scale holds values"], id="nan"),
    ],
)
def test_refuses_weights(convert, make_draft, tmp_path, tensors, messages):
    status, printed = convert(make_draft(**tensors))
    assert status == 2
    assert all(message in printed for message in messages)
    assert not (tmp_path / "out").exists()


def test_refuses_layers_that_the_target_has_not(convert, make_draft):
    """C29."""
    status, printed = convert(make_draft(changed({"target_layer_ids": [0, 9]})))
    assert status == 2
    assert "taps=(0, 9) must be increasing layer indices in 0..3" in printed


def test_refuses_a_truncated_file(convert, make_draft):
    """C26."""
    source = make_draft()
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    status, printed = convert(source)
    assert status == 2
    assert "expected" in printed


def test_a_public_draft_is_not_taken_for_a_drafter_folder(make_draft, target):
    with pytest.raises(ValueError, match="must go through `jetspec convert` first") as error:
        load_drafter(make_draft(), target, dtype=jnp.float32)
    assert not isinstance(error.value, CheckpointError)
