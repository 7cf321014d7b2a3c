"""What every checkpoint format offers to the loader, and the one error it raises."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np


class CheckpointError(ValueError):
    """A checkpoint that is damaged, incomplete, or not the model its config describes."""


@runtime_checkable
class TensorReader(Protocol):
    """Named tensors on disk. Opening validated the file; only `read` touches tensor data."""

    path: Path

    def keys(self) -> tuple[str, ...]:
        """Names of all tensors, Hugging Face style."""
        ...

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of what `read` returns."""
        ...

    def dtype(self, key: str) -> np.dtype:
        """Dtype of what `read` returns."""
        ...

    def stored_type(self, key: str) -> str:
        """Name of the type on disk (`BF16`, `Q4_1`)."""
        ...

    def num_bytes(self, key: str) -> int:
        """Bytes on disk."""
        ...

    def read(self, key: str) -> np.ndarray:
        """The tensor, in memory that the caller owns. Thread safe."""
        ...


def read_bytes(path: Path, offset: int, num_bytes: int) -> np.ndarray:
    """Reads a stretch of a file into fresh memory; not a mapping, whose missing bytes could read as zeros.

    Returns:
        Array [num_bytes] of uint8.

    Raises:
        CheckpointError: the file ends early.
    """
    out = np.empty(num_bytes, np.uint8)
    view, done = memoryview(out), 0
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while done < num_bytes:
            got = file.readinto(view[done:])
            if not got:
                raise CheckpointError(f"{path}: expected {offset + num_bytes} bytes, found {offset + done}")
            done += got
    return out


def map_ahead(function: Callable[[Any], Any], items: Iterable[Any], num_threads: int = 4) -> Iterator[Any]:
    """`map` in order with threads working ahead of the consumer, at most `num_threads` results waiting in memory."""
    with ThreadPoolExecutor(num_threads) as pool:
        waiting: deque = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
