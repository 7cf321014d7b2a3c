"""Tokens from states: head, noise and arg-max."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from benchmarks.cases.case import Case, normal
from benchmarks.chains import Inputs
from jetspec_jax.ops.first_argmax import first_argmax
from jetspec_jax.ops.linear import linear
from jetspec_jax.ops.quantized_weight import QuantizedWeight
from pallas_kernels.head_draw import bytes_moved, candidate_configs, default_config, head_draw, reference
from pallas_kernels.head_draw import shapes as named

TEMPERATURE = 0.7
QUANTISED = {"int8": jnp.int8, "fp8": jnp.float8_e4m3fn}


@dataclass(frozen=True)
class Draws:
    """Rows, and how they are drawn.

    Attributes:
        rows: their shape.
        kind: `greedy`: token and score of each row; `noise`: at a temperature, with the position's noise, and with the
            log of the sum of exponentials, as the draft side draws; `int8`, `fp8`: the same from a quantised head.
    """

    rows: named.Rows
    kind: Literal["greedy", "noise", "int8", "fp8"]


SHAPES = {
    f"{name}/{kind}": Draws(rows, kind)
    for name, rows in named.SHAPES.items()
    # Verification reads the target's own head.
    for kind in (("greedy", "noise", *QUANTISED) if "draft" in name else ("greedy", "noise"))
}


def case(name: str, shape: Draws) -> Case:
    """The head of a step."""
    rows, width, vocab_size = shape.rows.num_rows, shape.rows.width, shape.rows.vocab_size
    is_greedy = shape.kind == "greedy"
    sizes = (rows, width, vocab_size, QUANTISED.get(shape.kind, jnp.bfloat16))

    def make(key) -> Inputs:
        keys = jax.random.split(key, 3)
        weight, scale = normal(keys[0], vocab_size, width, scale=width**-0.5), None
        hidden = normal(keys[1], rows, width)
        if shape.kind in QUANTISED:
            quantised = QuantizedWeight.of(weight, shape.kind)
            hidden, weight, scale = quantised.rounded(hidden), quantised.values, quantised.scale
        noise = None
        if not is_greedy:
            noise = (jax.random.bits(keys[2], (rows, 2), jnp.uint32), jnp.full((rows,), TEMPERATURE))
        return Inputs((hidden, weight, scale, noise))

    def fused(function, hidden, weight, scale, noise, **options):
        if noise is not None:
            options |= {"noise_keys": noise[0], "temperature": noise[1], "noise_in_logsumexp": True}
        drawn = function(hidden, weight, scale=scale, **options)
        return (drawn.tokens, drawn.score, None if is_greedy else drawn.logsumexp), ()

    def xla(hidden, weight, scale, noise):
        hidden = hidden.astype(jnp.bfloat16)
        weight = weight if scale is None else QuantizedWeight(weight, scale, hidden.dtype)
        scores = linear(hidden, weight, out_dtype=jnp.float32)
        if noise is not None:
            keys, temperature = jax.random.wrap_key_data(noise[0], impl="threefry2x32"), noise[1]
            drawn = jax.vmap(lambda key: jax.random.gumbel(key, (vocab_size,), jnp.float32))(keys)
            scores = scores / temperature[:, None] + drawn
        tokens, top = first_argmax(scores)
        return (tokens, top, None if is_greedy else jax.nn.logsumexp(scores, axis=-1)), ()

    return Case(
        name=name,
        # A config is given, so that few rows are measured as well, which the kernel leaves to XLA by itself.
        kernel=lambda *arrays, config=None: fused(head_draw, *arrays, config=config or default_config(*sizes)),
        xla=xla,
        reference=lambda *arrays: fused(reference.head_draw, *arrays),
        make=make,
        num_bytes=bytes_moved(*sizes),
        configs=lambda: candidate_configs(*sizes),
    )


__all__ = ["SHAPES", "case"]
