"""Products of few rows with a weight, and what is fused around them."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from benchmarks.cases.case import Case, normal
from benchmarks.chains import Inputs
from jetspec_jax.ops.linear import gated_linear, linear
from jetspec_jax.ops.quantized_weight import QuantizedWeight
from pallas_kernels.skinny_matmul import Product, bytes_moved, candidate_configs, reference, skinny_matmul
from pallas_kernels.skinny_matmul import shapes as named

# The target reads its weights as they are, a row or a block at a time; the draft side 8 bits, for many blocks. Blocks
# of 17 and 34 rows come padded (`ops/kernels.missing_rows`).
VARIANTS = (("", 1), ("", 24), *((weights, rows) for weights in ("int8", "fp8") for rows in (40, 64, 128)))
FORMS = {"": lambda product: product, "int8": named.with_int8, "fp8": named.with_fp8}
OPS = {"bfloat16": "matmul", "int8": "int8_matmul", "float8_e4m3fn": "fp8_matmul"}
SHAPES = {
    f"{name}/{rows}{weights and '/'}{weights}": replace(FORMS[weights](product), num_rows=rows)
    for name, product in named.SHAPES.items()
    for weights, rows in VARIANTS
}


def case(name: str, product: Product) -> Case:
    """A product of one layer."""
    rows, inputs, outputs = product.num_rows, product.num_inputs, product.num_outputs
    out_dtype = jnp.dtype(product.out_dtype)

    def make(key) -> Inputs:
        keys = jax.random.split(key, 5)
        weight, scale = normal(keys[0], outputs, inputs, scale=inputs**-0.5), None
        x = normal(keys[3], rows, inputs)
        if product.has_scale:
            quantised = QuantizedWeight.of(weight, "fp8" if product.x_dtype == product.weight_dtype else "int8")
            x, weight, scale = quantised.rounded(x), quantised.values, quantised.scale
        norm_scale = normal(keys[1], inputs) if product.has_norm else None
        residual = normal(keys[2], rows, product.width, dtype=out_dtype) if product.has_residual else None
        return Inputs((x, weight, scale, norm_scale, residual))

    def fused(function, x, weight, scale, norm_scale, residual, **options):
        norm = (norm_scale, product.norm_eps) if product.has_norm else None
        options |= {"scale": scale, "norm": norm, "residual": residual, "swiglu": product.is_swiglu}
        return function(x, weight, out_dtype=out_dtype, **options), ()

    def xla(x, weight, scale, norm_scale, residual):
        x = x.astype(jnp.bfloat16)
        weight = weight if scale is None else QuantizedWeight(weight, scale, x.dtype)
        norm = (norm_scale, product.norm_eps) if product.has_norm else None
        if product.is_swiglu:
            return gated_linear(x, weight, norm=norm), ()
        return linear(x, weight, norm=norm, residual=residual, out_dtype=out_dtype), ()

    return Case(
        name=name,
        kernel=lambda *arrays, config=None: fused(skinny_matmul, *arrays, config=config),
        xla=xla,
        reference=lambda *arrays: fused(reference.skinny_matmul, *arrays),
        make=make,
        num_bytes=bytes_moved(product),
        configs=lambda: candidate_configs(product),
    )


__all__ = ["OPS", "SHAPES", "case"]
