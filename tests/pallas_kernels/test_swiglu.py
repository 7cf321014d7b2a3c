"""SwiGLU: the reference against fp64 and the models' MLP, the kernel against fp64, lowered, and on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.swiglu import SwiGLUConfig, swiglu
from pallas_kernels.swiglu.reference import swiglu as reference
from pallas_kernels.swiglu.shapes import SHAPES
from pallas_kernels.testing import interpreted, lower_for

# One rounding, half a unit in the last place, and the fp32 before it.
BF16_RTOL = 2**-8 + 1e-5
FP32_RTOL = 1e-5
# The models' MLP rounds up to five times: exponential, sum, quotient and two products.
MLP_RTOL = 6 * 2**-8
# Where a gate's exponential overflows the product is 0; in fp64 it is merely tiny.
ATOL = 1e-30


def gate_up(num_rows: int, width: int, dtype) -> jax.Array:
    rows = np.random.default_rng(0).normal(0, 4, (num_rows, 2 * width))
    rows[0, :4] = -200, -20, 20, 200
    return jnp.asarray(rows.astype(dtype))


def in_fp64(rows: jax.Array) -> np.ndarray:
    gate, up = np.split(np.asarray(rows, np.float64), 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


def test_reference_is_silu_of_the_first_half_times_the_second():
    rows = gate_up(5, 96, jnp.bfloat16)
    got = np.asarray(reference(rows), np.float64)
    np.testing.assert_allclose(got, in_fp64(rows), rtol=BF16_RTOL, atol=ATOL)
    gate, up = jnp.split(rows, 2, axis=-1)
    np.testing.assert_allclose(got, np.asarray(jax.nn.silu(gate) * up, np.float64), rtol=MLP_RTOL, atol=ATOL)


@pytest.mark.parametrize(
    ("dtype", "config", "rtol"),
    [
        pytest.param(jnp.bfloat16, None, BF16_RTOL, id="bf16"),
        pytest.param(jnp.float32, SwiGLUConfig(256, 1), FP32_RTOL, id="fp32-two-blocks-of-two-loads"),
    ],
)
def test_kernel_is_the_reference(dtype, config, rtol):
    rows = gate_up(2, 512, dtype)
    with interpreted():
        got = swiglu(rows, config)
    assert got.dtype == dtype
    np.testing.assert_allclose(np.asarray(got, np.float64), in_fp64(rows), rtol=rtol, atol=ATOL)


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA GB200"])
@pytest.mark.parametrize("name", ["qwen3-8b-verify", "smollm2-135m-verify"])
def test_lowers_for(device, name):
    shape = SHAPES[name]
    text = lower_for(device, swiglu, jax.ShapeDtypeStruct((shape.num_rows, 2 * shape.width), jnp.bfloat16))
    assert text.count("stablehlo.custom_call") == 1


@pytest.mark.parametrize(
    ("width", "dtype", "expected"),
    [
        pytest.param(12288, jnp.bfloat16, SwiGLUConfig(1024, 8), id="qwen3-8b"),
        pytest.param(12288, jnp.float32, SwiGLUConfig(512, 4), id="fp32"),
        pytest.param(1536, jnp.bfloat16, SwiGLUConfig(512, 4), id="smollm2-135m"),
    ],
)
def test_default_loads_up_to_sixteen_bytes_a_thread(width, dtype, expected):
    assert SwiGLUConfig.for_width(width, jnp.dtype(dtype)) == expected


@pytest.mark.parametrize(
    ("rows", "config", "reason"),
    [
        pytest.param(jnp.zeros((1, 2 * 192)), None, "F=192", id="width"),
        pytest.param(jnp.zeros((1, 2 * 256), jnp.float8_e4m3fn), None, "float8_e4m3fn", id="dtype"),
        pytest.param(jnp.zeros((1, 2 * 256)), SwiGLUConfig(512, 4), "F=256", id="tile"),
    ],
)
def test_says_why_it_refuses(rows, config, reason):
    with pytest.raises(NotImplementedError, match=reason):
        swiglu(rows, config)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_on_a_gpu(name):
    rows = gate_up(SHAPES[name].num_rows, SHAPES[name].width, jnp.bfloat16)
    got = np.asarray(jax.jit(swiglu)(rows), np.float64)
    np.testing.assert_allclose(got, in_fp64(rows), rtol=BF16_RTOL, atol=ATOL)
