"""Building blocks of targets and drafts: norm, projection, RoPE, attention, SwiGLU, decoder layer.

One layer implementation; differences between families (qk-norm, biases, RoPE scaling, sliding window) come from
the config. Modules are nnx: structure and initialisation. They hold no state; inference calls them inside plain
`jax.jit` on merged leaves (`models/functional.py`).
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jetspec_jax.config import RopeConfig, TransformerShape
from jetspec_jax.models.cache import KVCache
from jetspec_jax.ops.kernels import choose
from jetspec_jax.ops.linear import add_norm, gated_linear, linear, linear_from, takes_norm
from jetspec_jax.ops.norm_rope import apply_rope, rms_norm
from jetspec_jax.ops.project import Weight


class RMSNorm(nnx.Module):
    """Root-mean-square norm with a learned scale."""

    def __init__(self, size: int, eps: float, *, dtype: DTypeLike):
        self.scale = nnx.Param(jnp.ones((size,), dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalises the last axis; the statistics are fp32."""
        return rms_norm(x, *self.arguments)

    @property
    def arguments(self) -> tuple[Float[Array, "D"], float]:
        """Scale and epsilon, for operations that begin with the norm."""
        return self.scale[...], self.eps


class Linear(nnx.Module):
    """`y = x W^T + b`, the weight stored as [out, in] as checkpoints do (no transposition at load)."""

    def __init__(self, in_size: int, out_size: int, *, bias: bool, dtype: DTypeLike, rngs: nnx.Rngs):
        init = jax.random.normal(rngs.params(), (out_size, in_size), jnp.float32) * in_size**-0.5
        self.weight = nnx.Param(init.astype(dtype))
        self.bias = nnx.Param(jnp.zeros((out_size,), dtype)) if bias else None

    def __call__(
        self,
        x: Float[Array, "*rows I"],
        norm: RMSNorm | None = None,
        residual: Float[Array, "*rows O"] | None = None,
    ) -> Float[Array, "*rows O"]:
        """Projects the last axis, of `norm(x)` if there is one; `residual` is added to the result."""
        arguments = None if norm is None else norm.arguments
        return linear(x, *self.arguments, norm=arguments, residual=residual)

    @property
    def arguments(self) -> tuple[Weight, Float[Array, "O"] | None]:
        """Weight and bias."""
        return self.weight[...], None if self.bias is None else self.bias[...]


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
        self,
        x: Float[Array, "B T D"],
        angles: Float[Array, "B T half"],
        rope: RopeConfig,
        norm: RMSNorm | None = None,
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B T K H"], Float[Array, "B T K H"]]:
        """Projected, normalised and rotated q, k and plain v of x, of `norm(x)` if there is one."""
        qkv = self.qkv(x, norm)

        def kernel():
            return self._qk_norm_rope(qkv, angles, rope, None, None, None)[:3]

        return choose("qk_norm_rope", kernel, lambda: self._split(qkv, angles, rope))

    def queries_and_cache(
        self,
        x: Float[Array, "B T D"],
        angles: Float[Array, "B T half"],
        rope: RopeConfig,
        norm: RMSNorm,
        cache: KVCache,
        index: int,
    ) -> tuple[Float[Array, "B T N H"], KVCache]:
        """q of `norm(x)`, and the cache with its keys and values written to layer `index` from its length on."""
        qkv = self.qkv(x, norm)

        def kernel():
            q, _, _, keys, values = self._qk_norm_rope(
                qkv, angles, rope, cache.keys[index], cache.values[index], cache.length
            )
            return q, cache.with_layer(index, keys, values)

        def otherwise():
            q, k, v = self._split(qkv, angles, rope)
            return q, cache.write(index, k, v)

        return choose("qk_norm_rope", kernel, otherwise)

    def keys_values(
        self, x: Float[Array, "B T D"], angles: Float[Array, "B T half"], rope: RopeConfig
    ) -> tuple[Float[Array, "B T K H"], Float[Array, "B T K H"]]:
        """Keys and values alone, for context rows that never ask (KV injection)."""
        batch, rows, _ = x.shape
        q_size = self.shape.num_heads * self.shape.head_dim
        kv = linear_from(x, *self.qkv.arguments, q_size)
        k, v = jnp.split(kv.reshape(batch, rows, -1, self.shape.head_dim), 2, axis=2)
        return self._rotate(k, self.k_norm, angles, rope), v

    def output(
        self, heads: Float[Array, "B T N H"], residual: Float[Array, "B T D"] | None = None
    ) -> Float[Array, "B T D"]:
        """Joins the heads back into the residual width, and adds `residual`."""
        return self.out(heads.reshape(*heads.shape[:2], -1), residual=residual)

    def _split(self, qkv, angles, rope: RopeConfig):
        q_size = self.shape.num_heads * self.shape.head_dim
        kv_size = self.shape.num_kv_heads * self.shape.head_dim
        parts = jnp.split(qkv, [q_size, q_size + kv_size], axis=-1)
        q, k, v = (part.reshape(*qkv.shape[:2], -1, self.shape.head_dim) for part in parts)  # [B, T, N or K, H]
        return self._rotate(q, self.q_norm, angles, rope), self._rotate(k, self.k_norm, angles, rope), v

    def _qk_norm_rope(self, qkv, angles, rope: RopeConfig, keys, values, start):
        from pallas_kernels.qk_norm_rope import qk_norm_rope  # where it is taken: see `ops/linear.py`

        scales = (None, None) if self.q_norm is None else (self.q_norm.scale[...], self.k_norm.scale[...])
        cos, sin = jnp.cos(angles) * rope.attention_factor, jnp.sin(angles) * rope.attention_factor
        sizes = {"num_heads": self.shape.num_heads, "num_kv_heads": self.shape.num_kv_heads}
        return qk_norm_rope(qkv, *scales, cos, sin, keys, values, start, eps=self.shape.rms_norm_eps, **sizes)

    @staticmethod
    def _rotate(x, norm: RMSNorm | None, angles, rope: RopeConfig):
        return apply_rope(x if norm is None else norm(x), angles, rope.attention_factor)


class MLP(nnx.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`, gate and up in one product."""

    def __init__(self, shape: TransformerShape, *, dtype: DTypeLike, rngs: nnx.Rngs):
        width, bias = shape.intermediate_size, shape.mlp_bias
        self.gate_up = Linear(shape.hidden_size, 2 * width, bias=bias, dtype=dtype, rngs=rngs)
        self.down = Linear(width, shape.hidden_size, bias=bias, dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[Array, "B T D"], norm: RMSNorm) -> Float[Array, "B T D"]:
        """`x + MLP(norm(x))` of each row."""
        return self._down(x, residual=x, norm=norm.arguments)

    def of_normalised(self, h: Float[Array, "B T D"], residual: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """`residual + MLP(h)`."""
        return self._down(h, residual=residual, norm=None)

    def _down(self, x, residual, norm):
        down = self.down.weight[...]
        return self.down(gated_linear(x, *self.gate_up.arguments, norm=norm, following=down), residual=residual)


class DecoderLayer(nnx.Module):
    """Pre-norm attention and MLP with residuals, split in two so that the caller chooses the keys."""

    def __init__(self, shape: TransformerShape, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, dtype=dtype)
        self.attention = Attention(shape, dtype=dtype, rngs=rngs)
        self.mlp_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps, dtype=dtype)
        self.mlp = MLP(shape, dtype=dtype, rngs=rngs)

    def queries_keys_values(
        self, x: Float[Array, "B T D"], angles: Float[Array, "B T half"], rope: RopeConfig
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B T K H"], Float[Array, "B T K H"]]:
        """q, k and v of the residual stream."""
        return self.attention.queries_keys_values(x, angles, rope, self.attention_norm)

    def queries_and_cache(
        self, x: Float[Array, "B T D"], angles: Float[Array, "B T half"], rope: RopeConfig, cache: KVCache, index: int
    ) -> tuple[Float[Array, "B T N H"], KVCache]:
        """q of the residual stream, and the cache with the rows written to layer `index`."""
        return self.attention.queries_and_cache(x, angles, rope, self.attention_norm, cache, index)

    def finish(self, x: Float[Array, "B T D"], heads: Float[Array, "B T N H"]) -> Float[Array, "B T D"]:
        """Adds the attention output and the MLP to the residual stream."""
        gate_up = self.mlp.gate_up.weight[...]
        if takes_norm(gate_up, math.prod(x.shape[:-1])):
            return self.mlp(self.attention.output(heads, residual=x), self.mlp_norm)
        x, h = add_norm(x, self.attention.output(heads), self.mlp_norm.arguments, following=gate_up)
        return self.mlp.of_normalised(h, residual=x)
