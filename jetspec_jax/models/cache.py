"""Static key/value cache with per-row lengths. Rollback is setting the length; nothing beyond it is ever read."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Shaped

# Up to here an update per request is spelled out. A program of 128 requests with 240 such buffers would take minutes
# to compile; a scatter is one operation, and batches as large are for devices that run it in parallel.
MAX_UNROLLED = 16


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer for a batch of requests.

    Slots at positions >= `length` hold rejected or padded rows: garbage by contract, overwritten before they are
    read. The capacity must leave room for a whole block beyond the last position that is kept, and with GPU kernels
    for its rows of padding (`ops/kernels.missing_rows`), because `dynamic_update_slice` moves a write that does not fit
    and would destroy older rows (bug case C16).

    Attributes:
        keys: one [B, K, S, H] array per layer, rotated; a head's rows are contiguous, which CPU attention needs.
        values: one [B, K, S, H] array per layer.
        length: [B], valid positions of each row.
    """

    keys: tuple[Float[Array, "B K S H"], ...]
    values: tuple[Float[Array, "B K S H"], ...]
    length: Int[Array, "B"]

    @classmethod
    def zeros(
        cls, *, num_layers: int, batch: int, capacity: int, num_kv_heads: int, head_dim: int, dtype: DTypeLike
    ) -> "KVCache":
        """An empty cache."""
        keys, values = _zeros(num_layers, (batch, num_kv_heads, capacity, head_dim), jnp.dtype(dtype))
        return cls(keys=keys, values=values, length=jnp.zeros((batch,), jnp.int32))

    @property
    def capacity(self) -> int:
        """S, slots per row."""
        return self.keys[0].shape[2]

    def write(self, layer: int, keys: Float[Array, "B T K H"], values: Float[Array, "B T K H"]) -> "KVCache":
        """Stores T rows of one layer at positions `length .. length + T - 1`, without committing them."""
        new_keys = write_rows(self.keys[layer], keys, self.length)
        # A masked value has weight 0, and 0 * NaN is NaN: a drafted row that overflowed must not reach the others. A
        # row that is kept shows its own NaN in its logits.
        new_values = write_rows(self.values[layer], jnp.nan_to_num(values), self.length)
        return self.with_layer(layer, new_keys, new_values)

    def with_layer(self, layer: int, keys: Float[Array, "B K S H"], values: Float[Array, "B K S H"]) -> "KVCache":
        """Other contents of one layer."""
        return replace(
            self,
            keys=(*self.keys[:layer], keys, *self.keys[layer + 1 :]),
            values=(*self.values[:layer], values, *self.values[layer + 1 :]),
        )

    def commit(self, num_rows: Int[Array, "B"]) -> "KVCache":
        """Keeps the first `num_rows` of the rows written last; the rest becomes garbage."""
        return replace(self, length=self.length + num_rows)

    def with_length(self, length: Int[Array, "B"]) -> "KVCache":
        """Rolls back (or forward over written rows) to the given lengths."""
        return replace(self, length=length)


def write_rows(
    buffer: Float[Array, "B K S H"], rows: Float[Array, "B T K H"], start: Int[Array, "B"]
) -> Float[Array, "B K S H"]:
    """Writes row b of `rows` into slots `start[b] .. start[b] + T - 1` of row b of the buffer, in place if donated."""
    rows = jnp.swapaxes(rows.astype(buffer.dtype), 1, 2)  # [B, K, T, H]
    buffer = update_rows(buffer, rows, start, axis=2)
    # Without the barrier XLA's CPU backend fuses a one-row write with its reader and copies every cache, twice a layer.
    return jax.lax.optimization_barrier(buffer)


def update_rows(
    buffer: Shaped[Array, "B *slots"], rows: Shaped[Array, "B *rows"], start: Int[Array, "B"], *, axis: int
) -> Shaped[Array, "B *slots"]:
    """Writes `rows[b]` into `buffer[b]` from index `start[b]` of one axis on; what does not fit is moved until it does.

    Args:
        buffer, rows: alike but for the size of `axis`.
        start: first index of each request.
        axis: not 0, which is the requests'.
    """
    if buffer.shape[0] > MAX_UNROLLED:

        def update(buffer, rows, start):
            return jax.lax.dynamic_update_slice_in_dim(buffer, rows, start, axis - 1)

        return jax.vmap(update)(buffer, rows, start)
    # One slice per request: the vmapped form becomes a scatter, which XLA runs serially on CPU.
    for b in range(buffer.shape[0]):
        at = [{0: b, axis: start[b]}.get(i, 0) for i in range(buffer.ndim)]
        buffer = jax.lax.dynamic_update_slice(buffer, rows[b : b + 1], at)
    return buffer


@partial(jax.jit, static_argnums=(0, 1, 2))  # one dispatch for all layers, before the first token of every call
def _zeros(num_layers: int, shape: tuple[int, ...], dtype: DTypeLike) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    return tuple(tuple(jnp.zeros(shape, dtype) for _ in range(num_layers)) for _ in range(2))
