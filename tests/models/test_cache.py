"""The static cache: writes at each row's own length, commit, rollback; checked against lists of rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_jax.models.cache import MAX_UNROLLED, KVCache, update_rows, write_rows

LAYERS, BATCH, CAPACITY = 2, 2, 12


def empty_cache(dtype=jnp.float32, capacity=CAPACITY) -> KVCache:
    return KVCache.zeros(num_layers=LAYERS, batch=BATCH, capacity=capacity, num_kv_heads=1, head_dim=1, dtype=dtype)


def rows_of(values) -> jax.Array:
    """[B, T] numbers as rows [B, T, 1, 1]."""
    return jnp.asarray(values, jnp.float32)[:, :, None, None]


def flat(buffer) -> np.ndarray:
    """[B, 1, S, 1] as [B, S]."""
    return np.asarray(buffer)[:, 0, :, 0]


def lengths_of(*lengths: int) -> jax.Array:
    return jnp.array(lengths, jnp.int32)


def test_zeros_has_the_stated_shape():
    cache = KVCache.zeros(num_layers=3, batch=2, capacity=7, num_kv_heads=4, head_dim=6, dtype=jnp.bfloat16)
    assert len(cache.keys) == len(cache.values) == 3
    assert {x.shape for x in (*cache.keys, *cache.values)} == {(2, 4, 7, 6)}
    assert {x.dtype for x in (*cache.keys, *cache.values)} == {jnp.dtype("bfloat16")}
    assert cache.capacity == 7
    np.testing.assert_array_equal(cache.length, [0, 0])


def test_write_goes_to_each_rows_length_and_does_not_commit():
    cache = empty_cache(capacity=6).with_length(lengths_of(1, 3))
    written = cache.write(1, rows_of([[1, 2], [3, 4]]), rows_of([[-1, -2], [-3, -4]]))
    np.testing.assert_array_equal(flat(written.keys[1]), [[0, 1, 2, 0, 0, 0], [0, 0, 0, 3, 4, 0]])
    np.testing.assert_array_equal(flat(written.values[1]), [[0, -1, -2, 0, 0, 0], [0, 0, 0, -3, -4, 0]])
    np.testing.assert_array_equal(written.length, [1, 3])
    # The other layer and the cache that was written from are as before.
    np.testing.assert_array_equal(written.keys[0], np.zeros((2, 1, 6, 1)))
    np.testing.assert_array_equal(cache.keys[1], np.zeros((2, 1, 6, 1)))


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        pytest.param((0, 0), [[9, 9, 9, 0, 0, 0], [9, 9, 9, 0, 0, 0]], id="none"),
        pytest.param((3, 3), [[1, 2, 3, 9, 9, 9], [4, 5, 6, 9, 9, 9]], id="all"),
        pytest.param((1, 0), [[1, 9, 9, 9, 0, 0], [9, 9, 9, 0, 0, 0]], id="first-of-one-row"),
        pytest.param((2, 3), [[1, 2, 9, 9, 9, 0], [4, 5, 6, 9, 9, 9]], id="ragged"),
    ],
)
def test_next_block_overwrites_what_was_not_committed(keep, expected):
    cache = empty_cache(capacity=6).write(0, rows_of([[1, 2, 3], [4, 5, 6]]), rows_of(np.zeros((2, 3))))
    cache = cache.commit(lengths_of(*keep))
    np.testing.assert_array_equal(cache.length, keep)
    cache = cache.write(0, rows_of(np.full((2, 3), 9)), rows_of(np.zeros((2, 3))))
    np.testing.assert_array_equal(flat(cache.keys[0]), expected)


def test_rollback_only_sets_the_length():
    cache = empty_cache(capacity=6).write(0, rows_of([[1, 2, 3], [4, 5, 6]]), rows_of(np.ones((2, 3))))
    rolled = cache.commit(lengths_of(3, 3)).with_length(lengths_of(1, 2))
    np.testing.assert_array_equal(rolled.length, [1, 2])
    assert all(a is b for a, b in zip(rolled.keys + rolled.values, cache.keys + cache.values, strict=True))


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        pytest.param((0, 0), [[1, 2, 0, 0], [3, 4, 0, 0]], id="first-slots"),
        pytest.param((2, 2), [[0, 0, 1, 2], [0, 0, 3, 4]], id="C16-last-slots"),
        pytest.param((0, 2), [[1, 2, 0, 0], [0, 0, 3, 4]], id="ragged"),
    ],
)
def test_write_rows_places_rows(start, expected):
    written = write_rows(jnp.zeros((2, 1, 4, 1)), rows_of([[1, 2], [3, 4]]), lengths_of(*start))
    np.testing.assert_array_equal(flat(written), expected)


@pytest.mark.parametrize(
    ("buffer_shape", "rows_shape", "axis"),
    [
        pytest.param((3, 7, 2), (3, 4, 2), 2, id="cache"),
        pytest.param((7,), (4,), 1, id="tokens"),
    ],
)
def test_large_batches_are_written_like_small_ones(buffer_shape, rows_shape, axis):
    rng, batch = np.random.default_rng(0), MAX_UNROLLED + 3
    buffer = jnp.asarray(rng.integers(0, 99, (batch, *buffer_shape)))
    rows = jnp.asarray(rng.integers(100, 999, (batch, *rows_shape)))
    start = jnp.asarray(rng.integers(0, 7, batch))  # starts above 3 are moved down, the same in both forms
    large = update_rows(buffer, rows, start, axis=axis)
    small = [update_rows(buffer[at], rows[at], start[at], axis=axis) for at in (slice(0, 16), slice(16, batch))]
    np.testing.assert_array_equal(large, np.concatenate(small))
    assert "scatter" in str(jax.make_jaxpr(partial(update_rows, axis=axis))(buffer, rows, start))


def test_rows_take_the_dtype_of_the_buffer():
    written = write_rows(jnp.zeros((1, 1, 2, 1), jnp.bfloat16), rows_of([[1 / 3]]), lengths_of(0))
    assert written.dtype == jnp.bfloat16
    assert flat(written)[0, 0] == jnp.bfloat16(1 / 3)


def test_donated_cache_is_updated_in_place():
    # The address of each buffer stays over rounds of different accepted lengths, with one compilation (C15).
    num_traces = 0

    @partial(jax.jit, donate_argnums=0)
    def round_of(cache: KVCache, rows, keep):
        nonlocal num_traces
        num_traces += 1
        for layer in range(LAYERS):
            cache = cache.write(layer, rows, rows)
        return cache.commit(keep)

    cache = round_of(empty_cache(), rows_of([[1, 2], [3, 4]]), lengths_of(0, 0))
    addresses = [buffer.unsafe_buffer_pointer() for buffer in cache.keys + cache.values]
    for keep in ((1, 2), (2, 0), (0, 1)):
        cache = round_of(cache, rows_of([[1, 2], [3, 4]]), lengths_of(*keep))
    assert [buffer.unsafe_buffer_pointer() for buffer in cache.keys + cache.values] == addresses
    np.testing.assert_array_equal(cache.length, [3, 3])
    assert num_traces == 1


@jax.jit
def write_block(cache: KVCache, rows, keep) -> KVCache:
    """Writes a block into every layer (layer l holds the numbers plus 1000 l, values negated), commits `keep` rows."""
    for layer in range(LAYERS):
        cache = cache.write(layer, rows + 1000 * layer, -(rows + 1000 * layer))
    return cache.commit(keep)


# A step is a block of 1 or 4 rows of which each request keeps some, or a rollback by some rows.
KEPT = st.tuples(st.integers(0, 4), st.integers(0, 4))
STEPS = st.lists(st.tuples(st.sampled_from(["write 1", "write 4", "rollback"]), KEPT), max_size=12)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_commit_and_rollback_behave_like_lists(steps):
    cache, lists, stamp = empty_cache(), [[], []], 1
    for kind, amounts in steps:
        if kind == "rollback":
            lists = [rows[: max(len(rows) - amount, 0)] for rows, amount in zip(lists, amounts, strict=True)]
            cache = cache.with_length(lengths_of(*map(len, lists)))
        else:
            size = int(kind.split()[1])
            if max(map(len, lists)) + size > CAPACITY:
                continue  # the caller's duty: a block must fit (C16)
            block = np.arange(stamp, stamp + BATCH * size).reshape(BATCH, size)
            stamp += BATCH * size
            keep = [min(amount, size) for amount in amounts]
            cache = write_block(cache, rows_of(block), lengths_of(*keep))
            lists = [rows + block[b, : keep[b]].tolist() for b, rows in enumerate(lists)]
        np.testing.assert_array_equal(cache.length, [len(rows) for rows in lists])
        for layer in range(LAYERS):
            for b, rows in enumerate(lists):
                expected = np.array(rows, np.float32) + 1000 * layer
                np.testing.assert_array_equal(flat(cache.keys[layer])[b, : len(rows)], expected)
                np.testing.assert_array_equal(flat(cache.values[layer])[b, : len(rows)], -expected)
