"""What a call multiplies: the static facts that tiles are chosen by, and the bytes that any choice must move."""

from dataclasses import dataclass

import jax.numpy as jnp


@dataclass(frozen=True, kw_only=True)
class Product:
    """`x [T, I]` times `weight [O, I]`, transposed, with what is fused around it.

    Attributes:
        num_rows: T.
        num_inputs: I.
        num_outputs: O, rows of the weight; with SwiGLU gate and up together.
        weight_dtype: bfloat16, int8 or float8_e4m3fn.
        out_dtype: bfloat16, float32, or float8_e4m3fn for a product with an fp8 weight that follows.
        norm_eps: of the norm of x; None: there is no norm.
        has_scale: outputs have a scale each.
        has_residual: something is added last.
        is_swiglu: the result is `silu(gate) * up`.
    """

    num_rows: int
    num_inputs: int
    num_outputs: int
    weight_dtype: str = "bfloat16"
    out_dtype: str = "bfloat16"
    norm_eps: float | None = None
    has_scale: bool = False
    has_residual: bool = False
    is_swiglu: bool = False

    @property
    def x_dtype(self) -> str:
        """fp8 with an fp8 weight, otherwise bf16."""
        return self.weight_dtype if self.weight_dtype == "float8_e4m3fn" else "bfloat16"

    @property
    def has_norm(self) -> bool:
        """x is normalised first."""
        return self.norm_eps is not None

    @property
    def width(self) -> int:
        """Of the result."""
        return self.num_outputs // 2 if self.is_swiglu else self.num_outputs

    @property
    def weight_bytes(self) -> int:
        """Of the weight without its scales."""
        return self.num_outputs * self.num_inputs * jnp.dtype(self.weight_dtype).itemsize


def bytes_moved(product: Product) -> int:
    """Bytes to and from memory if each operand is read once and the result written once; scales count as fp32."""
    x = product.num_rows * product.num_inputs * jnp.dtype(product.x_dtype).itemsize
    norm = product.has_norm * product.num_inputs * 2
    scales = 4 * product.has_scale * product.num_outputs
    out = product.num_rows * product.width * jnp.dtype(product.out_dtype).itemsize
    return product.weight_bytes + scales + x + norm + out * (1 + product.has_residual)
