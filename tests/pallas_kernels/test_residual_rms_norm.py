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
BF16_RTOL = 2 * 2**-7
FP32_RTOL = 1e-5
MAX_SHARE_UNLIKE = 0.01


def inputs(num_rows: int, width: int, dtype) -> tuple[jax.Array, jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    x, delta = random.normal(size=(2, num_rows, width)).astype(dtype)
    x[-1], delta[-1] = 0, 0  # stays a row of zeros: epsilon
    return jnp.asarray(x), jnp.asarray(delta), jnp.asarray(random.normal(1, 0.25, width).astype(dtype))


def assert_alike(got, want) -> None:
    total, normed = got
    np.testing.assert_array_equal(np.asarray(total, np.float32), np.asarray(want[0], np.float32))
    assert normed.dtype == want[1].dtype
    is_bf16 = normed.dtype == jnp.bfloat16
    normed, wanted = np.asarray(normed, np.float32), np.asarray(want[1], np.float32)
    np.testing.assert_allclose(normed, wanted, rtol=BF16_RTOL if is_bf16 else FP32_RTOL)
    if is_bf16:
        assert np.mean(normed != wanted) <= MAX_SHARE_UNLIKE


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
    ("width", "dtype", "config"),
    [
        pytest.param(256, jnp.bfloat16, None, id="four-warps"),
        pytest.param(192, jnp.bfloat16, None, id="every-warp-the-whole-row"),
        pytest.param(512, jnp.float32, ResidualRMSNormConfig(2, 4), id="fp32-two-loads-a-thread"),
    ],
)
def test_kernel_is_the_reference(width, dtype, config):
    x, delta, scale = inputs(2, width, dtype)
    with interpreted():
        got = rounding_as_written(partial(residual_rms_norm, eps=EPS, config=config))(x, delta, scale)
    assert_alike(got, rounding_as_written(partial(reference, eps=EPS))(x, delta, scale))


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA GB200"])
@pytest.mark.parametrize("name", ["qwen3-8b-verify", "smollm2-135m-verify"])
def test_lowers_for(device, name):
    rows = jax.ShapeDtypeStruct((SHAPES[name].num_rows, SHAPES[name].width), jnp.bfloat16)
    scale = jax.ShapeDtypeStruct((SHAPES[name].width,), jnp.bfloat16)
    text = lower_for(device, partial(residual_rms_norm, eps=EPS), rows, rows, scale)
    assert text.count("stablehlo.custom_call") == 1


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        pytest.param(4096, ResidualRMSNormConfig(8, 4), id="qwen3-8b"),
        pytest.param(2560, ResidualRMSNormConfig(4, 4), id="narrower-loads"),
        pytest.param(576, ResidualRMSNormConfig(2, 1), id="smollm2-135m"),
    ],
)
def test_default_takes_all_warps_and_the_widest_loads(width, expected):
    assert ResidualRMSNormConfig.for_width(width, jnp.dtype(jnp.bfloat16)) == expected


@pytest.mark.parametrize(
    ("width", "scale_dtype", "config", "reason"),
    [
        pytest.param(96, jnp.bfloat16, None, "D=96", id="width"),
        pytest.param(16384, jnp.bfloat16, None, "D=16384", id="registers"),
        pytest.param(128, jnp.float32, None, "got bfloat16, bfloat16 and float32", id="dtype"),
        pytest.param(384, jnp.bfloat16, ResidualRMSNormConfig(8, 4), "D=384", id="tile"),
    ],
)
def test_says_why_it_refuses(width, scale_dtype, config, reason):
    rows, scale = jnp.zeros((1, width), jnp.bfloat16), jnp.zeros((width,), scale_dtype)
    with pytest.raises(NotImplementedError, match=reason):
        residual_rms_norm(rows, rows, scale, EPS, config)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_on_a_gpu(name):
    x, delta, scale = inputs(SHAPES[name].num_rows, SHAPES[name].width, jnp.bfloat16)
    got = jax.jit(partial(residual_rms_norm, eps=EPS))(x, delta, scale)
    assert_alike(got, rounding_as_written(partial(reference, eps=EPS))(x, delta, scale))
