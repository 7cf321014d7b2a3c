"""What logits say about the target's draw, seen from the draft side.

The draw is `argmax(logits / T + Gumbel(fold_in(key, t)))`, and the noise of a position is known before the position is
verified. Draft and decoder may therefore add the same noise to their own logits (`design.md` section 4, noise-coupled
drafting): the arg-max then predicts the draw itself, and a softmax over the perturbed logits says how sure that is.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jetspec_jax.decoding.row_params import RowParams, SamplingSpec
from jetspec_jax.decoding.sampling import position_noise


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Evidence:
    """Temperature and, if coupled, the noise of a window of positions.

    Attributes:
        temperature: [B]; 0 for greedy rows, whose logits are taken as they are.
        base: [B], first position of the window.
        noise: [B, P, V], of positions `base .. base + P - 1`; None when nothing is coupled.
    """

    temperature: Float[Array, "B"]
    base: Int[Array, "B"]
    noise: Float[Array, "B P V"] | None

    @classmethod
    def of_window(
        cls,
        params: RowParams,
        spec: SamplingSpec,
        base: Int[Array, "B"],
        num_positions: int,
        vocab_size: int,
        *,
        couple_noise: bool,
    ) -> "Evidence":
        """Draws the noise of a window once, however many outcome rows will look at a position."""
        if not (spec.samples and couple_noise):
            return cls(params.temperature, base, None)
        positions = base[:, None] + jnp.arange(num_positions, dtype=jnp.int32)[None, :]
        return cls(params.temperature, base, position_noise(params.key, positions, vocab_size))

    def __call__(
        self, logits: Float[Array, "B *rows V"], positions: Int[Array, "B *rows"]
    ) -> Float[Array, "B *rows V"]:
        """Logits about the tokens at `positions`, scaled like the draw's and with its noise if coupled."""
        temperature = self.temperature.reshape(-1, *[1] * (logits.ndim - 1))
        is_greedy = temperature == 0
        scaled = logits / jnp.where(is_greedy, 1.0, temperature)
        if self.noise is None:
            return jnp.where(is_greedy, logits, scaled)
        offsets = positions - self.base.reshape(-1, *[1] * (positions.ndim - 1))
        noise = jax.vmap(lambda table, rows: jnp.take(table, rows, axis=0, mode="clip"))(self.noise, offsets)
        return jnp.where(is_greedy, logits, scaled + noise)
