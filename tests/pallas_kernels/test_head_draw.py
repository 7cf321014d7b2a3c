from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.decoding.filters import Prefix
from jetspec_jax.decoding.row_params import row_params, sampling_spec
from jetspec_jax.decoding.sampling import draw
from jetspec_jax.sampling_params import SamplingParams
from pallas_kernels.fragment_order import fragment_order
from pallas_kernels.head_draw import (
    HeadDrawConfig,
    head_draw,
    noise,
    reference,
)
from pallas_kernels.testing import interpreted

# Logits of a bf16 product differ by the order in which fp32 sums are taken: 128 terms of size 1 here.
SUMS = 2e-5
REFERENCE = jax.jit(reference.head_draw, static_argnames="noise_in_logsumexp")
SMALL = HeadDrawConfig(tile_v=128, tile_k=64, stages=2)


def rows_and_head(num_rows, width, vocab_size, seed=0):
    draws = np.random.default_rng(seed)
    hidden = draws.standard_normal((num_rows, width)).astype(jnp.bfloat16)
    return jnp.array(hidden), jnp.array((draws.standard_normal((vocab_size, width)) / 8).astype(jnp.bfloat16))


def keys_of(num_rows):
    return jnp.array(np.random.default_rng(7).integers(0, 2**32, (num_rows, 2), np.uint32))


def run_interpreted(hidden, head, **options):
    static = {name: options.pop(name) for name in ("config", "noise_in_logsumexp") if name in options}
    with interpreted():
        return jax.tree.map(np.asarray, jax.jit(partial(head_draw, **static))(hidden, head, **options))


# The noise.


@pytest.mark.parametrize("seed", [0, 2**31 + 5])
def test_noise_is_that_of_jax_bit_for_bit(seed):
    key = jax.random.fold_in(jax.random.key(seed), 1234)
    words = jax.random.key_data(key)
    index = jnp.arange(49152, dtype=jnp.uint32)
    ours = noise.gumbel(jnp.full_like(index, words[0]), jnp.full_like(index, words[1]), index)
    np.testing.assert_array_equal(ours, jax.random.gumbel(key, (49152,), jnp.float32))


def test_bits_of_an_entry_do_not_depend_on_the_size_of_the_vocabulary():
    words = jax.random.key_data(jax.random.key(3))
    index = jnp.arange(100, 108, dtype=jnp.uint32)
    ours = noise.random_bits(jnp.full_like(index, words[0]), jnp.full_like(index, words[1]), index)
    np.testing.assert_array_equal(ours, jax.random.bits(jax.random.key(3), (512,))[100:108])


@pytest.mark.parametrize(
    ("option", "value"), [("jax_threefry_partitionable", False), ("jax_high_dynamic_range_gumbel", True)]
)
def test_refuses_other_noise_than_its_own(option, value):
    before = getattr(jax.config, option)
    jax.config.update(option, value)
    try:
        with pytest.raises(NotImplementedError, match="noise"):
            noise.check_jax_noise()
    finally:
        jax.config.update(option, before)


# The reference, against the decoder's own draw.

TEMPERATURES = [0.0, 0.9, 1e-3]


@pytest.fixture(scope="module")
def decoded():
    """Rows [3, 4] of requests, the key data of their noise, and what `decoding.sampling` draws for them."""
    hidden, head = rows_and_head(12, 64, 256, seed=4)
    hidden = hidden.at[7].set(jnp.nan).reshape(3, 4, 64)
    requests = [SamplingParams(temperature=t, seed=seed) for seed, t in enumerate(TEMPERATURES)]
    params = row_params(requests, eos_token_ids=(), vocab_size=256, device=jax.devices()[0])
    positions = jnp.array([[5, 6, 7, 8], [11, 12, 13, 14], [0, 1, 2, 3]], jnp.int32)

    @jax.jit
    def run(hidden, head):
        logits = jnp.einsum("btd,vd->btv", hidden, head, preferred_element_type=jnp.float32)
        prefix = Prefix(jnp.zeros((3, 32), jnp.int32), positions, positions[:, 0])
        keys = jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(None, 0)))(params.key, positions)
        return jax.random.key_data(keys), draw(logits, prefix, params, sampling_spec(requests))

    return hidden, head, *run(hidden, head)


def test_reference_draws_what_the_decoder_draws(decoded):
    hidden, head, keys, drawn = decoded
    temperature = jnp.repeat(jnp.array(TEMPERATURES), 4)
    ours = REFERENCE(hidden.reshape(12, 64), head, noise_keys=keys.reshape(12, 2), temperature=temperature)
    np.testing.assert_array_equal(ours.tokens, drawn.tokens.reshape(-1))
    np.testing.assert_array_equal(jnp.isfinite(ours.score), drawn.finite.reshape(-1))


def quantised_rows(num_rows=9, width=64, vocab_size=192):
    """Rows, an int8 head in natural order, its scale, and their logits."""
    draws = np.random.default_rng(2)
    hidden, _ = rows_and_head(num_rows, width, vocab_size)
    head = draws.integers(-127, 128, (vocab_size, width), np.int8)
    scale = draws.uniform(0.01, 0.02, vocab_size).astype(np.float32)
    return hidden, head, scale, np.asarray(hidden, np.float32) @ head.astype(np.float32).T * scale


def test_reference_reads_an_int8_head_in_fragment_order():
    hidden, head, scale, logits = quantised_rows()
    drawn = REFERENCE(hidden, fragment_order(jnp.array(head)), scale=scale)
    np.testing.assert_array_equal(drawn.tokens, logits.argmax(axis=1))
    np.testing.assert_allclose(drawn.score, logits.max(axis=1), rtol=SUMS)


# The kernel, interpreted.


@pytest.mark.usefixtures("registers_for_wgmma")
@pytest.mark.parametrize("tile_v", [64, 128])
def test_int8_head_in_fragment_order(tile_v):
    hidden, head, scale, logits = quantised_rows()
    config = HeadDrawConfig(tile_v=tile_v, tile_k=32, stages=2)
    ours = run_interpreted(hidden, fragment_order(jnp.array(head)), scale=scale, config=config)
    np.testing.assert_array_equal(ours.tokens, logits.argmax(axis=1))
    np.testing.assert_allclose(ours.score, logits.max(axis=1), rtol=SUMS)


@pytest.mark.parametrize("tile_k", [32, 64])
def test_fp8_head_and_rows(tile_k):
    hidden, head = (array.astype(jnp.float8_e4m3fn) for array in rows_and_head(9, 64, 192))
    scale = jnp.linspace(0.5, 2, 192)
    logits = np.asarray(hidden, np.float32) @ np.asarray(head, np.float32).T * np.asarray(scale)
    config = HeadDrawConfig(tile_v=128, tile_k=tile_k, stages=2)
    ours = run_interpreted(hidden, head, scale=scale, config=config)
    np.testing.assert_array_equal(ours.tokens, logits.argmax(axis=1))
    np.testing.assert_allclose(ours.score, logits.max(axis=1), rtol=SUMS)


TIED = (70, 100, 150)  # two in the first tile, one in the second
TIED_ROW, NAN_ROW = 3, 5


@pytest.fixture(scope="module")
def mixed():
    """17 rows, some greedy; 192 entries, so that the second tile of 128 overlaps the first; scales and targets."""
    hidden, head = (np.array(array) for array in rows_and_head(17, 128, 192))
    head[list(TIED)] = head[TIED[0]]
    hidden[TIED_ROW], hidden[NAN_ROW] = 8 * head[TIED[0]], np.nan
    scale = np.linspace(0.5, 2, 192, dtype=np.float32)
    scale[list(TIED)] = 1.5
    temperature = np.where(np.arange(17) % 3 == 0, 0, 0.3 + 0.1 * np.arange(17)).astype(np.float32)
    targets = np.arange(17, dtype=np.int32) * 41 % 192
    inputs = {"scale": scale, "noise_keys": keys_of(17), "temperature": temperature, "targets": targets}
    return (
        run_interpreted(hidden, head, config=SMALL, **inputs),
        jax.tree.map(np.asarray, REFERENCE(hidden, head, **inputs)),
        np.arange(17) != NAN_ROW,
    )


def test_greedy_and_sampling_rows_draw_the_same_tokens(mixed):
    ours, wanted, usable = mixed
    np.testing.assert_array_equal(ours.tokens[usable], wanted.tokens[usable])
    assert len(set(ours.tokens[usable].tolist())) > 8


@pytest.mark.parametrize("name", ["score", "logsumexp", "target_logit"])
def test_values_of_mixed_rows(mixed, name):
    ours, wanted, usable = mixed
    np.testing.assert_allclose(getattr(ours, name)[usable], getattr(wanted, name)[usable], rtol=SUMS, atol=SUMS)


def test_first_of_equal_entries_wins_within_and_across_tiles(mixed):
    assert mixed[0].tokens[TIED_ROW] == TIED[0]


def test_a_row_of_nan_shows_in_its_own_score_alone(mixed):
    ours, _, usable = mixed
    assert np.isnan(ours.score[NAN_ROW])
    assert np.isfinite(ours.score[usable]).all()


def test_one_nan_among_the_logits_shows_in_the_score():
    hidden, head = rows_and_head(1, 32, 128)
    ours = run_interpreted(hidden, head.at[100, 3].set(jnp.nan), config=HeadDrawConfig(tile_v=64, tile_k=32))
    assert np.isnan(ours.score[0])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy, of 0 times inf
def test_infinite_logits_and_nan_of_two_tiles():
    hidden, head = (np.array(array) for array in rows_and_head(4, 64, 192))
    # Entries 100 and 170 are of different tiles; input 0 pushes all entries the same way.
    head[:, 0], head[100, 3], head[170, 5] = -1, np.inf, np.inf
    hidden[:, [3, 5]] = [[1, 1], [-1, -1], [-1, -1], [0, 1]]
    hidden[2, 0] = np.inf
    ours, wanted = run_interpreted(hidden, head, config=SMALL), REFERENCE(hidden, head)
    # Two +inf; two -inf among finite ones; nothing but -inf; NaN (0 times inf) in a tile, +inf in the other.
    np.testing.assert_array_equal(ours.score[[0, 2, 3]], [np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(ours.tokens, wanted.tokens)
    assert ours.tokens[[0, 2, 3]].tolist() == [100, 0, 191]
    np.testing.assert_allclose(ours.score[1], wanted.score[1], rtol=SUMS)
    np.testing.assert_allclose(ours.logsumexp[1], wanted.logsumexp[1], rtol=SUMS)


def test_plain_greedy_row():
    hidden, head = rows_and_head(1, 64, 128, seed=1)
    ours = run_interpreted(hidden, head, config=HeadDrawConfig(tile_v=64, tile_k=32, stages=2))
    logits = np.asarray(hidden, np.float32) @ np.asarray(head, np.float32).T
    assert ours.tokens.tolist() == np.argmax(logits, axis=1).tolist()
    assert ours.target_logit is None
    np.testing.assert_allclose(ours.score, logits.max(axis=1), rtol=SUMS)
    np.testing.assert_allclose(ours.logsumexp, np.log(np.exp(logits).sum(axis=1)), rtol=SUMS)


def test_rows_of_zero_logits_draw_the_noise_itself():
    keys = keys_of(8)
    ours = run_interpreted(
        jnp.zeros((8, 64), jnp.bfloat16),
        jnp.ones((64, 64), jnp.bfloat16),
        noise_keys=keys,
        temperature=jnp.full((8,), 0.5),
        noise_in_logsumexp=True,
        config=HeadDrawConfig(tile_v=64, stages=2),
    )
    drawn = jax.vmap(lambda key: jax.random.gumbel(jax.random.wrap_key_data(key), (64,), jnp.float32))(keys)
    np.testing.assert_array_equal(ours.score, drawn.max(axis=1))
    np.testing.assert_array_equal(ours.tokens, drawn.argmax(axis=1))
    np.testing.assert_allclose(ours.logsumexp, jax.nn.logsumexp(drawn, axis=1), rtol=1e-6)


# Limits.


@pytest.mark.parametrize(
    ("shape", "config", "reason"),
    [
        pytest.param((137, 64, 128), None, "rows", id="too-many-rows"),
        pytest.param((9, 64, 96), None, "V must", id="vocabulary"),
        pytest.param((9, 80, 128), None, "tile_k", id="width"),
        pytest.param((1, 64, 128), HeadDrawConfig(tile_v=96), "tile_v", id="tile"),
        pytest.param((1, 64, 128), HeadDrawConfig(stages=1), "stages", id="stages"),
        pytest.param((17, 64, 128), HeadDrawConfig(chunk=16), "chunk", id="chunk"),
        pytest.param((128, 64, 256), HeadDrawConfig(tile_v=256), "accumulators", id="registers"),
        pytest.param((8, 4096, 256), HeadDrawConfig(tile_v=256, stages=8), "shared memory", id="smem"),
    ],
)
def test_says_what_it_cannot_do(shape, config, reason):
    hidden, head = rows_and_head(*shape)
    with interpreted(), pytest.raises(NotImplementedError, match=reason):
        head_draw(hidden, head, config=config)


def test_needs_rows_that_go_with_the_head():
    hidden, head = rows_and_head(1, 64, 128)
    with interpreted(), pytest.raises(NotImplementedError, match=r"rows must be bfloat16 .* got float32"):
        head_draw(hidden.astype(jnp.float32), head)
    fp8 = head.astype(jnp.float8_e4m3fn)
    with interpreted(), pytest.raises(NotImplementedError, match=r"rows must be float8_e4m3fn .* got bfloat16"):
        head_draw(hidden, fp8, scale=jnp.ones(128))
    with interpreted(), pytest.raises(NotImplementedError, match=r"a head is .* got float32"):
        head_draw(hidden, head.astype(jnp.float32), scale=jnp.ones(128))


def test_refuses_noise_without_a_temperature_and_int8_without_a_scale():
    hidden, head = rows_and_head(1, 64, 128)
    with pytest.raises(ValueError, match="temperature"):
        head_draw(hidden, head, noise_keys=keys_of(1))
    with pytest.raises(ValueError, match="scale"):
        head_draw(hidden, head.astype(jnp.int8))
