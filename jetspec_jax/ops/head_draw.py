"""Tokens straight from states: head, position noise and arg-max in one kernel, without logits in memory.

There is no XLA form here: whoever calls it has logits to fall back on (`ops/kernels.choose`).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jetspec_jax.ops.project import Weight
from jetspec_jax.ops.quantized_weight import QuantizedWeight


def head_draw(
    hidden: Float[Array, "B *rows D"],
    weight: Weight,
    *,
    temperature: Float[Array, "B"] | None,
    key: Key[Array, "B"] | None,
    positions: Int[Array, "B *rows"],
) -> tuple[Int[Array, "B *rows"], Float[Array, "B *rows"], Float[Array, "B *rows"]]:
    """First index of the largest score of each row: logits, over the temperature, plus the position's noise.

    Args:
        hidden: normalised states.
        weight: the head.
        temperature: 0 for greedy rows, which are neither scaled nor noised; None: all are greedy.
        key: of the requests' noise (`decoding/sampling.position_noise`); None adds none.
        positions: of the tokens that are drawn.

    Returns:
        Tokens, their scores (not finite where the logits were not), and the log of the sum of the exponentials of all
        scores.

    Raises:
        NotImplementedError: the kernel does not take these arguments.
    """
    from pallas_kernels.head_draw import head_draw as kernel  # where it is taken: see `ops/linear.py`

    scale = None
    if isinstance(weight, QuantizedWeight):
        if not (weight.is_reordered or weight.is_fp8):
            raise NotImplementedError(f"the kernel reads inputs in groups of 16, got {list(weight.shape)}")
        hidden, weight, scale = weight.rounded(hidden), weight.values, weight.scale
    elif weight.ndim != 2:
        raise NotImplementedError(f"the kernel reads weights [O, I], got {list(weight.shape)}")
    rows = positions.shape

    def of_rows(per_request: Array) -> Array:
        """One value a row."""
        expanded = jnp.expand_dims(per_request, range(1, len(rows)))
        return jnp.broadcast_to(expanded, rows).reshape(-1)

    noise_keys = None
    if key is not None and temperature is not None:
        if (kind := str(jax.random.key_impl(key))) != "threefry2x32":
            raise NotImplementedError(f"the kernel draws the noise of threefry2x32 keys, got {kind}")
        keys = jax.vmap(jax.random.fold_in)(of_rows(key), positions.reshape(-1))
        noise_keys = jax.random.key_data(keys)
    drawn = kernel(
        hidden.reshape(-1, hidden.shape[-1]),
        weight,
        scale=scale,
        noise_keys=noise_keys,
        temperature=None if temperature is None else of_rows(temperature),
        noise_in_logsumexp=True,
    )
    return drawn.tokens.reshape(rows), drawn.score.reshape(rows), drawn.logsumexp.reshape(rows)
