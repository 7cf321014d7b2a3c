"""The forms of a case are the same operation, and its bytes those of its arrays."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from benchmarks.cases import attention, cases_of, head_draw, matmul, qk_norm_rope, residual_norm, swiglu
from benchmarks.kernels import error_of
from jetspec_jax.ops.kernels import OPS
from pallas_kernels.head_draw import shapes as draw_shapes
from pallas_kernels.qk_norm_rope.shapes import Projection
from pallas_kernels.residual_rms_norm import shapes as norm_shapes
from pallas_kernels.shared_prefix_attention.shapes import Blocks
from pallas_kernels.skinny_matmul import Product
from pallas_kernels.swiglu import shapes as gate_shapes
from pallas_kernels.testing import interpreted

# Of the largest value: bf16 results whose sums and roundings come in another order.
TOLERANCE = 2e-2

KEY = jax.random.key(0, impl="rbg")
BLOCKS = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "capacity": 128}
MLP = Product(num_rows=4, num_inputs=64, num_outputs=256, norm_eps=1e-6, is_swiglu=True)
WIDE = Product(num_rows=4, num_inputs=64, num_outputs=128, norm_eps=1e-6, out_dtype="float32", has_residual=True)
HEAD = draw_shapes.Rows(3, 64, 128)

CASES = [
    attention.case("cached", Blocks(2, 1, 3, 0, **BLOCKS), 50),
    attention.case("blocks", Blocks(1, 2, 3, 5, **BLOCKS), 50),
    qk_norm_rope.case("cache", Projection(2, 3, 4, 2, 64, True, 16)),
    qk_norm_rope.case("no-cache", Projection(1, 3, 4, 2, 64, False, None)),
    residual_norm.case("norm", norm_shapes.Rows(3, 128)),
    swiglu.case("gates", gate_shapes.Rows(3, 256)),
    matmul.case("gate-up-int8", replace(MLP, weight_dtype="int8", has_scale=True)),
    matmul.case("residual", WIDE),
    matmul.case("residual-fp8", replace(WIDE, weight_dtype="float8_e4m3fn", has_scale=True, norm_eps=None)),
    head_draw.case("noise", head_draw.Draws(HEAD, "noise")),
    head_draw.case("int8", head_draw.Draws(HEAD, "int8")),
    head_draw.case("fp8", head_draw.Draws(HEAD, "fp8")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_xla_form_is_the_reference(case):
    def both(key):
        arguments = case.make(key).arguments
        return case.xla(*arguments), case.reference(*arguments)

    results, wanted = jax.jit(both)(KEY)
    errors = error_of(results, wanted)
    assert errors["of_largest"] < TOLERANCE
    assert errors.get("unequal", 0) == 0
    # Nothing is equal by being empty.
    assert all(jnp.any(leaf != 0) for leaf in jax.tree.leaves(wanted))


@pytest.mark.parametrize("case", [CASES[4], CASES[5]], ids=lambda case: case.name)
def test_kernel_form_is_the_reference(case):
    inputs = jax.jit(case.make)(KEY)
    with interpreted():
        results = jax.block_until_ready(case.kernel(*inputs.arguments, config=case.configs()[0]))
    assert error_of(results, case.reference(*inputs.arguments))["of_largest"] < TOLERANCE


def test_blocks_see_what_is_before_their_rows_and_themselves():
    # Three rows, five own keys: two before the rows.
    (_, mask) = jax.jit(CASES[1].make)(KEY).shared
    assert mask[0, 0].astype(int).tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("op", OPS)
def test_named_shapes_have_names_and_bytes(op):
    cases = list(cases_of(op, context_len=1024))
    assert len({case.name for case in cases}) == len(cases) > 2
    for case in cases:
        inputs = jax.eval_shape(case.make, KEY)
        own = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(inputs.own))
        # Of a cache only the context must be read; results come on top of the arguments.
        assert own / 4 < case.num_bytes < 4 * own + 1000


@pytest.mark.parametrize("op", OPS)
def test_a_sweep_has_distinct_configs(op):
    configs = next(iter(cases_of(op, context_len=1024))).configs()
    assert len(set(configs)) == len(configs) > 1
