import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.checkpoints import conversion, gguf_config
from jetspec_jax.checkpoints.conversion import converted, default_cache_dir, gguf_source
from jetspec_jax.checkpoints.loading import load_target
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.checkpoints.resolve import resolve
from jetspec_jax.checkpoints.safetensors import open_safetensors
from jetspec_jax.ops.norm_rope import inverse_frequencies

GOLDENS = Path(__file__).parents[1] / "goldens"
# As in tests/models/test_parity.py: fp32 on both sides, only the order of sums differs.
PARITY_ATOL = 1e-4


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def visible(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_writes_a_folder_that_resolves_like_any_other(make_config, make_weights, make_gguf, cache):
    weights = make_weights(make_config())
    path = make_gguf(None, weights)
    folder = converted(path, cache)
    assert resolve(folder).kind == "safetensors"
    assert gguf_source(folder) == path
    assert visible(cache) == [folder.name]
    reader = open_safetensors(folder)
    assert set(reader.keys()) == set(weights)
    for key, expected in weights.items():
        np.testing.assert_array_equal(reader.read(key), expected, err_msg=key)


@pytest.mark.parametrize("quantised", ["Q8_0", "BF16"])
def test_stores_exactly_what_dequantisation_gives(make_gguf, cache, quantised):
    path = make_gguf(quantised=quantised)
    reader, source = open_safetensors(converted(path, cache)), conversion.open_gguf(path)
    for key in source.keys():  # noqa: SIM118 (a reader, not a dict)
        assert reader.dtype(key) == source.dtype(key)
        np.testing.assert_array_equal(reader.read(key), source.read(key))
    assert reader.stored_type("model.embed_tokens.weight") == ("BF16" if quantised == "BF16" else "F32")


def test_converts_once(make_gguf, cache, monkeypatch):
    path = make_gguf()
    folder = converted(path, cache)
    monkeypatch.setattr(conversion, "open_gguf", lambda path: pytest.fail("converted again"))
    assert converted(path, cache) == folder


def test_a_finished_conversion_is_used_without_locking(make_gguf, cache, monkeypatch):
    path = make_gguf()
    folder = converted(path, cache)
    monkeypatch.setattr(conversion.fcntl, "flock", lambda *args: pytest.fail("took the lock"))
    assert converted(path, cache) == folder


def test_converts_again_when_the_file_changes(make_config, make_weights, make_gguf, cache):
    first = converted(make_gguf(), cache)
    weights = make_weights(make_config())
    weights["model.norm.weight"] += 1
    second = converted(make_gguf(None, weights), cache)
    assert first != second
    np.testing.assert_array_equal(open_safetensors(second).read("model.norm.weight"), weights["model.norm.weight"])


def test_a_moved_file_keeps_its_conversion(make_gguf, cache, tmp_path):
    path = make_gguf()
    folder = converted(path, cache)
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / path.name)
    assert converted(moved, cache) == folder
    assert gguf_source(folder) == moved


def test_an_interrupted_conversion_leaves_nothing(make_gguf, cache, monkeypatch):
    path = make_gguf()

    def interrupted(path, specs, arrays):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "write_safetensors", interrupted)
        with pytest.raises(KeyboardInterrupt):
            converted(path, cache)
    assert visible(cache) == []
    assert open_safetensors(converted(path, cache)).keys()


def test_the_remains_of_a_killed_conversion_are_replaced(make_gguf, cache):
    path = make_gguf()
    folder = converted(path, cache)
    folder.rename(folder.with_name(f".{folder.name}-partial"))
    assert converted(path, cache) == folder
    assert visible(cache) == [folder.name]


def test_refuses_a_truncated_file_before_converting(make_gguf, cache):
    """C26, also where a whole copy has been converted before."""
    path = make_gguf()
    size = path.stat().st_size
    converted(path, cache)
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(CheckpointError, match=rf"tiny\.gguf: expected {size} bytes, found {size // 2}"):
        converted(path, cache)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        pytest.param(
            {"blk.1.ffn_up.weight": None}, r"missing: model\.layers\.1\.mlp\.up_proj\.weight", id="C25-missing"
        ),
        pytest.param({"blk.0.extra.weight": np.zeros(3, np.float32)}, r"unexpected: blk\.0\.extra", id="C25-extra"),
        pytest.param({"output_norm.weight": np.zeros(8, np.float32)}, r"expected \[32\], found \[8\]", id="C25-shape"),
    ],
)
def test_refuses_weights_that_do_not_fit(make_gguf, cache, tensors, message):
    with pytest.raises(CheckpointError, match=message):
        converted(make_gguf(tensors=tensors), cache)
    assert visible(cache) == []


def test_other_folders_have_no_gguf_source(make_folder):
    assert gguf_source(make_folder()) is None


def test_the_default_cache_is_the_users():
    assert default_cache_dir().parts[-2:] == (".cache", "jetspec_jax")


def golden_gguf(name: str, make_gguf, monkeypatch):
    """A golden model of transformers, written as llama.cpp's converter would, and its arrays."""
    with np.load(GOLDENS / f"{name}.npz") as file:
        arrays = dict(file)
    config = json.loads(str(arrays["config"]))
    weights = {key.removeprefix("weights/"): value for key, value in arrays.items() if key.startswith("weights/")}
    rope, metadata, tensors = config["rope_parameters"], {}, {}
    if rope["rope_type"] in ("linear", "yarn"):
        metadata = {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
        metadata["rope.scaling.original_context_length"] = rope.get("original_max_position_embeddings")
    if rope["rope_type"] == "llama3":
        monkeypatch.setattr(gguf_config, "LLAMA3_SCALINGS", ((1.0, 4.0, rope["original_max_position_embeddings"]),))
        scaled = gguf_config.RopeConfig(**{("theta" if k == "rope_theta" else k): v for k, v in rope.items()})
        plain = gguf_config.RopeConfig(theta=scaled.theta)
        head_dim = config["head_dim"]
        tensors["rope_freqs.weight"] = inverse_frequencies(plain, head_dim) / inverse_frequencies(scaled, head_dim)
    return make_gguf(config, weights, metadata, tensors), arrays


@pytest.mark.parametrize("name", ["llama", "llama_linear", "llama_yarn", "llama_llama3_bias", "qwen3"])
def test_converted_models_compute_what_transformers_computes(name, make_gguf, cache, monkeypatch, logits_of):
    """Rows, names, config and RoPE scaling, all at once."""
    path, arrays = golden_gguf(name, make_gguf, monkeypatch)
    target = load_target(resolve(path), dtype=jnp.float32, cache_dir=cache)
    logits = logits_of(target, arrays["tokens"])
    np.testing.assert_allclose(logits, arrays["outputs/logits"], rtol=0, atol=PARITY_ATOL)
