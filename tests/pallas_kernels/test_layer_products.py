"""Products of a layer in one launch: kernel in the interpreter, lowering at the real shape, limits, and on a GPU."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.layer_products import LayerProductsConfig, layer_products, reference
from pallas_kernels.layer_products.hopper import NUM_MEETINGS
from pallas_kernels.testing import interpreted, lower_for

# Of the result's norm; the kernel and the reference round the normalised rows at different places.
TOLERANCE = 0.01
SIZES = ("D", "heads", "F", "qkv")
QWEN3_8B = dict(zip(SIZES, (4096, 4096, 12288, 6144), strict=True))
NORMS = (0.1, 0.2)


def shapes(num_rows: int, sizes: dict[str, int]) -> dict[str, jax.ShapeDtypeStruct]:
    """Of the arrays of a call, in the order of `run`."""
    hidden, heads, mlp, qkv = (sizes[name] for name in SIZES)
    dims = {
        "heads": (num_rows, heads),
        "x": (num_rows, hidden),
        "out": (hidden, heads),
        "mlp_scale": (hidden,),
        "gate_up": (2 * mlp, hidden),
        "down": (hidden, mlp),
        "next_scale": (hidden,),
        "qkv": (qkv, hidden),
    }
    return {name: jax.ShapeDtypeStruct(dim, jnp.bfloat16) for name, dim in dims.items()}


def operands(num_rows: int, sizes: dict[str, int]) -> dict[str, jax.Array]:
    arrays = {}
    for index, (name, shape) in enumerate(shapes(num_rows, sizes).items()):
        values = jax.random.normal(jax.random.fold_in(jax.random.key(0), index), shape.shape, jnp.float32)
        if name.endswith("scale"):
            values = 1 + values / 2
        elif name not in ("heads", "x"):
            values = values * shape.shape[1] ** -0.5
        arrays[name] = values.astype(jnp.bfloat16)
    return arrays


def counters(num_calls: int = 2) -> jax.Array:
    return jnp.zeros((num_calls, NUM_MEETINGS), jnp.int32)


def run(arrays, config=None, function=layer_products, is_last=False, **options):
    heads, x, out, mlp_scale, gate_up, down, next_scale, qkv = arrays.values()
    following = (None, None) if is_last else ((next_scale, NORMS[1]), qkv)
    if function is layer_products:
        options = {"arrivals": counters(), "call": 1, "config": config, **options}
    return function(heads, x, out, (mlp_scale, NORMS[0]), gate_up, down, *following, **options)


def assert_close(got, want) -> None:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < TOLERANCE


# Definition


def test_reference_is_the_formula():
    arrays = operands(3, dict(zip(SIZES, (6, 8, 10, 4), strict=True)))
    heads, x, out, mlp_scale, gate_up, down, next_scale, qkv = (np.asarray(a, np.float64) for a in arrays.values())

    def norm(rows, scale, eps):
        return rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + eps) * scale

    y = x + heads @ out.T
    gate, up = np.split(norm(y, mlp_scale, NORMS[0]) @ gate_up.T, 2, axis=1)
    z = y + (gate / (1 + np.exp(-gate)) * up) @ down.T
    stream, next_qkv = run(arrays, function=reference.layer_products)
    assert_close(stream, z)
    assert_close(next_qkv, norm(z, next_scale, NORMS[1]) @ qkv.T)


# Interpreter: one CTA, which waits for nobody


SMALL = LayerProductsConfig(num_ctas=1, slot_size=256 * 64, stages=2)
INTERPRETED = {
    "rows-beyond-x": (5, (64, 640, 128, 64), False),
    "inputs-beyond-a-weight": (16, (64, 320, 128, 64), False),
    "last-layer": (8, (64, 256, 128, 64), True),
}


@pytest.mark.parametrize(("num_rows", "sizes", "is_last"), INTERPRETED.values(), ids=INTERPRETED)
def test_kernel_in_the_interpreter(num_rows, sizes, is_last):
    arrays = operands(num_rows, dict(zip(SIZES, sizes, strict=True)))
    with interpreted():
        stream, qkv, _ = run(arrays, SMALL, is_last=is_last)
    want_stream, want_qkv = run(arrays, function=reference.layer_products, is_last=is_last)
    assert_close(stream, want_stream)
    assert (qkv is None) == is_last
    if not is_last:
        assert_close(qkv, want_qkv)
