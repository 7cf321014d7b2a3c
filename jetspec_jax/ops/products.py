"""Products of low-precision operands with an fp32 result, whose gradients are low-precision products too.

The plain derivative multiplies the fp32 cotangent with the other operand in fp32, which on GPUs is many times slower
than what it is the derivative of. Here the cotangent is rounded to the operands' dtype first; fp32 operands keep all.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# fp32 operands are multiplied in fp32: GPUs would otherwise use TF32, and a block and a single row would then differ
# enough to change the text. Without effect on bf16 operands.
HIGHEST = jax.lax.Precision.HIGHEST


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(subscripts: str, a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """`jnp.einsum(subscripts, a, b)` in fp32; each index must occur in two of a, b and the result."""
    return jnp.einsum(subscripts, a, b, precision=HIGHEST, preferred_element_type=jnp.float32)


def _forward(subscripts, a, b):
    return product(subscripts, a, b), (a, b)


def _backward(subscripts, operands, cotangent):
    a, b = operands
    inputs, out = subscripts.split("->")
    of_a, of_b = inputs.split(",")
    cotangent = cotangent.astype(jnp.result_type(a, b))

    def pulled(to, other, operand, like):
        grad = jnp.einsum(
            f"{out},{other}->{to}", cotangent, operand, precision=HIGHEST, preferred_element_type=like.dtype
        )
        return grad.astype(like.dtype)

    return pulled(of_a, of_b, b, a), pulled(of_b, of_a, a, b)


product.defvjp(_forward, _backward)
