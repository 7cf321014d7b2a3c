"""Data order: shuffled anew each epoch, the same after a resume (C34) and for any number of processes."""

from contextlib import closing

import numpy as np
import pytest

from train.loader import Loader
from train.testing import ToySource

NUM_ROWS, GLOBAL_BATCH = 29, 4  # 7 batches an epoch, one row left over
EPOCH = 7


def ids_of(num_batches: int, *, state: dict | None = None, **options) -> np.ndarray:
    with closing(Loader(ToySource(NUM_ROWS), GLOBAL_BATCH, 3, **options)) as loader:
        if state is not None:
            loader.set_state(state)
        return np.stack([next(loader).ids for _ in range(num_batches)])


def test_an_epoch_has_no_row_twice_drops_the_rest_and_the_next_is_shuffled_anew():
    ids = ids_of(3 * EPOCH).reshape(3, -1)
    for epoch in ids:
        assert len(set(epoch.tolist())) == EPOCH * GLOBAL_BATCH
        assert not np.array_equal(epoch, np.sort(epoch))
    assert not np.array_equal(ids[0], ids[1])
    assert set(ids.ravel().tolist()) == set(range(NUM_ROWS))  # other rows are dropped each time


def test_batches_hold_the_rows_of_the_source():
    with closing(Loader(ToySource(NUM_ROWS), GLOBAL_BATCH, 3)) as loader:
        batch = next(loader)
    assert [array.dtype.name for array in (batch.tokens, batch.answer_mask, batch.length, batch.ids)] == [
        "int32",
        "bool",
        "int32",
        "int32",
    ]
    for row, record in enumerate(ToySource(NUM_ROWS)[int(i)] for i in batch.ids):
        np.testing.assert_array_equal(batch.tokens[row], record["tokens"])
        np.testing.assert_array_equal(batch.answer_mask[row], record["answer_mask"])


@pytest.mark.parametrize(
    "stop", [0, 3, EPOCH, EPOCH + 1, 2 * EPOCH], ids=["start", "mid", "epoch-end", "after", "second-end"]
)
def test_a_restored_position_goes_on_with_the_same_batches(stop):
    whole = ids_of(3 * EPOCH)
    with closing(Loader(ToySource(NUM_ROWS), GLOBAL_BATCH, 3)) as loader:
        for _ in range(stop):
            next(loader)
        state = loader.get_state()
    np.testing.assert_array_equal(ids_of(3 * EPOCH - stop, state=state), whole[stop:])


@pytest.mark.parametrize("num_processes", [2, 4])
def test_processes_share_each_global_batch_in_order(num_processes):
    parts = [ids_of(2 * EPOCH, process_index=p, num_processes=num_processes) for p in range(num_processes)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), ids_of(2 * EPOCH))


def test_a_process_reads_only_its_own_rows(monkeypatch):
    monkeypatch.setattr("train.loader.NUM_READERS", 0)  # nothing is read ahead
    monkeypatch.setattr("train.loader.NUM_AHEAD", 0)
    read = []

    class Recording(ToySource):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    with closing(Loader(Recording(8), 8, 0, process_index=1, num_processes=2)) as loader:
        ids = next(loader).ids
    assert read == ids.tolist()
    assert len(ids) == 4


@pytest.mark.parametrize(
    ("num_rows", "options", "message"),
    [
        (3, {}, "3 rows, fewer than one batch of 4"),
        (20, {"num_processes": 3}, "global_batch 4 cannot be split evenly over 3 processes"),
    ],
)
def test_refuses(num_rows, options, message):
    with pytest.raises(ValueError, match=message):
        Loader(ToySource(num_rows), 4, 0, **options)
