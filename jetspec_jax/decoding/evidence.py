"""What logits say about the target's draw, seen from the draft side.

The draw is `argmax(filtered / T + Gumbel(fold_in(key, t)))`, and the noise of a position is known before the position
is verified. Draft and decoder may therefore add the same noise to their own logits (noise-coupled drafting, `design.md`
section 4): the arg-max then predicts the draw itself. Bias and truncation (top-k, top-p, min-p) are applied as in the
draw, so that nothing is guessed that cannot be drawn; penalties and user functions, which need the text, are not.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jetspec_jax.decoding.filters import add_bias, truncate
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec
from jetspec_jax.decoding.sampling import position_noise


@dataclass(frozen=True)
class Evidence:
    """Sampling options and, if coupled, the noise of a window of positions; lives inside a trace.

    Attributes:
        params, spec: sampling options.
        base: [B], first position of the window.
        noise: [B, P, V], of positions `base .. base + P - 1`; None when nothing is coupled.
    """

    params: RowParams
    spec: SamplingSpec
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
            return cls(params, spec, base, None)
        positions = base[:, None] + jnp.arange(num_positions, dtype=jnp.int32)[None, :]
        return cls(params, spec, base, position_noise(params.key, positions, vocab_size))

    @property
    def is_plain(self) -> bool:
        """Nothing is done to logits but scaling and noise."""
        return not (self.spec.biases or self.spec.truncates)

    def __call__(
        self, logits: Float[Array, "B *rows V"], positions: Int[Array, "B *rows"]
    ) -> Float[Array, "B *rows V"]:
        """Logits about the tokens at `positions`, filtered and scaled like the draw's and with its noise if coupled.

        Greedy rows are not scaled.
        """
        flat = logits.reshape(logits.shape[0], -1, logits.shape[-1])
        if self.spec.biases:
            flat = add_bias(flat, self.params)
        if self.spec.samples:
            is_greedy = (self.params.temperature == 0)[:, None, None]
            scaled = flat / jnp.where(is_greedy, 1.0, self.params.temperature[:, None, None])
            if self.spec.truncates:
                scaled = truncate(scaled, self.params, by_top_k=self.spec.uses_top_k, by_top_p=self.spec.uses_top_p)
            if self.noise is not None:
                offsets = positions.reshape(positions.shape[0], -1) - self.base[:, None]
                rows = jax.vmap(lambda table, at: jnp.take(table, at, axis=0, mode="clip"))(self.noise, offsets)
                scaled = scaled + rows
            flat = jnp.where(is_greedy, flat, scaled)
        return flat.reshape(logits.shape)

    def of_outcomes(
        self, logits: Float[Array, "B T V"], positions: Int[Array, "B T"], decision_temperature: float
    ) -> Float[Array, "B T V"]:
        """The same as log-odds of what will be drawn, for outcome scores.

        Where the draw is an arg-max of something known (a greedy row, or a coupled one), chance is not what makes it
        uncertain, only the decoder's error is: logits are then divided by `decision_temperature`, the size of that
        error. A softmax over them as they are would believe in outcomes that cannot happen.
        """
        is_decided = self.params.temperature == 0 if self.noise is None else jnp.ones_like(self.params.temperature > 0)
        scale = jnp.where(is_decided, decision_temperature, 1.0)[:, None, None]
        return self(logits, positions) / scale
