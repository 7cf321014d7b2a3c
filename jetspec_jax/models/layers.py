"""Building blocks of targets and drafts: norm, projection, RoPE, attention, SwiGLU, decoder layer.

One layer implementation; differences between families (qk-norm, biases, RoPE scaling, sliding window) come from
the config. Modules are nnx: structure and initialisation. They hold no state; inference calls them inside plain
`jax.jit` on merged leaves (`models/functional.py`).
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jetspec_jax.config import RopeConfig, TransformerShape
from jetspec_jax.ops.norm_rope import apply_rope, rms_norm
from jetspec_jax.ops.project import project, project_from


class RMSNorm(nnx.Module):
    """Root-mean-square norm with a learned scale."""

    def __init__(self, size: int, eps: float, *, dtype: DTypeLike):
        self.scale = nnx.Param(jnp.ones((size,), dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalises the last axis; the statistics are fp32."""
        return rms_norm(x, self.scale[...], self.eps)


class Linear(nnx.Module):
    """`y = x W^T + b`, the weight stored as [out, in] as checkpoints do (no transposition at load)."""

    def __init__(self, in_size: int, out_size: int, *, bias: bool, dtype: DTypeLike, rngs: nnx.Rngs):
        init = jax.random.normal(rngs.params(), (out_size, in_size), jnp.float32) * in_size**-0.5
        self.weight = nnx.Param(init.astype(dtype))
        self.bias = nnx.Param(jnp.zeros((out_size,), dtype)) if bias else None

    def __call__(self, x: Float[Array, "*rows I"]) -> Float[Array, "*rows O"]:
        """Projects the last axis."""
        y = project(x, self.weight[...])
        return y if self.bias is None else y + jnp.expand_dims(self.bias[...], range(y.ndim - 1))


class Attention(nnx.Module):
    """Projections of grouped-query attention; the caller supplies the keys to attend to."""

    def __init__(self, shape: TransformerShape, *, dtype: DTypeLike, rngs: nnx.Rngs):
        heads, kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        bias = shape.attention_bias
        # q, k and v in one product: [(N + 2K) H, D].
        self.qkv = Linear(shape.hidden_size, (heads + 2 * kv_heads) * head_dim, bias=bias, dtype=dtype, rngs=rngs)
        self.out = Linear(heads * head_dim, shape.hidden_size, bias=shape.output_bias, dtype=dtype, rngs=rngs)
        self.q_norm = RMSNorm(head_dim, shape.rms_norm_eps, dtype=dtype) if shape.qk_norm else None
        self.k_norm = RMSNorm(head_dim, shape.rms_norm_eps, dtype=dtype) if shape.qk_norm else None
        self.shape = shape

    def queries_keys_values(
        self, x: Float[Array, "B T D"], angles: Float[Array, "B T half"], rope: RopeConfig
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B T K H"], Float[Array, "B T K H"]]:
        """Projected, normalised and rotated q, k and plain v."""
        batch, rows, _ = x.shape
        q_size = self.shape.num_heads * self.shape.head_dim
        kv_size = self.shape.num_kv_heads * self.shape.head_dim
        q, k, v = jnp.split(self.qkv(x), [q_size, q_size + kv_size], axis=-1)
        q = q.reshape(batch, rows, -1, self.shape.head_dim)  # [B, T, N, H]
        k = k.reshape(batch, rows, -1, self.shape.head_dim)  # [B, T, K, H]
        v = v.reshape(batch, rows, -1, self.shape.head_dim)
        return self._rotate(q, self.q_norm, angles, rope), self._rotate(k, self.k_norm, angles, rope), v

    def keys_values(
        self, x: Float[Array, "B T D"], angles: Float[Array, "B T half"], rope: RopeConfig
    ) -> tuple[Float[Array, "B T K H"], Float[Array, "B T K H"]]:
        """Keys and values alone, for context rows that never ask (KV injection)."""
        batch, rows, _ = x.shape
        q_size = self.shape.num_heads * self.shape.head_dim
        kv = project_from(x, self.qkv.weight[...], q_size)
        if self.qkv.bias is not None:
            kv = kv + self.qkv.bias[None, None, q_size:]
        k, v = jnp.split(kv.reshape(batch, rows, -1, self.shape.head_dim), 2, axis=2)
        return self._rotate(k, self.k_norm, angles, rope), v

    def output(self, heads: Float[Array, "B T N H"]) -> Float[Array, "B T D"]:
        """Joins the heads back into the residual width."""
        return self.out(heads.reshape(*heads.shape[:2], -1))

    @staticmethod
    def _rotate(x, norm: RMSNorm | None, angles, rope: RopeConfig):
        return apply_rope(x if norm is None else norm(x), angles, rope.attention_factor)


class MLP(nnx.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`, gate and up in one product."""

    def __init__(self, shape: TransformerShape, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width, bias = shape.intermediate_size, shape.mlp_bias
        self.gate_up = Linear(shape.hidden_size, 2 * width, bias=bias, dtype=dtype, rngs=rngs)
        self.down = Linear(width, shape.hidden_size, bias=bias, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Applies the MLP to each row."""
        gate, up = jnp.split(self.gate_up(x), 2, axis=-1)
        return self.down(jax.nn.silu(gate) * up)


class DecoderLayer(nnx.Module):
    """Pre-norm attention and MLP with residuals, split in two so that the caller chooses the keys."""

    def __init__(self, shape: TransformerShape, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, dtype=dtype)
        self.attention = Attention(shape, dtype=dtype, rngs=rngs)
        self.mlp_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, dtype=dtype)
        self.mlp = MLP(shape, dtype=dtype, rngs=rngs)

    def finish(self, x: Float[Array, "B T D"], heads: Float[Array, "B T N H"]) -> Float[Array, "B T D"]:
        """Adds the attention output and the MLP to the residual stream."""
        x = x + self.attention.output(heads)
        return x + self.mlp(self.mlp_norm(x))
