"""Whole sequences through layers, without a cache: what training runs on context rows.

Decoding writes keys into a cache slot by slot; here all positions are known, so keys are the rows themselves and
attention is the fused kernel of cuDNN where there is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.layers import DecoderLayer
from jetspec_jax.models.stack import LayerKind
from jetspec_jax.models.target import Target
from jetspec_jax.ops.norm_rope import rope_angles


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Teaching:
    """What the frozen target knows about a batch of sequences.

    Attributes:
        taps: tapped layer outputs.
        hidden: the state the head reads, final norm applied.
        embedded: token embeddings.
        decoder_cache: keys of the layers above the deepest tap, for the decoder.
    """

    taps: Float[Array, "B S M D"]
    hidden: Float[Array, "B S D"]
    embedded: Float[Array, "B S D"]
    decoder_cache: KVCache


def causal_attention(
    q: Float[Array, "B S N H"], k: Float[Array, "B S K H"], v: Float[Array, "B S K H"], window: int | None
) -> Float[Array, "B S N H"]:
    """Causal grouped-query attention of a sequence over itself."""
    on_gpu = jax.default_backend() == "gpu" and q.dtype in (jnp.bfloat16, jnp.float16)
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        is_causal=True,
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn" if on_gpu else "xla",
    )


def run_sequence(
    layer: DecoderLayer, kind: LayerKind, x: Float[Array, "B S D"]
) -> tuple[Float[Array, "B S D"], Float[Array, "B K S H"], Float[Array, "B K S H"]]:
    """One layer over positions 0 .. S-1; its output, and its keys and values as a cache holds them."""
    angles = rope_angles(all_positions(x), kind.rope, layer.attention.shape.head_dim)
    q, k, v = layer.queries_keys_values(x, angles, kind.rope)
    out = layer.finish(x, causal_attention(q, k, v, kind.window))
    return out, jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)


def all_positions(x: Float[Array, "B S D"]) -> Int[Array, "B S"]:
    """0 .. S-1 for every sequence."""
    return jnp.broadcast_to(jnp.arange(x.shape[1], dtype=jnp.int32)[None, :], x.shape[:2])


def full_cache(keys: Sequence[Array], values: Sequence[Array]) -> KVCache:
    """A cache that holds whole sequences."""
    batch, _, size, _ = keys[0].shape
    return KVCache(tuple(keys), tuple(values), jnp.full((batch,), size, jnp.int32))


def teach(target: Target, tokens: Int[Array, "B S"]) -> Teaching:
    """One pass of the frozen target over whole sequences.

    Rows beyond a sequence's end compute garbage that no earlier row sees.
    """
    config = target.config
    x = embedded = target.embed(tokens)
    taps, keys, values = [], [], []
    for index, layer in enumerate(target.layers):
        x, k, v = run_sequence(layer, LayerKind(config.rope_of(index), config.window_of(index)), x)
        if index in config.taps:
            taps.append(x)
        if index > config.taps[-1]:
            keys.append(k)
            values.append(v)
    cache = full_cache(keys, values) if keys else target.decoder().init_cache(tokens.shape[0], 0)
    teaching = Teaching(jnp.stack(taps, axis=2), target.norm(x), embedded, cache)
    return jax.lax.stop_gradient(teaching)


def cast(params: Any, dtype: DTypeLike) -> Any:
    """Copies of the master weights for computing."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


def check_dtype(name: str) -> None:
    """`ValueError` unless training can compute in it."""
    if name not in ("float32", "bfloat16"):
        raise ValueError(f"compute_dtype={name!r} is not supported (float32, bfloat16)")
