"""Realistic products of a decode step, for tests and benchmarks."""

from dataclasses import replace

from pallas_kernels.skinny_matmul.product import Product

# One token, a verified block, two blocks' worth of foresight, and drafts of four and eight blocks.
NUM_ROWS = (1, 17, 34, 64, 128)

QWEN3, SMOLLM2 = 1e-6, 1e-5  # epsilon of the norms

# Each with what a decoder layer has around it; 17 rows.
SHAPES = {
    "qwen3-8b-qkv": Product(num_rows=17, num_inputs=4096, num_outputs=6144, norm_eps=QWEN3),
    "qwen3-8b-o": Product(num_rows=17, num_inputs=4096, num_outputs=4096, has_residual=True),
    "qwen3-8b-gate-up": Product(num_rows=17, num_inputs=4096, num_outputs=24576, norm_eps=QWEN3, is_swiglu=True),
    "qwen3-8b-down": Product(num_rows=17, num_inputs=12288, num_outputs=4096, has_residual=True),
    "qwen3-8b-head": Product(num_rows=17, num_inputs=4096, num_outputs=151936, norm_eps=QWEN3, out_dtype="float32"),
    "smollm2-135m-qkv": Product(num_rows=17, num_inputs=576, num_outputs=960, norm_eps=SMOLLM2),
    "smollm2-135m-o": Product(num_rows=17, num_inputs=576, num_outputs=576, has_residual=True),
    "smollm2-135m-gate-up": Product(num_rows=17, num_inputs=576, num_outputs=3072, norm_eps=SMOLLM2, is_swiglu=True),
    "smollm2-135m-down": Product(num_rows=17, num_inputs=1536, num_outputs=576, has_residual=True),
    "smollm2-135m-head": Product(num_rows=17, num_inputs=576, num_outputs=49152, norm_eps=SMOLLM2, out_dtype="float32"),
}


def with_int8(product: Product) -> Product:
    """The same product of a quantised weight."""
    return replace(product, weight_dtype="int8", has_scale=True)


def with_fp8(product: Product) -> Product:
    """The same of rows that are rounded too, behind their norm."""
    return replace(product, weight_dtype="float8_e4m3fn", has_scale=True, norm_eps=None)


def in_fp8_layer(product: Product) -> Product:
    """The same where every weight is fp8: SwiGLU's result is rounded for the product that follows."""
    fp8 = with_fp8(product)
    return replace(fp8, out_dtype=fp8.weight_dtype) if fp8.is_swiglu else fp8
