"""A softmax over keys that came in parts: one a split of the context, one for a block's own keys."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.shared_prefix_attention.rows import RowTiles


class Parts(NamedTuple):
    """Sums of exp2(score - top) over the keys of each part, and of the values weighted so; scores are in base 2.

    A part without keys has weight 0: its sums are 0 and its top is the lowest there is.
    """

    out: Float[Array, "B K parts tile_rows H"]
    top: Float[Array, "B K parts tile_rows"]
    total: Float[Array, "B K parts tile_rows"]

    def merged(self, tiles: RowTiles) -> Float[Array, "B R T K G H"]:
        """The attention over all keys.

        Everything is widened to the shape of `out` and summed part by part: XLA then makes one elementwise kernel of
        it, where reductions, or weights of their own shape, would be kernels of their own.
        """
        wide = [jnp.broadcast_to(x[..., None], self.out.shape) for x in (self.top, self.total)]
        parts = [[tiles.gather(x[:, :, i]) for x in (self.out, *wide)] for i in range(self.out.shape[2])]
        highest = parts[0][1]
        for _, top, _ in parts[1:]:
            highest = jnp.maximum(highest, top)
        weights = [jnp.exp2(top - highest) for _, top, _ in parts]
        out = sum(weight * out for weight, (out, _, _) in zip(weights, parts, strict=True))
        return out / sum(weight * total for weight, (_, _, total) in zip(weights, parts, strict=True))
