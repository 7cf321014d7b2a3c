"""The draw of rows of hidden states in plain jnp, logits and noise in memory: the definition the kernel is held to."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int8, UInt32

from pallas_kernels.fragment_order import natural_order
from pallas_kernels.head_draw.result import HeadDraw


def head_draw(
    hidden: Float[Array, "T D"],
    head: Float[Array, "V D"] | Int8[Array, "V D"],
    *,
    scale: Float[Array, "V"] | None = None,
    noise_keys: UInt32[Array, "T 2"] | None = None,
    temperature: Float[Array, "T"] | None = None,
    targets: Int[Array, "T"] | None = None,
    noise_in_logsumexp: bool = False,
) -> HeadDraw:
    """Draws a token for each row; see `hopper.head_draw` for the arguments."""
    head = natural_order(head) if head.dtype == jnp.int8 else head
    hidden = hidden.astype(jnp.bfloat16)  # which fp8 is exact in
    logits = jnp.einsum("td,vd->tv", hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)
    if scale is not None:
        logits = logits * scale[None, :]
    scaled = logits
    if temperature is not None:
        scaled = logits / jnp.where(temperature == 0, 1.0, temperature)[:, None]
    scores = scaled
    if noise_keys is not None:
        keys = jax.random.wrap_key_data(noise_keys, impl="threefry2x32")
        noise = jax.vmap(lambda key: jax.random.gumbel(key, (head.shape[0],), jnp.float32))(keys)
        scores = jnp.where((temperature == 0)[:, None], scaled, scaled + noise)
    score = jnp.max(scores, axis=1)
    index = jnp.arange(head.shape[0], dtype=jnp.int32)[None, :]
    tokens = jnp.min(jnp.where(scores == score[:, None], index, head.shape[0] - 1), axis=1)
    logsumexp = jax.nn.logsumexp(scores if noise_in_logsumexp else scaled, axis=1)
    of_target = None if targets is None else jnp.take_along_axis(scaled, targets[:, None], axis=1, mode="clip")[:, 0]
    return HeadDraw(tokens, score, logsumexp, of_target)
