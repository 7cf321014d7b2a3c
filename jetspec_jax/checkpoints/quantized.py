"""Int8 storage of matrices: one scale a row, symmetric; on disk only, in memory weights are floats.

`NAME` holds q [O, I] int8 and `NAME.scale` s [O] float32 with w = s q, s the largest magnitude of the row over 127; no
element is off by more than s / 2. Vectors stay floats.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int8

from jetspec_jax.checkpoints.reader import CheckpointError, TensorReader

SCALE_SUFFIX = ".scale"
_MOST = 127


def quantize_rows(weight: Float[np.ndarray, "O I"]) -> tuple[Int8[np.ndarray, "O I"], Float[np.ndarray, "O"]]:
    """Integers and scales of a matrix; a row of zeros has scale 1."""
    weight = weight.astype(np.float32)
    largest = np.abs(weight).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest / np.float32(_MOST), np.float32(1.0)).astype(np.float32)
    # A row of denormals may have a scale that rounds to 0.
    scale = np.maximum(scale, np.finfo(np.float32).tiny)
    return np.clip(np.rint(weight / scale[:, None]), -_MOST, _MOST).astype(np.int8), scale


def dequantize_rows(integers: Int8[np.ndarray, "O I"], scale: Float[np.ndarray, "O"]) -> Float[np.ndarray, "O I"]:
    """The matrix, float32."""
    return integers.astype(np.float32) * scale.astype(np.float32)[:, None]


@dataclass(frozen=True)
class DequantizingReader:
    """A `TensorReader` that joins int8 matrices with their scales; everything else passes through.

    Integers without scales stay as they are, and so do scales without integers: the weight table refuses both by name.
    """

    stored: TensorReader

    def __post_init__(self):
        for key in self._quantized:
            shape, found = self.stored.shape(key), self.stored.shape(key + SCALE_SUFFIX)
            if found != shape[:1] or len(shape) != 2:
                raise CheckpointError(f"{self.path}: {key} {list(shape)} has scales of shape {list(found)}")

    @cached_property
    def _quantized(self) -> frozenset[str]:
        found = frozenset(self.stored.keys())
        return frozenset(
            key for key in found if key + SCALE_SUFFIX in found and self.stored.dtype(key) == np.dtype(np.int8)
        )

    @property
    def path(self) -> Path:
        """Where the tensors are."""
        return self.stored.path

    def keys(self) -> tuple[str, ...]:
        """Names of all tensors, the scales of int8 ones left out."""
        stored, scales = self.stored.keys(), {key + SCALE_SUFFIX for key in self._quantized}
        return tuple(key for key in stored if key not in scales)

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of one tensor."""
        return self.stored.shape(key)

    def dtype(self, key: str) -> np.dtype:
        """float32 for an int8 matrix with scales, else as stored."""
        return np.dtype(np.float32) if key in self._quantized else self.stored.dtype(key)

    def stored_type(self, key: str) -> str:
        """Name of the type on disk."""
        return self.stored.stored_type(key)

    def num_bytes(self, key: str) -> int:
        """Bytes on disk, scales included."""
        scale = self.stored.num_bytes(key + SCALE_SUFFIX) if key in self._quantized else 0
        return self.stored.num_bytes(key) + scale

    def read(self, key: str) -> np.ndarray:
        """The tensor, dequantised."""
        if key not in self._quantized:
            return self.stored.read(key)
        scale = self.stored.read(key + SCALE_SUFFIX)
        if not np.isfinite(scale.astype(np.float32)).all():
            raise CheckpointError(f"{self.path}: the scales of {key} are not finite")
        return dequantize_rows(self.stored.read(key), scale)
