"""Where the query rows of blocks lie: a tile is 64 rows, all of one block and one kv head."""

from dataclasses import dataclass
from math import ceil

import jax.numpy as jnp
from jaxtyping import Array, Shaped

TILE_ROWS = 64  # the M of wgmma
PIECE_ROWS = 8  # rows of a swizzled tile of shared memory: what can be placed on its own


@dataclass(frozen=True)
class RowTiles:
    """Rows of R blocks of T positions for the G query heads of one kv head.

    A block's rows are its heads, one below the other. A head is cut into pieces of 8 positions; if T > 8 is no multiple
    of 8, the last piece starts at T - 8 and repeats some of the one before, so that nothing beyond T is read. Pieces
    are filled up to 8 rows, blocks to whole tiles; rows that fill up mean nothing.
    Example: T = 17, G = 4 -> pieces at positions 0, 8, 9; heads at rows 0, 24, 48, 72; 96 rows in two tiles.

    Attributes:
        num_blocks: R.
        num_rows: T.
        num_groups: G.
    """

    num_blocks: int
    num_rows: int
    num_groups: int

    @property
    def head_pieces(self) -> int:
        """Pieces of one head of a block."""
        return ceil(self.num_rows / PIECE_ROWS)

    @property
    def is_ragged(self) -> bool:
        """Whether the last piece of a head repeats positions."""
        return self.num_rows > PIECE_ROWS and self.num_rows % PIECE_ROWS > 0

    @property
    def tiles_per_block(self) -> int:
        """Tiles of one block."""
        return ceil(self.num_groups * self.head_pieces * PIECE_ROWS / TILE_ROWS)

    @property
    def num_tiles(self) -> int:
        """Tiles of all blocks."""
        return self.num_blocks * self.tiles_per_block

    def spread(self, x: Shaped[Array, "B R T *rest"]) -> Shaped[Array, "B tile_rows *rest"]:
        """What holds for a position, for every row of the tiles; zero on rows that fill up."""
        if self.is_ragged:
            repeated = x[:, :, self.num_rows - PIECE_ROWS :]
            x = jnp.concatenate([x[:, :, : (self.head_pieces - 1) * PIECE_ROWS], repeated], axis=2)
        x = _fill(x, self.head_pieces * PIECE_ROWS)
        x = jnp.broadcast_to(x[:, :, None], (*x.shape[:2], self.num_groups, *x.shape[2:]))
        x = _fill(x.reshape(*x.shape[:2], -1, *x.shape[4:]), self.tiles_per_block * TILE_ROWS)
        return x.reshape(x.shape[0], -1, *x.shape[3:])

    def gather(self, x: Shaped[Array, "B K tile_rows *rest"]) -> Shaped[Array, "B R T K G *rest"]:
        """Takes the rows of the queries out of the tiles."""
        batch, kv_heads, _, *rest = x.shape
        x = x.reshape(batch, kv_heads, self.num_blocks, -1, *rest)
        x = x[:, :, :, : self.num_groups * self.head_pieces * PIECE_ROWS]
        x = x.reshape(*x.shape[:3], self.num_groups, -1, *rest)
        if self.is_ragged:
            tail = self.num_rows % PIECE_ROWS
            x = jnp.concatenate([x[:, :, :, :, : self.num_rows - tail], x[:, :, :, :, -tail:]], axis=4)
        x = x[:, :, :, :, : self.num_rows]
        return x.transpose(0, 2, 4, 1, 3, *range(5, x.ndim))


def _fill(x: Shaped[Array, "B R U *rest"], size: int) -> Shaped[Array, "B R size *rest"]:
    return jnp.pad(x, [(0, 0), (0, 0), (0, size - x.shape[2])] + [(0, 0)] * (x.ndim - 3))
