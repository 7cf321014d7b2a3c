import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.checkpoints import safetensors
from jetspec_jax.checkpoints.hf_config import target_config_from_hf
from jetspec_jax.checkpoints.layouts import layer_rows, target_rows
from jetspec_jax.checkpoints.loading import load_module, load_target
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.checkpoints.resolve import resolve
from jetspec_jax.checkpoints.safetensors import open_safetensors
from jetspec_jax.models.layers import DecoderLayer

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def parameters(module):
    flat = nnx.to_flat_state(nnx.split(module)[1])
    return {".".join(map(str, path)): np.asarray(variable[...]) for path, variable in flat}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="llama"),
        pytest.param({"model_type": "qwen3", "tie_word_embeddings": False}, id="qwen3"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases"),
    ],
)
def test_every_parameter_holds_its_tensors(make_config, make_weights, make_folder, changes):
    config = make_config(**changes)
    weights = make_weights(config)
    target = load_target(resolve(make_folder(config, weights)), dtype=jnp.float32)
    loaded = parameters(target)
    used = [key for row in target_rows(target.config) for key in (source.key for source in row.sources)]
    assert sorted(used) == sorted(weights)
    for row in target_rows(target.config):
        expected = np.concatenate([weights[source.key] for source in row.sources])
        np.testing.assert_array_equal(loaded[row.parameter], expected, err_msg=row.parameter)


@pytest.mark.parametrize("stored", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, "float16"])
def test_casts_on_the_host(make_config, make_weights, make_folder, stored, dtype):
    weights = {key: value.astype(stored) for key, value in make_weights(make_config()).items()}
    target = load_target(resolve(make_folder(None, weights)), dtype=dtype)
    assert {value.dtype for value in parameters(target).values()} == {jnp.dtype(dtype)}
    expected = weights[EMBED].astype(jnp.dtype(dtype))
    np.testing.assert_array_equal(np.asarray(target.embed.weight[...]), expected)


def test_refuses_values_that_float16_cannot_hold(make_config, make_weights, make_folder):
    weights = make_weights(make_config())
    weights["model.norm.weight"][0] = 1e6
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight \(float32\) does not fit into float16"):
        load_target(resolve(make_folder(None, weights)), dtype=jnp.float16)


def test_puts_parameters_on_the_device(make_folder, cpu_devices):
    target = load_target(resolve(make_folder()), dtype=jnp.float32, device=cpu_devices[1])
    devices = {next(iter(leaf.devices())) for leaf in jax.tree.leaves(nnx.split(target)[1])}
    assert devices == {cpu_devices[1]}


def test_reports_progress_up_to_the_whole(make_config, make_weights, make_folder):
    weights = make_weights(make_config())
    seen = []
    load_target(resolve(make_folder(None, weights)), dtype=jnp.bfloat16, progress=lambda *step: seen.append(step))
    total = sum(value.nbytes for value in weights.values())
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize("repeated", [False, True], ids=["C25-tied-without-head", "C25-tied-with-equal-head"])
def test_a_tied_head_is_the_embedding_itself(make_config, make_weights, make_folder, repeated):
    weights = make_weights(make_config())
    if repeated:
        weights[HEAD] = weights[EMBED]
    target = load_target(resolve(make_folder(None, weights)), dtype=jnp.float32)
    assert target.lm_head is None
    assert not [name for name in parameters(target) if name.startswith("lm_head")]
    np.testing.assert_array_equal(np.asarray(target.embed.weight[...]), weights[EMBED])


def test_an_untied_head_is_its_own_array(make_config, make_weights, make_folder):
    config = make_config(tie_word_embeddings=False)
    weights = make_weights(config)
    target = load_target(resolve(make_folder(config, weights)), dtype=jnp.float32)
    np.testing.assert_array_equal(np.asarray(target.lm_head.weight[...]), weights[HEAD])


def damaged(weights):
    """One tensor removed, one renamed, one misshaped."""
    weights = dict(weights)
    del weights["model.norm.weight"]
    weights["model.layers.0.mlp.gate.weight"] = weights.pop("model.layers.0.mlp.gate_proj.weight")
    weights["model.layers.1.self_attn.k_proj.weight"] = np.zeros((8, 32), np.float32)
    return weights


def test_lists_all_misfits_before_reading_any_tensor(make_config, make_weights, make_folder, monkeypatch):
    """C25."""
    folder = make_folder(None, damaged(make_weights(make_config())))
    monkeypatch.setattr(safetensors.SafetensorsReader, "read", lambda self, key: pytest.fail(f"read {key}"))
    with pytest.raises(CheckpointError) as error:
        load_target(resolve(folder), dtype=jnp.float32)
    assert sorted(str(error.value).splitlines()[1:]) == [
        "  misshaped: model.layers.1.self_attn.k_proj.weight: expected [16, 32], found [8, 32]",
        "  missing: model.layers.0.mlp.gate_proj.weight [64, 32]",
        "  missing: model.norm.weight [32]",
        "  unexpected: model.layers.0.mlp.gate.weight [64, 32]",
    ]
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    "kept", [pytest.param(lambda n: n - 1, id="C26-last-byte"), pytest.param(lambda n: n // 2, id="C26-half")]
)
def test_refuses_truncated_weights(make_folder, kept):
    path = make_folder() / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: kept(len(data))])
    with pytest.raises(CheckpointError, match=f"expected {len(data)} bytes, found {kept(len(data))}"):
        load_target(resolve(path.parent), dtype=jnp.float32)


@pytest.mark.parametrize("taps", [pytest.param([2], id="C29-beyond"), pytest.param([-1], id="C29-negative")])
def test_refuses_taps_that_are_no_layers(make_folder, taps):
    with pytest.raises(ValueError, match="taps="):
        load_target(resolve(make_folder()), dtype=jnp.float32, taps=taps)


def test_keeps_the_taps_it_is_given(make_folder):
    assert load_target(resolve(make_folder()), dtype=jnp.float32, taps=[1]).config.taps == (1,)


def test_old_and_new_rope_keys_give_equal_logits(make_config, make_folder, logits_of):
    """C27."""
    folder = make_folder()

    def logits():
        return logits_of(load_target(resolve(folder), dtype=jnp.float32), np.arange(20)[None, :])

    old = logits()
    assert old.shape == (1, 20, 40)
    assert np.isfinite(old).all()
    new = make_config(rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    (folder / "config.json").write_text(json.dumps(new))
    np.testing.assert_array_equal(logits(), old)
    (folder / "config.json").write_text(json.dumps(make_config(rope_theta=100.0)))
    assert np.abs(logits() - old).max() > 1e-3


def test_fills_any_module_that_a_table_covers(make_config, make_weights, make_folder):
    shape = target_config_from_hf(make_config()).shape
    weights = {key: value for key, value in make_weights(make_config()).items() if "layers.1." in key}
    layers = nnx.eval_shape(lambda: nnx.Dict(only=DecoderLayer(shape, dtype=jnp.dtype(jnp.float32), rngs=nnx.Rngs(0))))
    loaded = load_module(
        layers, layer_rows(shape, "only", "model.layers.1"), open_safetensors(make_folder(None, weights))
    )
    key = "model.layers.1.mlp.down_proj.weight"
    np.testing.assert_array_equal(np.asarray(loaded.only.mlp.down.weight[...]), weights[key])


def test_refuses_a_table_that_does_not_cover_the_module(make_config, make_folder):
    shape = target_config_from_hf(make_config()).shape
    layer = nnx.eval_shape(lambda: nnx.Dict(a=DecoderLayer(shape, dtype=jnp.dtype(jnp.float32), rngs=nnx.Rngs(0))))
    rows = layer_rows(shape, "a", "model.layers.0")[1:]
    with pytest.raises(ValueError, match=r"a\.attention_norm\.scale: table None, module \(32,\)"):
        load_module(layer, rows, open_safetensors(make_folder()))
