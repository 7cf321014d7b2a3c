"""Product of few rows: definition, kernel in the interpreter, lowering at the real shapes."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.skinny_matmul import Product, SkinnyMatmulConfig, candidate_configs, reference, skinny_matmul
from pallas_kernels.skinny_matmul.shapes import NUM_ROWS, SHAPES, in_fp8_layer, with_int8
from pallas_kernels.testing import interpreted, lower_for

# Of the result's norm. A bf16 rounding is off by 0.2 % on average; the kernel and the reference round x and the norm's
# factor at different places, so a few of them add up. A wrong term of the formula is off by tens of percent.
BF16_TOLERANCE = 0.01
FP32_TOLERANCE = 1e-6  # the same products added in another order
# Sums that are off by 0.01 fall on the other side of a tie in one of nine cases, and their fp8 is then off by a step,
# 0.09 on average: 0.03 in all. If fp8 were cut off instead of rounded, it would be twice that.
FP8_TOLERANCE = 0.03
TOLERANCES = {"float32": FP32_TOLERANCE, "bfloat16": BF16_TOLERANCE, "float8_e4m3fn": FP8_TOLERANCE}


def operands(product: Product) -> tuple[tuple, dict]:
    """Random x and weight, and what is fused around them."""
    keys = jax.random.split(jax.random.key(0), 5)
    x = jax.random.normal(keys[0], (product.num_rows, product.num_inputs), jnp.bfloat16)
    weight = jax.random.normal(keys[1], (product.num_outputs, product.num_inputs)) * product.num_inputs**-0.5
    fused = {"swiglu": product.is_swiglu, "out_dtype": product.out_dtype}
    if product.weight_dtype != "bfloat16":
        weight, x = jnp.round(weight * 100), x.astype(product.x_dtype)
    if product.has_scale:
        fused["scale"] = jax.random.uniform(keys[2], (product.num_outputs,), jnp.float32, 0.005, 0.02)
    if product.has_norm:
        fused["norm"] = (1 + jax.random.normal(keys[3], (product.num_inputs,), jnp.bfloat16) / 2, product.norm_eps)
    if product.has_residual:
        shape = (product.num_rows, product.width)
        fused["residual"] = jax.random.normal(keys[4], shape, product.out_dtype)
    return (x, weight.astype(product.weight_dtype)), fused


def error(got: jax.Array, want: jax.Array) -> float:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def abstract(product: Product) -> tuple:
    """Shapes of `call`'s arguments."""
    shape = jax.ShapeDtypeStruct
    fused = {}
    if product.has_scale:
        fused["scale"] = shape((product.num_outputs,), jnp.float32)
    if product.has_residual:
        fused["residual"] = shape((product.num_rows, product.width), product.out_dtype)
    norm_scale = shape((product.num_inputs,), jnp.bfloat16) if product.has_norm else None
    x = shape((product.num_rows, product.num_inputs), product.x_dtype)
    return x, shape((product.num_outputs, product.num_inputs), product.weight_dtype), norm_scale, fused


def call(product: Product, config: SkinnyMatmulConfig | None = None):
    """The kernel as a function of arrays alone."""

    def run(x, weight, norm_scale, fused):
        norm = None if norm_scale is None else (norm_scale, product.norm_eps)
        options = {"swiglu": product.is_swiglu, "out_dtype": product.out_dtype, "config": config}
        return skinny_matmul(x, weight, norm=norm, **fused, **options)

    return run


FP8 = "float8_e4m3fn"

# Definition


@pytest.mark.parametrize(
    "product",
    [
        pytest.param(Product(num_rows=3, num_inputs=64, num_outputs=10), id="plain"),
        pytest.param(Product(num_rows=3, num_inputs=64, num_outputs=10, norm_eps=0.5, has_residual=True), id="norm"),
        pytest.param(Product(num_rows=3, num_inputs=64, num_outputs=10, is_swiglu=True), id="swiglu"),
        pytest.param(
            Product(num_rows=3, num_inputs=64, num_outputs=10, weight_dtype="int8", has_scale=True, is_swiglu=True),
            id="int8-swiglu",
        ),
        pytest.param(
            Product(num_rows=3, num_inputs=64, num_outputs=10, weight_dtype=FP8, has_scale=True, has_residual=True),
            id="fp8",
        ),
    ],
)
def test_reference_is_the_formula(product):
    (x, weight), fused = operands(product)
    wide = np.asarray(x, np.float64)
    if product.has_norm:
        scale, eps = fused["norm"]
        wide = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps) * np.asarray(scale, np.float64)
    if product.weight_dtype == "int8":  # stored in fragment order: 0, 1, 8, 9, 2, 3, 10, 11, ... of each 16 inputs
        place = np.argsort([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15])
        groups = np.asarray(weight).reshape(product.num_outputs, -1, 16)
        weight_of = groups[:, :, place].reshape(product.num_outputs, -1)
    else:
        weight_of = weight
    y = wide @ np.asarray(weight_of, np.float64).T
    if product.has_scale:
        y = y * np.asarray(fused["scale"], np.float64)
    if product.is_swiglu:
        gate, up = np.split(y, 2, axis=1)
        y = gate / (1 + np.exp(-gate)) * up
    if product.has_residual:
        y = y + np.asarray(fused["residual"], np.float64)
    assert error(reference.skinny_matmul(x, weight, **fused), y) < BF16_TOLERANCE


def extremes(product: Product) -> tuple[tuple, dict]:
    """Operands with a row of NaN and outputs beyond what fp8 can hold."""
    (x, weight), fused = operands(product)
    fused["scale"] = fused["scale"].at[::3].mul(1e4)
    return (x.at[1, 0].set(jnp.nan), weight), fused


def assert_rounded_again(multiply, product: Product) -> None:
    """Results in fp8 are those in bf16, clipped and cast: to the bit."""
    (x, weight), fused = extremes(product)
    in_bf16 = np.asarray(multiply(x, weight, **fused | {"out_dtype": "bfloat16"}), np.float32)
    got = np.asarray(multiply(x, weight, **fused))
    assert got.dtype == FP8
    np.testing.assert_array_equal(got.astype(np.float32), np.clip(in_bf16, -448, 448).astype(FP8).astype(np.float32))
    assert np.isnan(in_bf16[1]).all()
    assert np.nanmax(in_bf16) > 448 > -448 > np.nanmin(in_bf16)


def test_reference_in_fp8_is_the_one_in_bf16_rounded_again():
    product = in_fp8_layer(Product(num_rows=3, num_inputs=64, num_outputs=64, is_swiglu=True))
    assert_rounded_again(reference.skinny_matmul, product)


# Interpreter


def config(**fields) -> SkinnyMatmulConfig:
    """Two stages, so that slots are used again."""
    return SkinnyMatmulConfig(**{"stages": 2, "tile_k": 64, **fields})


EVERYTHING = {"weight_dtype": "int8", "norm_eps": 1e-5, "has_scale": True, "has_residual": True, "is_swiglu": True}

INTERPRETED = {
    "rows-beyond-x-two-warpgroups": (
        Product(num_rows=5, num_inputs=192, num_outputs=48, has_residual=True, out_dtype="float32"),
        config(block_rows=24, warpgroups=2),
    ),
    "norm-three-tiles-on-two-ctas": (
        Product(num_rows=8, num_inputs=192, num_outputs=120, norm_eps=0.1, has_residual=True),
        config(block_rows=40, max_ctas=2),
    ),
    "padded-rows": (Product(num_rows=9, num_inputs=384, num_outputs=128), config(tile_k=128)),
    "everything": (Product(num_rows=8, num_inputs=192, num_outputs=48, **EVERYTHING), config(block_rows=24)),
    "fp8-swiglu-to-fp8": (
        in_fp8_layer(Product(num_rows=9, num_inputs=384, num_outputs=96, is_swiglu=True)),
        config(block_rows=48, tile_k=128),
    ),
    "everything-split": (
        Product(num_rows=8, num_inputs=384, num_outputs=64, **EVERYTHING),
        config(block_rows=32, split_k=2),
    ),
}


@pytest.mark.usefixtures("registers_for_wgmma")
@pytest.mark.parametrize("name", INTERPRETED)
def test_kernel_is_the_reference_without_races(name):
    product, tiles = INTERPRETED[name]
    (x, weight), fused = operands(product)
    with interpreted():
        got = skinny_matmul(x, weight, **fused, config=tiles)
    assert got.dtype == product.out_dtype
    assert error(got, reference.skinny_matmul(x, weight, **fused)) < TOLERANCES[product.out_dtype]


# Lowering


def lowered(product: Product, rows_of_default_suite: tuple[int, ...]) -> list:
    """A case a number of rows, some of them for the slow suite."""
    return [
        pytest.param(
            replace(product, num_rows=num_rows),
            marks=[] if num_rows in rows_of_default_suite else [pytest.mark.slow],
        )
        for num_rows in NUM_ROWS
    ]


def count_kernels(product: Product) -> int:
    return len(re.findall("@mosaic_gpu_v2", lower_for("NVIDIA H200", call(product), *abstract(product))))


@pytest.mark.parametrize(
    "product",
    [case for name, of in SHAPES.items() for case in lowered(of, (1, 17, 128) if name.startswith("qwen3") else (17,))],
    ids=lambda product: f"{product.num_rows}x{product.num_inputs}x{product.num_outputs}",
)
def test_real_shapes_lower_for_an_h200(product):
    assert count_kernels(product) == 1


@pytest.mark.parametrize(
    "product",
    [case for of in SHAPES.values() for case in lowered(with_int8(of), (64,) if of.is_swiglu else ())],
    ids=lambda product: f"{product.num_rows}x{product.num_inputs}x{product.num_outputs}",
)
def test_int8_weights_lower_for_an_h200(product):
    assert count_kernels(product) == 1


@pytest.mark.parametrize("num_rows", [24, 64, 128])
@pytest.mark.parametrize("name", [name for name in SHAPES if name.startswith("qwen3")])
def test_fp8_weights_lower_for_an_h200(name, num_rows):
    assert count_kernels(replace(in_fp8_layer(SHAPES[name]), num_rows=num_rows)) == 1


def test_eight_rows_or_fewer_are_one_launch():
    product = replace(SHAPES["qwen3-8b-o"], num_rows=1)
    assert "stablehlo.pad" not in lower_for("NVIDIA H200", call(product), *abstract(product))
    padded = replace(product, num_rows=17)
    assert "stablehlo.pad" in lower_for("NVIDIA H200", call(padded), *abstract(padded))


def test_blackwell_is_left_to_the_caller():
    product = SHAPES["qwen3-8b-o"]
    with pytest.raises(NotImplementedError, match=r"wgmma is Hopper's.*NVIDIA GB200"):
        lower_for("NVIDIA GB200", call(product), *abstract(product))


def test_cpu_is_left_to_the_caller():
    square = jnp.zeros((64, 64), jnp.bfloat16)
    with pytest.raises(NotImplementedError, match="this is 'cpu'"):
        skinny_matmul(square, square)


# GPU


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("form", [lambda product: product, with_int8, in_fp8_layer], ids=["bf16", "int8", "fp8"])
@pytest.mark.parametrize("name", SHAPES)
def test_kernel_is_the_reference_on_a_gpu(name, form, num_rows):
    product = form(replace(SHAPES[name], num_rows=num_rows))
    (x, weight), fused = operands(product)
    got = skinny_matmul(x, weight, **fused)
    tolerance = max(BF16_TOLERANCE, TOLERANCES[product.out_dtype])
    assert error(got, reference.skinny_matmul(x, weight, **fused)) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [24, 64])
def test_result_in_fp8_is_the_one_in_bf16_rounded_again_on_a_gpu(num_rows):
    assert_rounded_again(skinny_matmul, replace(in_fp8_layer(SHAPES["qwen3-8b-gate-up"]), num_rows=num_rows))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["qwen3-8b-o", "qwen3-8b-gate-up"])
def test_every_candidate_is_the_reference_on_a_gpu(name):
    product = replace(SHAPES[name], num_rows=32)
    (x, weight), fused = operands(product)
    want = reference.skinny_matmul(x, weight, **fused)
    for tiles in candidate_configs(product):
        got = skinny_matmul(x, weight, **fused, config=tiles)
        assert error(got, want) < BF16_TOLERANCE, tiles
