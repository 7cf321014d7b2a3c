"""Head and draw for a GPU: lowering at real shapes, choice of tiles, and on a GPU what the reference draws."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.head_draw import (
    MIN_ROWS,
    HeadDrawConfig,
    bytes_moved,
    candidate_configs,
    default_config,
    head_draw,
    reference,
)
from pallas_kernels.head_draw.config import BYTES_IN_FLIGHT, SMEM_PER_SM, SMEM_RESERVED, row_dtype
from pallas_kernels.head_draw.shapes import SHAPES, Rows
from pallas_kernels.testing import lower_for

REFERENCE = jax.jit(reference.head_draw, static_argnames="noise_in_logsumexp")


def rows_and_head(num_rows, width, vocab_size):
    draws = np.random.default_rng(0)
    hidden = draws.standard_normal((num_rows, width)).astype(jnp.bfloat16)
    return jnp.array(hidden), jnp.array((draws.standard_normal((vocab_size, width)) / 8).astype(jnp.bfloat16))


def config_of(shape, dtype=jnp.bfloat16):
    """The default, given by name: also for few rows, which are XLA's otherwise."""
    return default_config(shape.num_rows, shape.width, shape.vocab_size, dtype)


def keys_of(num_rows):
    return jnp.array(np.random.default_rng(7).integers(0, 2**32, (num_rows, 2), np.uint32))


# Lowering for GPUs that are not here.


def lower(shape, dtype=jnp.bfloat16, *, samples=True, config=None, device="NVIDIA H200", function=head_draw):
    array = jax.ShapeDtypeStruct
    rows, vocab_size = shape.num_rows, shape.vocab_size
    options = {} if dtype == jnp.bfloat16 else {"scale": array((vocab_size,), jnp.float32)}
    if samples:
        options |= {
            "noise_keys": array((rows, 2), jnp.uint32),
            "temperature": array((rows,), jnp.float32),
            "targets": array((rows,), jnp.int32),
        }
    static = {} if config is None else {"config": config}

    def with_names(hidden, head, *arrays):
        return function(hidden, head, **dict(zip(options, arrays, strict=True)), **static)

    hidden, head = array((rows, shape.width), row_dtype(dtype)), array((vocab_size, shape.width), dtype)
    return lower_for(device, with_names, hidden, head, *options.values())


@pytest.mark.parametrize(
    ("name", "dtype", "samples"),
    [
        pytest.param("qwen3-8b-step", jnp.bfloat16, False, id="qwen3-step-greedy"),
        pytest.param("qwen3-8b-verify", jnp.bfloat16, True, id="qwen3-verify"),
        pytest.param("qwen3-8b-draft-r8", jnp.bfloat16, True, id="qwen3-128-rows"),
        pytest.param("qwen3-8b-verify", jnp.int8, True, id="qwen3-verify-int8"),
        pytest.param("qwen3-8b-draft-r4", jnp.float8_e4m3fn, True, id="qwen3-64-rows-fp8"),
        pytest.param("smollm2-135m-verify", jnp.bfloat16, True, id="smollm2-verify"),
        pytest.param("smollm2-135m-draft-r8", jnp.int8, False, id="smollm2-128-rows-int8-greedy"),
    ],
)
def test_lowers_for_hopper(name, dtype, samples):
    shape = SHAPES[name]
    assert "mosaic_gpu" in lower(shape, dtype, samples=samples, config=config_of(shape, dtype))


def test_lowers_with_tiles_that_do_not_divide_the_vocabulary():
    config = HeadDrawConfig(tile_v=256, tile_k=32, stages=4, chunk=24)
    assert "mosaic_gpu" in lower(SHAPES["qwen3-8b-verify"], config=config)


def test_logits_are_in_no_buffer():
    # The reference's module has an array of rows by entries, the kernel's has none.
    assert "17x151936" in lower(SHAPES["qwen3-8b-verify"], function=reference.head_draw)
    assert "x151936" not in lower(SHAPES["qwen3-8b-verify"]).replace("151936x4096", "")


def test_blackwell_has_no_wgmma_and_is_left_to_xla():
    with pytest.raises(NotImplementedError, match="Hopper"):
        lower(SHAPES["qwen3-8b-verify"], device="NVIDIA GB200")


def test_a_cpu_is_left_to_xla():
    with pytest.raises(NotImplementedError, match="Hopper"):
        head_draw(*rows_and_head(1, 64, 128))


def test_few_rows_are_left_to_xla_unless_a_config_is_given():
    step = Rows(MIN_ROWS - 1, 4096, 151936)
    with pytest.raises(NotImplementedError, match="fewer than 9 rows"):
        lower(step)
    assert "mosaic_gpu" in lower(step, config=config_of(step))
    assert "mosaic_gpu" in lower(replace(step, num_rows=MIN_ROWS))


# Tiles.


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.float8_e4m3fn])
def test_default_and_candidates_fit_the_machine(name, dtype):
    shape = SHAPES[name]
    sizes = (shape.num_rows, shape.width, shape.vocab_size, dtype)
    default_config(*sizes).check(*sizes)
    candidates = candidate_configs(*sizes)
    assert default_config(*sizes) in candidates
    assert len(set(candidates)) == len(candidates) > 10


@pytest.mark.parametrize("num_rows", [9, 24, 64, 72, 96, 136])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.float8_e4m3fn])
def test_default_keeps_enough_of_the_head_on_its_way(num_rows, dtype):
    config = default_config(num_rows, 4096, 151_936, dtype)
    blocks = SMEM_PER_SM // (config.smem_bytes(num_rows, dtype) + SMEM_RESERVED)
    step_bytes = config.tile_v * config.tile_k * jnp.dtype(dtype).itemsize
    assert blocks >= 2
    assert blocks * (config.stages - 1) * step_bytes >= BYTES_IN_FLIGHT


def test_an_int8_head_is_read_in_parts():
    with pytest.raises(NotImplementedError, match=r"64 inputs at a time, got self\.tile_k=96"):
        HeadDrawConfig(tile_k=96).check(9, 576, 192, jnp.int8)
    HeadDrawConfig(tile_k=96).check(9, 576, 192, jnp.bfloat16)


def test_bytes_are_those_of_the_head_and_the_rows():
    assert bytes_moved(17, 4096, 151936, jnp.bfloat16) == 151936 * 4096 * 2 + 17 * 4096 * 2
    assert bytes_moved(1, 576, 49152, jnp.int8) == 49152 * 580 + 1152
    assert bytes_moved(1, 576, 49152, jnp.float8_e4m3fn) == 49152 * 580 + 576


# On the machine.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8, jnp.float8_e4m3fn])
@pytest.mark.parametrize("name", SHAPES)
def test_draws_the_tokens_of_the_reference_on_a_gpu(name, dtype):
    shape = SHAPES[name]
    hidden, head = rows_and_head(shape.num_rows, shape.width, shape.vocab_size)
    options = {
        "noise_keys": keys_of(shape.num_rows),
        "temperature": jnp.where(jnp.arange(shape.num_rows) % 2 == 0, 0.0, 0.8),
        "targets": jnp.arange(shape.num_rows, dtype=jnp.int32) * 997 % shape.vocab_size,
    }
    if dtype == jnp.int8:
        head = jnp.round(head.astype(jnp.float32) * 100).astype(jnp.int8)
        options["scale"] = jnp.full((shape.vocab_size,), 0.01)
    if dtype == jnp.float8_e4m3fn:
        hidden, head = hidden.astype(dtype), (head.astype(jnp.float32) * 100).astype(dtype)
        options["scale"] = jnp.full((shape.vocab_size,), 0.01)
    ours = jax.jit(partial(head_draw, config=config_of(shape, dtype)))(hidden, head, **options)
    wanted = REFERENCE(hidden, head, **options)
    # Sums of `width` products of unit size, in another order; a Hopper adds those of fp8 with 14 bits.
    is_fp8 = dtype == jnp.float8_e4m3fn
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=3e-2 if is_fp8 else 1e-3)
    close(ours.score, wanted.score)
    close(ours.logsumexp, wanted.logsumexp)
    close(ours.target_logit, wanted.target_logit)
    assert np.mean(ours.tokens != wanted.tokens) <= (0.05 if is_fp8 else 0)


@pytest.mark.gpu
def test_noise_is_that_of_xla_bit_for_bit_on_a_gpu():
    keys = keys_of(128)
    options = {"noise_keys": keys, "temperature": jnp.ones((128,))}
    head = jnp.ones((49152, 64), jnp.bfloat16)
    ours = jax.jit(head_draw)(jnp.zeros((128, 64), jnp.bfloat16), head, **options)
    drawn = jax.vmap(lambda key: jax.random.gumbel(jax.random.wrap_key_data(key), (49152,), jnp.float32))(keys)
    np.testing.assert_array_equal(ours.score, drawn.max(axis=1))
    np.testing.assert_array_equal(ours.tokens, drawn.argmax(axis=1))


@pytest.mark.gpu
def test_a_row_does_not_depend_on_the_rows_beside_it_on_a_gpu():
    shape = SHAPES["qwen3-8b-draft-r8"]
    hidden, head = rows_and_head(shape.num_rows, shape.width, shape.vocab_size)
    together = jax.jit(head_draw)(hidden, head)
    for num_rows in (1, 17, 64):
        config = config_of(replace(shape, num_rows=num_rows))
        alone = jax.jit(partial(head_draw, config=config))(hidden[:num_rows], head)
        np.testing.assert_array_equal(alone.score, together.score[:num_rows])
        np.testing.assert_array_equal(alone.tokens, together.tokens[:num_rows])
