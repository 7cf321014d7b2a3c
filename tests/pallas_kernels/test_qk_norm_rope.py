"""Norm, RoPE and cache write: the reference against the models' code, the kernel against it, lowered, and on a GPU."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import RopeConfig, TransformerShape
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.layers import Attention
from jetspec_jax.ops.norm_rope import rope_angles
from pallas_kernels.qk_norm_rope import QKNormRopeConfig, qk_norm_rope
from pallas_kernels.qk_norm_rope.reference import qk_norm_rope as reference
from pallas_kernels.qk_norm_rope.shapes import SHAPES, Projection
from pallas_kernels.testing import interpreted, lower_for

EPS = 1e-6
# A sum over a head in another order moves fp32 by an ulp or two, and that now and then turns a rounding to bf16 over
# before the rotation, which then moves by an ulp of the larger of its two inputs. Left-out roundings would touch a
# third of the elements.
BF16_ULP = 2**-7
FP32_ATOL = 1e-5
MAX_SHARE_UNLIKE = 0.01


def inputs(shape: Projection, dtype, start: list[int] | None = None) -> tuple[jax.Array | None, ...]:
    """Random arguments; the values hold a NaN and both infinities."""
    random = np.random.default_rng(0)
    rows = (shape.batch, shape.num_rows)
    heads = shape.num_heads + 2 * shape.num_kv_heads
    qkv = random.normal(size=(*rows, heads * shape.head_dim))
    qkv[0, 0, -3:] = np.nan, np.inf, -np.inf
    scales = [random.normal(1, 0.25, shape.head_dim) if shape.has_norm else None for _ in "qk"]
    angles = random.uniform(0, 100, (*rows, shape.head_dim // 2))
    cache = [None, None]
    if shape.capacity is not None:
        cache = random.normal(size=(2, shape.batch, shape.num_kv_heads, shape.capacity, shape.head_dim))
    arrays = [qkv, *scales, np.cos(angles), np.sin(angles), *cache]
    dtypes = [dtype] * 3 + [jnp.float32] * 2 + [dtype] * 2
    cast = [None if array is None else jnp.asarray(array.astype(to)) for array, to in zip(arrays, dtypes, strict=True)]
    return *cast, None if start is None else jnp.asarray(start, jnp.int32)


def call(function, shape: Projection, **options):
    return partial(function, eps=EPS, num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, **options)


def rounding_as_written(function):
    """Jitted without XLA's licence to leave out roundings between operations."""
    return jax.jit(function, compiler_options={"xla_allow_excess_precision": False})


def assert_alike(got, want) -> None:
    for mine, theirs in zip(got, want, strict=True):
        if theirs is None:
            assert mine is None
            continue
        assert mine.dtype == theirs.dtype
        is_bf16 = mine.dtype == jnp.bfloat16
        mine, theirs = np.asarray(mine, np.float32), np.asarray(theirs, np.float32)
        finite = np.abs(theirs[np.abs(theirs) < 1e30])
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=BF16_ULP * finite.max() if is_bf16 else FP32_ATOL)
        if is_bf16:
            assert np.mean(mine != theirs) <= MAX_SHARE_UNLIKE


@pytest.mark.parametrize("qk_norm", [True, False])
def test_reference_is_what_attention_and_cache_do(qk_norm):
    shape = TransformerShape(
        hidden_size=32,
        intermediate_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=EPS,
        qk_norm=qk_norm,
        attention_bias=True,
    )
    attention = Attention(shape, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    rope = RopeConfig(theta=1e4, attention_factor=1.25)
    x = jax.random.normal(jax.random.key(1), (2, 3, 32), jnp.bfloat16)
    angles = rope_angles(jnp.asarray([[4, 5, 6], [9, 10, 11]], jnp.int32), rope, 16)
    cache = KVCache.zeros(num_layers=1, batch=2, capacity=12, num_kv_heads=2, head_dim=16, dtype=jnp.bfloat16)
    cache = cache.with_length(jnp.asarray([4, 9], jnp.int32))

    def fused(x, cache):
        scales = (attention.q_norm.scale[...], attention.k_norm.scale[...]) if qk_norm else (None, None)
        cos, sin = (side(angles) * rope.attention_factor for side in (jnp.cos, jnp.sin))
        slots = cache.keys[0], cache.values[0], cache.length
        return reference(attention.qkv(x), *scales, cos, sin, *slots, eps=EPS, num_heads=4, num_kv_heads=2)

    def apart(x, cache):
        q, k, v = attention.queries_keys_values(x, angles, rope)
        cache = cache.write(0, k, v)
        return q, k, v, cache.keys[0], cache.values[0]

    assert_alike(rounding_as_written(fused)(x, cache), rounding_as_written(apart)(x, cache))


@pytest.mark.parametrize(
    ("shape", "start", "dtype", "heads_per_block"),
    [
        pytest.param(
            Projection(2, 2, 4, 4, 64, True, 8), [3, 7], jnp.bfloat16, None, id="norm-and-a-row-that-does-not-fit"
        ),
        pytest.param(Projection(1, 2, 3, 1, 64, False, 4), [0], jnp.bfloat16, None, id="no-norm-and-odd-heads"),
        pytest.param(Projection(1, 2, 4, 2, 64, True, 4), [1], jnp.float32, 2, id="fp32-two-heads-a-block"),
        pytest.param(
            Projection(1, 1, 8, 8, 128, True, None), None, jnp.bfloat16, 8, id="no-cache-and-two-heads-a-warp"
        ),
    ],
)
def test_kernel_is_the_reference(shape, start, dtype, heads_per_block):
    arguments = inputs(shape, dtype, start)
    config = None if heads_per_block is None else QKNormRopeConfig(heads_per_block)
    with interpreted():
        got = rounding_as_written(call(qk_norm_rope, shape, config=config))(*arguments)
    assert_alike(got, rounding_as_written(call(reference, shape))(*arguments))
    assert np.isfinite(np.asarray(got[2], np.float32)).all()


def lowered(device: str, shape: Projection) -> str:
    arguments = inputs(shape, jnp.bfloat16, None if shape.capacity is None else [0] * shape.batch)
    leaves, tree = jax.tree.flatten(arguments)  # absent ones are no leaves
    described = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    return lower_for(device, lambda *leaves: call(qk_norm_rope, shape)(*tree.unflatten(leaves)), *described)


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA GB200"])
@pytest.mark.parametrize("name", ["qwen3-8b-verify", "qwen3-8b-refresh", "smollm2-135m-verify"])
def test_lowers_for(device, name):
    assert lowered(device, SHAPES[name]).count("stablehlo.custom_call") == 1


def test_writes_the_caches_in_place():
    text = lowered("NVIDIA H200", SHAPES["qwen3-8b-verify"])
    [kernel] = re.findall(r"stablehlo.custom_call @\w+\((.*?)\)", text)
    aliases = re.findall(r"output_tuple_indices = \[(\d)\], operand_index = (\d+)", text)
    # The caches are the kernel's last two operands and results, and come straight from the caller: XLA copies no
    # donated buffer between a parameter and an aliased operand.
    assert [operand.strip() for operand in kernel.split(",")][-2:] == ["%arg5", "%arg6"]
    assert sorted((int(operand), int(result)) for result, operand in aliases) == [(6, 3), (7, 4)]
    cache = "tensor<1x8x2048x128xbf16>"
    assert not re.search(rf"-> {cache}", text)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "expected"),
    [
        pytest.param(32, 8, 4, id="qwen3-8b"),
        pytest.param(9, 3, 1, id="smollm2-135m"),
        pytest.param(14, 2, 1, id="two-kv-heads"),
    ],
)
def test_default_gives_a_warp_one_head(num_heads, num_kv_heads, expected):
    assert QKNormRopeConfig.for_heads(num_heads, num_kv_heads) == QKNormRopeConfig(expected)


@pytest.mark.parametrize(
    ("shape", "heads_per_block", "change", "reason"),
    [
        pytest.param(Projection(1, 1, 4, 4, 96, True, 2), None, {}, "got 96", id="head-dim"),
        pytest.param(Projection(1, 1, 8, 4, 64, True, 2), 8, {}, "N=8 and K=4", id="heads-per-block"),
        pytest.param(Projection(1, 1, 4, 4, 64, True, 2), None, {5: jnp.float32}, "got float32", id="cache-dtype"),
        pytest.param(Projection(1, 1, 4, 4, 64, True, 2), None, {3: jnp.bfloat16}, "got bfloat16", id="angle-dtype"),
    ],
)
def test_says_why_it_refuses(shape, heads_per_block, change, reason):
    arguments = list(inputs(shape, jnp.bfloat16, [0]))
    for index, dtype in change.items():
        arguments[index] = arguments[index].astype(dtype)
    config = None if heads_per_block is None else QKNormRopeConfig(heads_per_block)
    with pytest.raises(NotImplementedError, match=reason):
        call(qk_norm_rope, shape, config=config)(*arguments)


@pytest.mark.parametrize("missing", [1, 2, 5, 6, 7])
def test_refuses_half_a_norm_and_half_a_cache(missing):
    shape = Projection(1, 1, 4, 4, 64, True, 2)
    arguments = list(inputs(shape, jnp.bfloat16, [0]))
    arguments[missing] = None
    with pytest.raises(ValueError, match="go together"):
        call(qk_norm_rope, shape)(*arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_on_a_gpu(name):
    shape = SHAPES[name]
    arguments = inputs(shape, jnp.bfloat16, None if shape.capacity is None else [1000 + b for b in range(shape.batch)])
    got = jax.jit(call(qk_norm_rope, shape))(*arguments)
    assert_alike(got, rounding_as_written(call(reference, shape))(*arguments))
