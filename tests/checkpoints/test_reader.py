import numpy as np
import pytest

from jetspec_jax.checkpoints.reader import CheckpointError, map_ahead, read_bytes


def test_reads_a_stretch_of_a_file(tmp_path):
    (tmp_path / "x").write_bytes(b"abcdef")
    np.testing.assert_array_equal(read_bytes(tmp_path / "x", 2, 3), np.frombuffer(b"cde", np.uint8))


def test_refuses_to_read_beyond_the_end(tmp_path):
    (tmp_path / "x").write_bytes(b"abcdef")
    with pytest.raises(CheckpointError, match="x: expected 7 bytes, found 6"):
        read_bytes(tmp_path / "x", 4, 3)


def test_map_ahead_keeps_the_order():
    assert list(map_ahead(lambda x: x * x, range(10), num_threads=3)) == [x * x for x in range(10)]


def test_map_ahead_runs_no_further_than_its_threads():
    started = []
    results = map_ahead(started.append, range(10), num_threads=2)
    next(results)
    assert len(started) <= 2
    results.close()


def test_map_ahead_raises_what_a_thread_raised():
    with pytest.raises(ZeroDivisionError):
        list(map_ahead(lambda x: 1 // x, [1, 0]))
