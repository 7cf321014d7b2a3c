"""Models whose operations run as kernels, in the interpreter, against the same models through XLA."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import draft_config_for
from jetspec_jax.decoding.filters import Prefix
from jetspec_jax.decoding.row_params import row_params, sampling_spec
from jetspec_jax.decoding.sampling import draw_states
from jetspec_jax.drafters import DraftView, JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import split
from jetspec_jax.models.quantize import quantized
from jetspec_jax.models.target import Target
from jetspec_jax.ops.kernels import Kernels
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import tiny_config
from pallas_kernels.testing import interpreted, lower_for

# bf16 states of one layer, rounded at other places: a few units in the last place of the largest.
MAX_ERROR = 0.03


def relative(a, b) -> float:
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.fixture(scope="module")
def target() -> Target:
    """As small as the kernels take it."""
    shape = {"hidden_size": 128, "intermediate_size": 128, "num_heads": 4, "num_kv_heads": 4, "head_dim": 64}
    config = tiny_config(**shape, num_layers=1, taps=(0,), vocab_size=128)
    return Target(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))


def run(kernels: Kernels, program, *args):
    """Through XLA with no kernels, else in the interpreter."""

    @jax.jit
    def traced(*args):
        with kernels.tracing():
            return program(*args)

    if not kernels.ops:
        return traced(*args)
    with interpreted():
        return jax.block_until_ready(traced(*args))


@pytest.mark.parametrize(
    "ops",
    [
        ("attention", "qk_norm_rope"),
        pytest.param(("matmul",), marks=pytest.mark.slow),  # half a minute in the interpreter
        ("swiglu", "residual_norm"),
    ],
    ids="+".join,
)
def test_verified_rows(target, ops):
    definition, leaves = split(target)

    def program(leaves, tokens, cache):
        x, taps, cache = definition.merge(leaves)(tokens, cache)
        return x, taps, cache.keys[0][:, :, :8], cache.values[0][:, :, :8]

    tokens = jnp.arange(9, dtype=jnp.int32)[None]  # products of fewer rows are XLA's
    cache = target.init_cache(1, 128).with_length(jnp.array([3], jnp.int32))
    kernels = Kernels(ops)
    outputs = run(kernels, program, leaves, tokens, cache)
    expected = run(Kernels(), program, leaves, tokens, cache)
    assert kernels.refused == {}
    assert max(relative(a, b) for a, b in zip(outputs, expected, strict=True)) < MAX_ERROR


@pytest.mark.parametrize(
    ("form", "products"),
    [
        pytest.param(lambda draft: draft, (), id="given"),
        pytest.param(quantized, (), id="int8"),
        pytest.param(quantized, ("int8_matmul",), id="int8 products"),
    ],
)
@pytest.mark.usefixtures("registers_for_wgmma")
def test_blocks_of_a_draft(target, form, products):
    """Attention over a shared context, and int8 weights in XLA's form and in the kernel's."""
    draft = form(Draft(draft_config_for(target.config, num_layers=1), dtype=jnp.bfloat16, rngs=nnx.Rngs(1)))
    definition, leaves = split(draft)

    def program(leaves, x, context, start):
        return definition.merge(leaves)(x, context, start)

    x = jax.random.normal(jax.random.key(0), (1, 2, 8, 128), jnp.bfloat16)
    context, start = draft.init_context(1, 128), jnp.array([[4, 6]], jnp.int32)
    kernels = Kernels(("attention", "qk_norm_rope", *products))
    outputs = run(kernels, program, leaves, x, context, start)
    assert kernels.refused == {}
    assert relative(outputs, run(Kernels(), program, leaves, x, context, start)) < MAX_ERROR


def test_rows_between_fp8_products_are_rounded_by_the_kernels_before(target):
    """The half of a layer behind attention."""
    layer = quantized(target.layers[0], "fp8")
    definition, leaves = split(layer)

    def program(leaves, x, heads):
        return definition.merge(leaves).finish(x, heads)

    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (1, 16, 128), jnp.bfloat16)
    heads = jax.random.normal(keys[1], (1, 16, 4, 64), jnp.bfloat16)
    kernels = Kernels(("residual_norm", "fp8_matmul"))
    output = run(kernels, program, leaves, x, heads)
    assert kernels.refused == {}
    assert output.dtype == jnp.bfloat16
    assert relative(output, run(Kernels(), program, leaves, x, heads)) < MAX_ERROR

    def traced(*args):
        with kernels.tracing():
            return program(*args)

    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (leaves, x, heads))
    casts = re.findall(r"stablehlo.convert.*-> tensor<[\dx]*f8E4M3FN>", lower_for("NVIDIA H200", traced, *shapes))
    assert len(casts) == 1  # of the heads


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_of_verified_rows(target, temperature):
    definition, leaves = split(target)
    requests = [SamplingParams(temperature=temperature, seed=3)]
    spec = sampling_spec(requests)
    params = row_params(requests, eos_token_ids=(), vocab_size=128, device=jax.devices()[0])

    def program(leaves, x, prefix, params):
        drawn = draw_states(definition.merge(leaves), x, prefix, params, spec)
        return drawn.tokens, drawn.finite

    x = 3 * jax.random.normal(jax.random.key(0), (1, 9, 128), jnp.bfloat16)  # fewer than 9 rows are XLA's
    x = x.at[0, 2].set(jnp.nan)
    positions = jnp.arange(5, 14, dtype=jnp.int32)[None]
    prefix = Prefix(jnp.zeros((1, 16), jnp.int32), positions, jnp.array([3], jnp.int32))
    kernels = Kernels(("head_draw",))
    tokens, finite = run(kernels, program, leaves, x, prefix, params)
    expected, _ = run(Kernels(), program, leaves, x, prefix, params)
    assert kernels.refused == {}
    assert finite.tolist() == [[True, True, False, *[True] * 6]]
    assert tokens[finite].tolist() == expected[finite].tolist()


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_tokens_of_refined_blocks(target, temperature):
    """Draft passes and a refresh, greedy and with the position's noise."""
    drafting = DraftingConfig(num_drafts=9, num_outcomes=0)
    drafter = JetSpecPP.random(target.config, dtype=jnp.bfloat16, drafting=drafting)
    leaves, decoder = drafter.place(jax.devices()[0]), target.decoder()
    definition, decoder_leaves = split(decoder)
    requests = [SamplingParams(temperature=temperature, seed=3)]
    spec = sampling_spec(requests)
    params = row_params(requests, eos_token_ids=(), vocab_size=128, device=jax.devices()[0])
    tokens, length = jnp.arange(128, dtype=jnp.int32)[None], jnp.array([5], jnp.int32)

    def program(leaves, decoder_leaves, tokens, length, params):
        decoder = definition.merge(decoder_leaves)
        state = drafter.init_state(decoder, 1, 128)
        proposal, _ = drafter.propose(leaves, decoder, state, DraftView(tokens, length, params, spec))
        return proposal.trace.passes, proposal.trace.proxies

    kernels = Kernels(("head_draw",))
    arguments = (leaves, decoder_leaves, tokens, length, params)
    outputs = run(kernels, program, *arguments)
    assert kernels.refused == {}
    for a, b in zip(outputs, run(Kernels(), program, *arguments), strict=True):
        assert a.tolist() == b.tolist()


def test_what_a_kernel_does_not_take_goes_through_xla_and_says_why(target):
    definition, leaves = split(nnx.clone(target))
    wide = [leaf.astype(jnp.float32) for leaf in leaves]
    kernels = Kernels(("attention", "qk_norm_rope", "matmul"))

    def program(leaves, tokens):
        merged = definition.merge(leaves)
        return merged(tokens, merged.init_cache(1, 128))[0]

    outputs = run(kernels, program, tuple(wide), jnp.zeros((1, 2), jnp.int32))
    assert np.isfinite(np.asarray(outputs)).all()
    assert "bf16" in next(iter(kernels.refused["attention"]))
    assert kernels.refused.keys() >= {"attention", "matmul"}
