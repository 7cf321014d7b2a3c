"""The adapter over whole sequences: blocks at anchors beside the context, without a cache.

The same numbers as `Adapter.extend` over the sequence followed by `Adapter.predict`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.layers import DecoderLayer
from jetspec_jax.models.stack import LayerKind, block_positions, own_rows
from jetspec_jax.ops.attention import attend_blocks
from jetspec_jax.ops.norm_rope import rope_angles
from train.sequence import Teaching, all_positions, causal_attention


def chained_blocks(
    adapter: Adapter, teaching: Teaching, embedded: Float[Array, "B A T D"], anchors: Int[Array, "B A"], *, remat: bool
) -> Float[Array, "B A T M D"]:
    """Predicted taps of blocks, each seeing the true states strictly before its anchor."""
    dtype, kind = adapter.dtype, LayerKind(adapter.config.rope)
    below, predicted = embedded.astype(dtype), []
    for index, module in enumerate(adapter.chain):
        context = teaching.embedded if index == 0 else teaching.taps[:, :, index - 1]

        def run(context, below, module=module):
            for layer in module:
                context, below = _run_layer(layer, kind, context, below, anchors)
            return below

        below = (jax.checkpoint(run) if remat else run)(context.astype(dtype), below)
        predicted.append(below)
    return jnp.stack(predicted, axis=3)


def _run_layer(
    layer: DecoderLayer, kind: LayerKind, context: Float[Array, "B S D"], blocks: Float[Array, "B A T D"], anchors
) -> tuple[Float[Array, "B S D"], Float[Array, "B A T D"]]:
    """One layer over context rows and block rows, in one product per weight."""
    batch, num_blocks, num_rows, width = blocks.shape
    size = context.shape[1]
    x = jnp.concatenate([context, blocks.reshape(batch, -1, width)], axis=1)
    positions = block_positions(anchors, num_rows).reshape(batch, -1)
    positions = jnp.concatenate([all_positions(context), positions], axis=1)
    angles = rope_angles(positions, kind.rope, layer.attention.shape.head_dim)
    q, k, v = layer.queries_keys_values(x, angles, kind.rope)
    on_context = causal_attention(q[:, :size], k[:, :size], v[:, :size], kind.window)
    mask = jnp.tril(jnp.ones((num_rows, num_rows), bool))[None, None]
    on_blocks = attend_blocks(
        q[:, size:].reshape(batch, num_blocks, num_rows, *q.shape[2:]),
        jnp.swapaxes(k[:, :size], 1, 2),
        jnp.swapaxes(v[:, :size], 1, 2),
        anchors,
        own_rows(k[:, size:], num_blocks),
        own_rows(v[:, size:], num_blocks, is_value=True),
        jnp.broadcast_to(mask, (batch, num_blocks, num_rows, num_rows)),
        window=kind.window,
    )
    heads = jnp.concatenate([on_context, on_blocks.reshape(batch, -1, *on_blocks.shape[3:])], axis=1)
    x = layer.finish(x, heads)
    return x[:, :size], x[:, size:].reshape(blocks.shape)
