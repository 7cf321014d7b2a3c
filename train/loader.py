"""Batches from any random-access source: a grain pipeline whose position is one number.

Only row numbers are shuffled and cut into global batches; then each process reads its own rows of each. So any number
of processes sees the same global batches in the same order.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from train.batch import Batch

NUM_READERS = 2
NUM_AHEAD = 4  # batches read before they are asked for


@runtime_checkable
class Source(Protocol):
    """Rows of one length S: dicts of tokens int32[S], answer_mask bool[S], length int, id int."""

    def __len__(self) -> int:
        """Rows."""
        ...

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Row `index`; must not depend on earlier calls."""
        ...


class Loader(Iterator[Batch]):
    """Endless batches, shuffled anew each epoch; rows left over at the end of an epoch are dropped.

    Args:
        source: see `Source`.
        global_batch: rows of all processes together.
        seed: of the order.
        process_index, num_processes: this process takes the `process_index`-th part of every global batch.
    """

    def __init__(self, source: Source, global_batch: int, seed: int, *, process_index: int = 0, num_processes: int = 1):
        if global_batch < 1 or global_batch % num_processes:
            raise ValueError(f"global_batch {global_batch} cannot be split evenly over {num_processes} processes")
        self.batches_per_epoch = len(source) // global_batch
        if not self.batches_per_epoch:
            raise ValueError(f"the source has {len(source)} rows, fewer than one batch of {global_batch}")
        local_batch = global_batch // num_processes
        mine = slice(process_index * local_batch, (process_index + 1) * local_batch)
        self._rows = _global_rows(len(source), self.batches_per_epoch * global_batch, global_batch, seed)
        self._batches = _batches(self._rows, _reader(source, mine))

    def __next__(self) -> Batch:
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """The position as JSON: what `next` gives after `set_state` is what it would give now."""
        return self._batches.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to a position."""
        self._batches.set_state(state)

    def close(self) -> None:
        """Ends the reading threads."""
        self._batches.close()


def _global_rows(num_rows: int, num_used: int, global_batch: int, seed: int) -> Any:
    """An endless grain dataset of row numbers, int64[global_batch] each."""
    import grain  # an extra

    epoch = grain.MapDataset.range(num_rows).seed(seed).shuffle()[:num_used]
    return epoch.batch(global_batch, drop_remainder=True).repeat()


def _batches(rows: Any, read: Callable[[np.ndarray], Batch]) -> Any:
    import grain

    return iter(rows.map(read).to_iter_dataset(grain.ReadOptions(NUM_READERS, NUM_AHEAD)))


def _reader(source: Source, mine: slice) -> Callable[[np.ndarray], Batch]:
    def read(rows: Int[np.ndarray, "B"]) -> Batch:
        records = [source[int(row)] for row in rows[mine]]
        return Batch(
            tokens=np.stack([np.asarray(record["tokens"], np.int32) for record in records]),
            answer_mask=np.stack([np.asarray(record["answer_mask"], np.bool_) for record in records]),
            length=np.array([record["length"] for record in records], np.int32),
            ids=np.array([record["id"] for record in records], np.int32),
        )

    return read
