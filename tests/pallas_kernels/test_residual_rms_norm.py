"""Residual and norm: the reference against the models', the kernel against the reference, lowered, and on a GPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.ops.norm_rope import rms_norm
from pallas_kernels.residual_rms_norm import ResidualRMSNormConfig, residual_rms_norm
from pallas_kernels.residual_rms_norm.reference import residual_rms_norm as reference
from pallas_kernels.residual_rms_norm.shapes import SHAPES
from pallas_kernels.testing import interpreted, lower_for

EPS = 1e-6
# A sum over the row in another order moves fp32 by a few ulp, and that now and then turns a rounding to bf16 over,
# twice at most (norm, scale). Left-out roundings would touch a third of the elements.
# One step of fp8 is an eighth at most, or 2^-9 near 0.
FP8 = jnp.dtype(jnp.float8_e4m3fn)
TOLERANCES = {
    "bfloat16": {"rtol": 2 * 2**-7},
    "float32": {"rtol": 1e-5},
    "float8_e4m3fn": {"rtol": 2**-3, "atol": 2**-9},
}
MAX_SHARE_UNLIKE = 0.01


def inputs(num_rows: int, width: int, dtype) -> tuple[jax.Array, jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    x, delta = random.normal(size=(2, num_rows, width)).astype(dtype)
    x[-1], delta[-1] = 0, 0  # stays a row of zeros: epsilon
    scale = random.normal(1, 0.25, width)
    scale[5] = 1e4  # beyond fp8
    return jnp.asarray(x), jnp.asarray(delta), jnp.asarray(scale.astype(dtype))


def assert_alike(got, want) -> None:
    total, normed = got
    np.testing.assert_array_equal(np.asarray(total, np.float32), np.asarray(want[0], np.float32))
    assert normed.dtype == want[1].dtype
    dtype = normed.dtype.name
    normed, wanted = np.asarray(normed, np.float32), np.asarray(want[1], np.float32)
    np.testing.assert_allclose(normed, wanted, **TOLERANCES[dtype])
    if dtype != "float32":
        assert np.mean((normed != wanted) & ~np.isnan(wanted)) <= MAX_SHARE_UNLIKE


def rounding_as_written(function):
    """Jitted without XLA's licence to leave out roundings between operations."""
    return jax.jit(function, compiler_options={"xla_allow_excess_precision": False})


def test_reference_is_the_models_norm_of_the_sum():
    x, delta, scale = inputs(5, 96, jnp.bfloat16)
    got = rounding_as_written(partial(reference, eps=EPS))(x, delta, scale)
    assert_alike(
        got, rounding_as_written(lambda x, delta, scale: (x + delta, rms_norm(x + delta, scale, EPS)))(x, delta, scale)
    )


@pytest.mark.parametrize(
    ("width", "dtype", "norm_dtype", "config"),
    [
        pytest.param(256, jnp.bfloat16, None, None, id="four-warps"),
        pytest.param(192, jnp.bfloat16, None, None, id="every-warp-the-whole-row"),
        pytest.param(512, jnp.float32, None, ResidualRMSNormConfig(2, 4), id="fp32-two-loads-a-thread"),
        pytest.param(512, jnp.bfloat16, FP8, None, id="fp8"),
    ],
)
def test_kernel_is_the_reference(width, dtype, norm_dtype, config):
    x, delta, scale = inputs(2, width, dtype)
    x = x.at[1, 3].set(jnp.nan) if norm_dtype else x
    options = {"eps": EPS, "norm_dtype": norm_dtype}
    with interpreted():
        got = rounding_as_written(partial(residual_rms_norm, config=config, **options))(x, delta, scale)
    assert_alike(got, rounding_as_written(partial(reference, **options))(x, delta, scale))
    assert got[1].dtype == (norm_dtype or dtype)


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA GB200"])
@pytest.mark.parametrize(
    ("name", "norm_dtype"), [("qwen3-8b-verify", None), ("qwen3-8b-verify", FP8), ("smollm2-135m-verify", None)]
)
def test_lowers_for(device, name, norm_dtype):
    rows = jax.ShapeDtypeStruct((SHAPES[name].num_rows, SHAPES[name].width), jnp.bfloat16)
    scale = jax.ShapeDtypeStruct((SHAPES[name].width,), jnp.bfloat16)
    text = lower_for(device, partial(residual_rms_norm, eps=EPS, norm_dtype=norm_dtype), rows, rows, scale)
    assert text.count("stablehlo.custom_call") == 1


@pytest.mark.parametrize(
    ("width", "norm_dtype", "expected"),
    [
        pytest.param(4096, None, ResidualRMSNormConfig(8, 4), id="qwen3-8b"),
        pytest.param(4096, FP8, ResidualRMSNormConfig(8, 4), id="qwen3-8b-fp8"),
        pytest.param(2560, None, ResidualRMSNormConfig(4, 4), id="narrower-loads"),
        pytest.param(768, None, ResidualRMSNormConfig(2, 4), id="loads-of-4-bytes"),
        pytest.param(768, FP8, ResidualRMSNormConfig(8, 1), id="no-stores-of-2-bytes"),
        pytest.param(576, None, ResidualRMSNormConfig(2, 1), id="smollm2-135m"),
    ],
)
def test_default_takes_all_warps_and_the_widest_loads(width, norm_dtype, expected):
    assert ResidualRMSNormConfig.for_width(width, jnp.dtype(jnp.bfloat16), norm_dtype) == expected


@pytest.mark.parametrize(
    ("width", "options", "reason"),
    [
        pytest.param(96, {}, "D=96 of bfloat16", id="width"),
        pytest.param(576, {"norm_dtype": FP8}, "D=576 of bfloat16 and float8_e4m3fn", id="width-of-fp8"),
        pytest.param(16384, {}, "D=16384", id="registers"),
        pytest.param(128, {"scale": jnp.float32}, "got bfloat16, bfloat16 and float32", id="dtype"),
        pytest.param(128, {"norm_dtype": jnp.float32}, "is bfloat16 or float8_e4m3fn, got float32", id="norm-dtype"),
        pytest.param(384, {"config": ResidualRMSNormConfig(8, 4)}, "D=384", id="tile"),
    ],
)
def test_says_why_it_refuses(width, options, reason):
    rows, scale = jnp.zeros((1, width), jnp.bfloat16), jnp.zeros((width,), options.pop("scale", jnp.bfloat16))
    with pytest.raises(NotImplementedError, match=reason):
        residual_rms_norm(rows, rows, scale, EPS, **options)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "norm_dtype"), [*((name, None) for name in SHAPES), ("qwen3-8b-verify", FP8), ("qwen3-8b-refresh", FP8)]
)
def test_on_a_gpu(name, norm_dtype):
    x, delta, scale = inputs(SHAPES[name].num_rows, SHAPES[name].width, jnp.bfloat16)
    x = x.at[1, 3].set(jnp.nan) if norm_dtype else x
    options = {"eps": EPS, "norm_dtype": norm_dtype}
    got = jax.jit(partial(residual_rms_norm, **options))(x, delta, scale)
    assert_alike(got, rounding_as_written(partial(reference, **options))(x, delta, scale))
