"""SwiGLU in plain jnp: the definition that the kernel is held to."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def swiglu(gate_up: Float[Array, "T twice"]) -> Float[Array, "T F"]:
    """`silu(gate) * up` of rows [T, 2 F] that hold gate and up one after the other; fp32, rounded once."""
    gate, up = jnp.split(gate_up.astype(jnp.float32), 2, axis=-1)
    return (jax.nn.silu(gate) * up).astype(gate_up.dtype)
