"""Parity with transformers' own models on golden files (tests/goldens), sub-module by sub-module.

Each stage starts from the golden input of that stage, so the first red test names the broken part. The second half
checks what the decoding loop relies on: calls in blocks, garbage beyond the length, ragged rows, greedy text.
"""

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from jetspec_jax.checkpoints.hf_config import target_config_from_hf
from jetspec_jax.checkpoints.loading import load_target
from jetspec_jax.checkpoints.resolve import resolve
from jetspec_jax.config import RopeConfig, TargetConfig, TransformerShape
from jetspec_jax.models import functional
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.target import Target
from jetspec_jax.ops.attention import attend, causal_mask
from jetspec_jax.ops.norm_rope import rope_angles

FOLDER = Path(__file__).parents[1] / "goldens"
CASES = ("llama", "llama_llama3_bias", "llama_linear", "llama_yarn", "qwen3", "qwen3_sliding")
CAPACITY = 64

# fp32 on both sides; only the order of sums differs. Values are of size 1 to 10, four layers deep. Measured: 1.3e-5 at
# most. A real mistake is far above: epsilon 1e-6 for 1e-5 moves the logits by 1e-3, a window of 9 for 8 by 1.
PARITY_ATOL = 1e-4
# The same numbers through products of other shapes (T = 1, 5, 10, 24; B = 1, 2): only the order of sums differs.
BLOCK_ATOL = 2e-5
POISON = 1e4


def load_from_folder(hf_config: str, weights: dict[str, np.ndarray], taps) -> Target:
    """The golden model through the real loader: a checkpoint folder as transformers would have saved it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(hf_config)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return load_target(resolve(folder), dtype=jnp.float32, taps=taps)


@cache
def load_case(name: str) -> SimpleNamespace:
    """One golden file with our model filled from it; `run` is compiled once per shape and shared by the tests."""
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = dict(file)
    hf_config = str(arrays["config"])
    weights = {k.removeprefix("weights/"): v for k, v in arrays.items() if k.startswith("weights/")}
    model = load_from_folder(hf_config, weights, range(json.loads(hf_config)["num_hidden_layers"]))
    module_def, leaves = functional.split(model)

    @jax.jit
    def run_leaves(leaves, tokens, cache):
        """Logits, taps and the cache with the rows written."""
        merged = module_def.merge(leaves)
        x, taps, cache = merged(tokens, cache)
        return merged.logits(x), taps, cache

    return SimpleNamespace(
        model=model,
        config=model.config,
        arrays=arrays,
        tokens=jnp.asarray(arrays["tokens"]),
        outputs={k.removeprefix("outputs/"): jnp.asarray(v) for k, v in arrays.items() if k.startswith("outputs/")},
        run=lambda tokens, cache: run_leaves(leaves, tokens, cache),
    )


@pytest.fixture(params=CASES)
def case(request) -> SimpleNamespace:
    return load_case(request.param)


def assert_parity(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=PARITY_ATOL)


def geometry_of(case, layer: int):
    """RoPE, angles and mask of one layer for the golden sequence without a cache (S = T)."""
    batch, length = case.tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None, :], (batch, length))
    rope = case.config.rope_of(layer)
    angles = rope_angles(positions, rope, case.config.shape.head_dim)
    return rope, angles, causal_mask(positions, length, case.config.window_of(layer))


def run_layer(case, index: int, x):
    """One decoder layer over the whole golden sequence."""
    layer, (rope, angles, mask) = case.model.layers[index], geometry_of(case, index)
    q, k, v = layer.attention.queries_keys_values(layer.attention_norm(x), angles, rope)
    return layer.finish(x, attend(q, head_major(k), head_major(v), mask))


def test_embedding(case):
    assert_parity(case.model.embed(case.tokens), case.outputs["embedding"])


def test_attention_norm(case):
    assert_parity(case.model.layers[0].attention_norm(case.outputs["embedding"]), case.outputs["attention_norm"])


def test_queries_and_keys_after_rope(case):
    rope, angles, _ = geometry_of(case, 0)
    attention = case.model.layers[0].attention
    q, k, v = attention.queries_keys_values(case.outputs["attention_norm"], angles, rope)
    assert_parity(q, case.outputs["q"])
    assert_parity(k, case.outputs["k"])
    # The path of context rows that never ask gives the same keys and values.
    only_k, only_v = attention.keys_values(case.outputs["attention_norm"], angles, rope)
    np.testing.assert_allclose(only_k, k, rtol=0, atol=BLOCK_ATOL)
    np.testing.assert_allclose(only_v, v, rtol=0, atol=BLOCK_ATOL)


def head_major(rows):
    """Projected rows [B, T, K, H] as the cache keeps them, [B, K, T, H]."""
    return jnp.swapaxes(rows, 1, 2)


def test_attention(case):
    rope, angles, mask = geometry_of(case, 0)
    attention = case.model.layers[0].attention
    q, k, v = attention.queries_keys_values(case.outputs["attention_norm"], angles, rope)
    assert_parity(attention.output(attend(q, head_major(k), head_major(v), mask)), case.outputs["attention"])


def test_mlp(case):
    layer = case.model.layers[0]
    x = case.outputs["embedding"] + case.outputs["attention"]
    assert_parity(layer.mlp(x, layer.mlp_norm) - x, case.outputs["mlp"])


def test_each_layer(case):
    x = case.outputs["embedding"]
    for index in range(case.config.num_layers):
        expected = case.outputs[f"layer{index}"]
        np.testing.assert_allclose(
            run_layer(case, index, x), expected, rtol=0, atol=PARITY_ATOL, err_msg=f"layer {index}"
        )
        x = expected


def test_final_norm_and_head(case):
    last = case.outputs[f"layer{case.config.num_layers - 1}"]
    assert_parity(case.model.norm(last), case.outputs["final_norm"])
    assert_parity(case.model.logits(last), case.outputs["logits"])


def test_logits_and_taps(case):
    logits, taps, _ = case.run(case.tokens, case.model.init_cache(2, CAPACITY))
    assert logits.dtype == jnp.float32
    # taps[:, :, l] = hidden_states[l + 1]: the stream after layer l, for the last layer before the final norm.
    expected = jnp.stack([case.outputs[f"layer{index}"] for index in range(case.config.num_layers)], axis=2)
    assert_parity(taps, expected)
    assert_parity(logits, case.outputs["logits"])


@pytest.mark.parametrize("name", [pytest.param(name, id=f"C27-{name}") for name in CASES if name.startswith("llama")])
def test_old_and_new_rope_keys_give_one_config(name):
    case = load_case(name)
    old = json.loads(str(case.arrays["config_old"]))
    assert "rope_parameters" not in old
    assert target_config_from_hf(old, taps=case.config.taps) == case.config


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_golden_layers_tell_full_from_sliding(kind):
    # Guards the goldens: run with the other mask, a layer must miss the golden output by far.
    case = load_case("qwen3_sliding")
    index = case.config.layer_types.index(kind)
    other = "sliding_attention" if kind == "full_attention" else "full_attention"
    swapped = replace(
        case.config,
        layer_types=tuple(other if i == index else t for i, t in enumerate(case.config.layer_types)),
        ropes=tuple((k, case.config.ropes[0][1]) for k in ("full_attention", "sliding_attention")),
    )
    x = case.outputs["embedding"] if index == 0 else case.outputs[f"layer{index - 1}"]
    wrong = run_layer(SimpleNamespace(**{**vars(case), "config": swapped}), index, x)
    error = np.abs(np.asarray(wrong - case.outputs[f"layer{index}"])).max(axis=(0, 2))  # [T]
    window = case.config.sliding_window
    assert error[:window].max() < PARITY_ATOL
    assert error[window:].min() > 100 * PARITY_ATOL


def decode_blocks(case, tokens, sizes, prepare=lambda cache: cache):
    """Logits of consecutive blocks of a sequence, each committed whole; `prepare` edits the cache before each."""
    kv_cache, pieces, start = case.model.init_cache(tokens.shape[0], CAPACITY), [], 0
    for size in sizes:
        logits, _, kv_cache = case.run(tokens[:, start : start + size], prepare(kv_cache))
        kv_cache = kv_cache.commit(jnp.full((tokens.shape[0],), size, jnp.int32))
        pieces.append(logits)
        start += size
    return jnp.concatenate(pieces, axis=1)


BLOCKS = (10, 5, *[1] * 9)


@pytest.mark.parametrize("name", ["llama", "llama_yarn", "qwen3_sliding"])
def test_blocks_equal_one_call(name):
    case = load_case(name)
    logits = decode_blocks(case, case.tokens, BLOCKS)
    whole, _, _ = case.run(case.tokens, case.model.init_cache(2, CAPACITY))
    np.testing.assert_allclose(logits, whole, rtol=0, atol=BLOCK_ATOL)
    assert_parity(logits, case.outputs["logits"])


def poison_unreadable(case, kv_cache: KVCache) -> KVCache:
    """Fills what no later query may read: slots beyond the length, and in sliding layers slots that left the window."""
    slots = np.arange(kv_cache.capacity)[None, :]
    lengths = np.asarray(kv_cache.length)[:, None]

    def poison(layer, buffer):
        unreadable = slots >= lengths
        if (window := case.config.window_of(layer)) is not None:
            unreadable |= slots <= lengths - window
        return jnp.where(unreadable[:, None, :, None], POISON, buffer)

    return replace(
        kv_cache,
        keys=tuple(poison(layer, buffer) for layer, buffer in enumerate(kv_cache.keys)),
        values=tuple(poison(layer, buffer) for layer, buffer in enumerate(kv_cache.values)),
    )


@pytest.mark.parametrize("name", [pytest.param(name, id=f"C15-poison-{name}") for name in ("llama", "qwen3_sliding")])
def test_unreadable_slots_do_not_matter(name):
    case = load_case(name)
    clean = decode_blocks(case, case.tokens, BLOCKS)
    poisoned = decode_blocks(case, case.tokens, BLOCKS, prepare=lambda kv_cache: poison_unreadable(case, kv_cache))
    # Same program, same visible numbers: masked slots have weight exactly 0, so not one bit may differ.
    np.testing.assert_array_equal(poisoned, clean)


@pytest.mark.parametrize("name", [pytest.param(name, id=f"C15-rollback-{name}") for name in ("llama", "qwen3_sliding")])
def test_rejected_rows_leave_no_trace(name):
    # A block of 5 of which each row keeps another number, then the true continuation of each row.
    case = load_case(name)
    _, _, kv_cache = case.run(case.tokens[:, :10], case.model.init_cache(2, CAPACITY))
    kv_cache = kv_cache.commit(jnp.array([10, 10], jnp.int32))
    keep = np.array([0, 3])
    wrong = (case.tokens[:, 10:15] + 1) % case.config.vocab_size
    drafted = jnp.where(np.arange(5)[None, :] < keep[:, None], case.tokens[:, 10:15], wrong)
    _, _, kv_cache = case.run(drafted, kv_cache)
    kv_cache = kv_cache.commit(jnp.asarray(keep, jnp.int32))
    np.testing.assert_array_equal(kv_cache.length, [10, 13])
    following = jnp.stack([case.tokens[0, 10:15], case.tokens[1, 13:18]])
    logits, _, _ = case.run(following, kv_cache)
    expected = jnp.stack([case.outputs["logits"][0, 10:15], case.outputs["logits"][1, 13:18]])
    assert_parity(logits, expected)


@pytest.mark.parametrize("name", ["llama_llama3_bias", "qwen3_sliding"])
def test_ragged_rows_equal_solo_runs(name):
    # Row 0 has a prompt of 10 tokens, row 1 one of 4, padded with garbage; then blocks of 5 from each row's own end.
    case = load_case(name)
    lengths = (10, 4)
    padded = jnp.where(np.arange(10)[None, :] < np.array(lengths)[:, None], case.tokens[:, :10], 96)
    prompt_logits, _, kv_cache = case.run(padded, case.model.init_cache(2, CAPACITY))
    kv_cache = kv_cache.commit(jnp.array(lengths, jnp.int32))
    ragged = []
    for step in range(2):
        block = jnp.stack([case.tokens[b, n + 5 * step : n + 5 * step + 5] for b, n in enumerate(lengths)])
        logits, _, kv_cache = case.run(block, kv_cache)
        kv_cache = kv_cache.commit(jnp.array([5, 5], jnp.int32))
        ragged.append(logits)
    for row, length in enumerate(lengths):
        total = length + 10
        solo, _, _ = case.run(case.tokens[row : row + 1, :total], case.model.init_cache(1, CAPACITY))
        together = jnp.concatenate([prompt_logits[row, :length], *(logits[row] for logits in ragged)])
        np.testing.assert_allclose(together, solo[0], rtol=0, atol=BLOCK_ATOL)


@pytest.mark.parametrize(
    ("key", "prompt_len"),
    [pytest.param("greedy_long", 24, id="long-prompt"), pytest.param("greedy_short", 5, id="C18-short-prompt")],
)
def test_greedy_text_is_that_of_generate(case, key, prompt_len):
    # The short prompt crosses the window (8) of the sliding layers while generating, the long one before.
    expected = case.arrays[key]
    assert case.arrays["margin"] > 10 * PARITY_ATOL  # no near-tie that rounding could flip
    logits, _, kv_cache = case.run(case.tokens[:, :prompt_len], case.model.init_cache(2, CAPACITY))
    kv_cache = kv_cache.commit(jnp.full((2,), prompt_len, jnp.int32))
    text = []
    for _ in range(expected.shape[1]):
        text.append(jnp.argmax(logits[:, -1:], axis=-1).astype(jnp.int32))
        logits, _, kv_cache = case.run(text[-1], kv_cache)
        kv_cache = kv_cache.commit(jnp.ones((2,), jnp.int32))
    np.testing.assert_array_equal(jnp.concatenate(text, axis=1), expected)


def toy_target(taps: tuple[int, ...]) -> Target:
    """Five layers on a zero stream; layer l adds 10^l (the bias of its down projection), everything else is zero."""
    shape = TransformerShape(
        hidden_size=4, intermediate_size=8, num_heads=2, num_kv_heads=1, head_dim=2, rms_norm_eps=1e-5, mlp_bias=True
    )
    config = TargetConfig(
        model_type="llama",
        shape=shape,
        num_layers=5,
        vocab_size=7,
        max_position_embeddings=16,
        layer_types=("full_attention",) * 5,
        ropes=(("full_attention", RopeConfig(theta=10_000.0)),),
        tie_word_embeddings=True,
        taps=taps,
    )
    model = Target(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    nnx.update(model, jax.tree.map(jnp.zeros_like, nnx.state(model)))
    for index, layer in enumerate(model.layers):
        layer.mlp.down.bias.set_value(jnp.full((4,), 10.0**index))
    return model


@pytest.mark.parametrize(
    ("taps", "expected"),
    [
        pytest.param((0, 2, 4), [1, 111, 11111], id="C29-first-middle-last"),
        pytest.param((4,), [11111], id="C29-last-only"),
        pytest.param((0, 1, 2, 3, 4), [1, 11, 111, 1111, 11111], id="C29-all"),
    ],
)
def test_taps_are_layer_outputs_before_the_final_norm(taps, expected):
    model = toy_target(taps)
    x, tapped, _ = jax.jit(lambda *args: model(*args))(jnp.zeros((1, 2), jnp.int32), model.init_cache(1, 4))
    np.testing.assert_array_equal(tapped, np.broadcast_to(np.array(expected)[None, None, :, None], tapped.shape))
    np.testing.assert_array_equal(x, np.full(x.shape, 11111))


@pytest.mark.parametrize(
    "taps",
    [
        pytest.param((5,), id="C29-past-the-last-layer"),
        pytest.param((-1,), id="C29-negative"),
        pytest.param((2, 0), id="unordered"),
        pytest.param((1, 1), id="twice"),
    ],
)
def test_taps_outside_the_layers_are_refused(taps):
    with pytest.raises(ValueError, match="taps="):
        toy_target(taps)
