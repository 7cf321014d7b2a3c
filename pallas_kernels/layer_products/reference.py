"""The products of a layer in plain jnp: the definition that the kernel is held to."""

from jaxtyping import Array, Float

from pallas_kernels.skinny_matmul import reference


def layer_products(
    heads: Float[Array, "T heads"],
    x: Float[Array, "T D"],
    out: Float[Array, "D heads"],
    mlp_norm: tuple[Float[Array, " D"], float],
    gate_up: Float[Array, "twice D"],
    down: Float[Array, "D F"],
    next_norm: tuple[Float[Array, " D"], float] | None = None,
    qkv: Float[Array, "O D"] | None = None,
) -> tuple[Float[Array, "T D"], Float[Array, "T O"] | None]:
    """What follows a layer's attention, up to the next layer's q, k and v.

    ```
    y = x + heads out^T
    z = y + down(silu(gate(norm(y))) * up(norm(y)))
    return z, norm'(z) qkv^T
    ```

    Args:
        heads: results of attention, the heads joined.
        x: residual stream before attention's output is added.
        mlp_norm, next_norm: scale and epsilon of an RMSNorm.
        gate_up: rows of gate, then those of up.
        qkv: of the next layer, None behind the last.
    """
    product = reference.skinny_matmul
    y = product(heads, out, residual=x)
    z = product(product(y, gate_up, norm=mlp_norm, swiglu=True), down, residual=y)
    return z, None if qkv is None else product(z, qkv, norm=next_norm)
