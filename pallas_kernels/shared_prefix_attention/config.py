"""How the attention is cut into blocks of the grid."""

from dataclasses import dataclass

from pallas_kernels.shared_prefix_attention.rows import RowTiles

NUM_CORES = 132  # streaming multiprocessors of an H200
SPLIT_SLOTS = 512  # of the capacity that a split has at least where there are many rows
MIN_SLOTS = 64  # keys of a product: the contraction of one swizzled tile


@dataclass(frozen=True, kw_only=True)
class SharedPrefixConfig:
    """Sizes that only speed depends on.

    Attributes:
        slots: context slots of a step, a multiple of 64.
        stages: steps whose keys and values are on their way or in shared memory; at least one a warpgroup.
        num_splits: blocks of the grid that share the context of a row.
        warpgroups: row tiles of a block of the grid; divides the row tiles.
    """

    slots: int = MIN_SLOTS
    stages: int
    num_splits: int
    warpgroups: int

    def __post_init__(self):
        if self.slots % MIN_SLOTS or self.slots <= 0:
            raise ValueError(f"slots must be a multiple of {MIN_SLOTS}, got {self.slots}")
        if not 1 <= self.warpgroups <= self.stages:
            raise ValueError(f"need 1 <= warpgroups <= stages, got {self.warpgroups} and {self.stages}")
        if self.num_splits < 1:
            raise ValueError(f"num_splits must be positive, got {self.num_splits}")

    @classmethod
    def for_shape(cls, tiles: RowTiles, num_heads: int, capacity: int, *, has_own: bool) -> "SharedPrefixConfig":
        """About one block a core, and a step for each while the cache is half full.

        Args:
            tiles: the rows of one kv head.
            num_heads: kv heads of all requests.
            capacity: S.
            has_own: whether blocks have keys of their own, which take one split more.
        """
        is_small = tiles.num_tiles == 2 and not has_own
        warpgroups = 2 if tiles.num_tiles % 2 == 0 and not is_small else 1
        blocks = num_heads * tiles.num_tiles // warpgroups
        # Two blocks of one warpgroup fit on a core: then the own keys need none to themselves.
        num_splits = NUM_CORES // blocks - (has_own and warpgroups > 1)
        # The parts of many rows take longer to write and merge than a short context to read. H200, 2,048 slots, half of
        # them in use, 96 rows a head, microseconds with the merge: 8 parts 11.9, 16 12.4, 4 13.1, 4 of two warpgroups
        # 15.3; 256 rows and own keys: 4 parts 12.8, 8 16.0.
        slots = 2 * MIN_SLOTS if tiles.num_tiles == 1 else SPLIT_SLOTS // 2 if is_small else SPLIT_SLOTS
        return cls(
            stages=2 * warpgroups,
            num_splits=max(min(num_splits, capacity // slots), 1),
            warpgroups=warpgroups,
        )
