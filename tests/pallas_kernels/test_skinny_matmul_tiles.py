"""Product of few rows: limits of the kernel, bytes, choice of tiles."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from pallas_kernels.skinny_matmul import (
    Product,
    SkinnyMatmulConfig,
    bytes_moved,
    candidate_configs,
    default_config,
    skinny_matmul,
)
from pallas_kernels.skinny_matmul.plan import MAX_SMEM, Plan
from pallas_kernels.skinny_matmul.shapes import SHAPES, in_fp8_layer, with_int8
from pallas_kernels.testing import interpreted

FP8 = "float8_e4m3fn"
QWEN3 = [name for name in SHAPES if name.startswith("qwen3")]

# Limits


@pytest.mark.parametrize(
    ("product", "tiles", "reason"),
    [
        pytest.param({"num_rows": 129}, {}, "T is 1 to 128, padded to a multiple of 8", id="rows"),
        pytest.param({"num_rows": 121}, {"stages": 2}, None, id="rows-that-just-fit"),
        pytest.param({"num_inputs": 4160}, {"tile_k": 128}, r"multiple of tile_k \* split_k", id="inputs"),
        pytest.param({"num_inputs": 4096}, {"tile_k": 96}, "tile_k is a multiple of 64", id="tile"),
        pytest.param({"num_outputs": 4128}, {}, "O is a multiple of a CTA's 64 outputs", id="outputs"),
        pytest.param({}, {"block_rows": 72}, "block_rows is a multiple of 8 up to 64", id="block"),
        pytest.param({}, {"warpgroups": 3}, "warpgroups is 1 or 2", id="warpgroups"),
        pytest.param({}, {"stages": 1}, "2 stages or more", id="stages"),
        pytest.param({}, {"max_ctas": 0}, "max_ctas is positive", id="ctas"),
        pytest.param({"weight_dtype": "float32"}, {}, "bfloat16, int8 or float8_e4m3fn", id="weight-dtype"),
        pytest.param({"weight_dtype": FP8, "norm_eps": 1e-6}, {}, "fp8 weight is normalised before", id="fp8-norm"),
        pytest.param({"out_dtype": FP8, "has_residual": True}, {}, "fp8 result has no residual", id="fp8-residual"),
        pytest.param({"out_dtype": FP8}, {"block_rows": 40}, "fp8 result is a multiple of 16", id="fp8-block"),
        pytest.param({}, {"stages": 13}, "232448 bytes of shared memory, this is 240960", id="shared-memory"),
        pytest.param(
            {"num_rows": 128, "num_outputs": 24576, "weight_dtype": "int8", "is_swiglu": True, "norm_eps": 1e-6},
            {"warpgroups": 2, "tile_k": 64, "stages": 2},
            "184 registers, this is about 190",
            id="registers",
        ),
    ],
)
def test_limits_name_the_values(product, tiles, reason):
    plan = Plan(
        Product(**{"num_rows": 8, "num_inputs": 4096, "num_outputs": 4096, **product}), SkinnyMatmulConfig(**tiles)
    )
    if reason is None:
        plan.check()
        return
    with pytest.raises(NotImplementedError, match=reason) as refused:
        plan.check()
    assert all(f"{name}={value!r}" in str(refused.value) for name, value in (product | tiles).items())


def test_residual_has_the_dtype_of_the_result():
    square = jnp.zeros((64, 64), jnp.bfloat16)
    with interpreted(), pytest.raises(NotImplementedError, match="residual float32, result bfloat16"):
        skinny_matmul(square, square, residual=square.astype(jnp.float32))


# Choice of tiles


def test_bytes_count_every_operand_once():
    product = Product(num_rows=2, num_inputs=64, num_outputs=32, weight_dtype="int8", has_scale=True, norm_eps=1e-6)
    weight, scale, x, norm, out = 32 * 64, 32 * 4, 2 * 64 * 2, 64 * 2, 2 * 32 * 2
    assert bytes_moved(product) == weight + scale + x + norm + out
    swiglu = replace(product, is_swiglu=True, has_residual=True, out_dtype="float32")
    assert bytes_moved(swiglu) == weight + scale + x + norm + 2 * (2 * 16 * 4)


@pytest.mark.parametrize("name", SHAPES)
def test_candidates_fit_and_the_default_is_one(name):
    many = replace(SHAPES[name], num_rows=128)
    for product in (SHAPES[name], with_int8(many), in_fp8_layer(many)):
        candidates = candidate_configs(product)
        assert len(candidates) == len(set(candidates)) > 1
        assert default_config(product) in candidate_configs(product, limit=None)
        for tiles in candidates:
            plan = Plan(product, tiles)
            plan.check()
            assert plan.smem_bytes <= MAX_SMEM


@pytest.mark.parametrize("name", QWEN3)
def test_default_fills_an_h200_and_keeps_48_kb_in_flight(name):
    product = replace(SHAPES[name], num_rows=24)
    tiles = default_config(product)
    plan = Plan(product, tiles)
    step_bytes = tiles.block_rows * tiles.warpgroups * plan.halves * tiles.tile_k * 2
    assert plan.num_ctas >= 96
    assert (plan.stages - 1) * step_bytes >= 48 * 1024


@pytest.mark.parametrize(
    ("name", "num_rows", "tiles"),
    [  # 24 rows of bf16; 64 of fp8, with the microseconds measured on an H200
        ("qkv", 24, {"block_rows": 48, "warpgroups": 1}),
        ("o", 24, {"block_rows": 32, "warpgroups": 1, "tile_k": 256}),
        ("gate-up", 24, {"block_rows": 48, "warpgroups": 2, "tile_k": 64}),
        ("down", 24, {"block_rows": 32, "warpgroups": 1, "tile_k": 256}),
        ("qkv", 64, {"block_rows": 48, "warpgroups": 1}),
        ("o", 64, {"block_rows": 32, "warpgroups": 1, "tile_k": 256}),  # 8.0
        ("gate-up", 64, {"block_rows": 48, "warpgroups": 2, "tile_k": 128}),  # 29.8
        ("down", 64, {"block_rows": 32, "warpgroups": 1, "tile_k": 256}),  # 17.5; tile_k=192 takes 21.4
    ],
)
def test_defaults_are_what_was_measured_to_be_fast(name, num_rows, tiles):
    product = replace(SHAPES[f"qwen3-8b-{name}"], num_rows=num_rows)
    default = default_config(in_fp8_layer(product) if num_rows == 64 else product)
    assert {field: getattr(default, field) for field in tiles} == tiles
    assert default.split_k == 1


def test_no_tiles_for_a_shape_is_an_error():
    with pytest.raises(NotImplementedError, match=r"no tiles for Product\(.*num_inputs=100"):
        default_config(Product(num_rows=8, num_inputs=100, num_outputs=64))


@pytest.mark.parametrize("name", QWEN3)
def test_a_row_of_a_small_and_of_a_large_block_is_summed_in_one_order(name):
    splits = {default_config(replace(SHAPES[name], num_rows=rows)).split_k for rows in (9, 17, 24, 64)}
    assert len(splits) == 1
