"""LM head, noise and arg-max of few rows, Mosaic GPU for sm_90a: logits live and die in shared memory.

A block does a tile of the vocabulary for all rows. Operands are swapped: vocabulary entries are M of the products, rows
are N, so few rows waste nothing. The tile's logits go through shared memory, a chunk of rows after another: scaled,
noised, reduced to (maximum, its first index, sum of exponentials) each. Tiles are merged in jnp.

* Moved: V D of the head (once, by TMA) and T D of hidden states, which each tile reads again from the L2 cache.
  Qwen3-8B, bf16: 1.245 GB, 0.31 ms at 4 TB/s; 17 rows of logits and noise would be 10 MB each, several times over.
  From the L2 cache come `T / tile_v` times as many bytes as from memory: as many again at 128 rows and tile_v 128.
* FLOPs: 2 T V D (0.16 TFLOP at 128 rows, 0.2 ms of an H200's tensor cores). Epilogue with noise: about 175
  instructions an entry and padded row, most of them the hash; 40 us of all ALUs at 17 rows, 0.2 ms at 128.
* Grid: ceil(V / tile_v), in any order. Shared memory lets two blocks share an SM (`config.py`): one draws while the
  other streams. V that tile_v does not divide: the last tile is moved up and skips what the tile before it has done.
* SMEM: a stage is tile_k (tile_v + T) elements; the epilogue reuses it (4 tile_v T).
* Limits: 9 <= T <= 136 (1 <= T with a config given: fewer are left to XLA, see `MIN_ROWS`); bf16, int8 or fp8 head
  and rows of bf16, with an fp8 head of fp8; V a multiple of 64, D of 32; Hopper only (wgmma).
* Equality with XLA: given equal logits, scores are equal bit for bit: hash and mantissa are integers, division and
  logarithm compile to the same instructions as XLA's (div.full, libdevice's logf). Logits are summed in another order,
  so two entries whose scores are within rounding of each other may swap.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int, Int8, UInt32

from pallas_kernels.fragments import load_fragments
from pallas_kernels.head_draw.config import INT8_PART, MIN_ROWS, HeadDrawConfig, default_config, padded, row_dtype
from pallas_kernels.head_draw.noise import check_jax_noise, gumbel
from pallas_kernels.head_draw.result import HeadDraw

HOPPER = ("H100", "H200", "H800", "H20")
MATRIX = plgpu.Layout.WGMMA  # [entries, rows]
BY_ROW, BY_ENTRY = MATRIX.reduce(0), MATRIX.reduce(1)
NO_ENTRY = jnp.iinfo(jnp.int32).max


@dataclass(frozen=True)
class _Options:
    """What shapes the program beside the operands.

    Attributes:
        config: tile sizes.
        row_params: what the lines of the operand of that name are.
        noise_in_logsumexp: sum the exponentials of the noised scores.
    """

    config: HeadDrawConfig
    row_params: tuple[str, ...]
    noise_in_logsumexp: bool


def head_draw(
    hidden: Float[Array, "T D"],
    head: Float[Array, "V D"] | Int8[Array, "V D"],
    *,
    scale: Float[Array, "V"] | None = None,
    noise_keys: UInt32[Array, "T 2"] | None = None,
    temperature: Float[Array, "T"] | None = None,
    targets: Int[Array, "T"] | None = None,
    noise_in_logsumexp: bool = False,
    config: HeadDrawConfig | None = None,
) -> HeadDraw:
    """Draws a token for each row, as `reference.head_draw` does, without its logits in memory.

    Args:
        hidden: normalised states: bf16, or fp8 (e4m3) with an fp8 head.
        head: bf16, or int8 in fragment order, or fp8; the last two with a scale.
        scale: fp32, multiplies all logits of an entry.
        noise_keys: key data of each row's noise, the position folded in; needs a temperature. None draws no noise.
        temperature: fp32, divides the logits; a row of 0 is greedy: neither divided nor noised. None: all are.
        targets: entries whose logits are wanted, in the vocabulary.
        noise_in_logsumexp: whether `logsumexp` is that of the noised scores.
        config: None for the default, which is refused for fewer than `MIN_ROWS` rows.

    Raises:
        ValueError: noise without a temperature, or an int8 head without a scale.
        NotImplementedError: outside the limits above.
    """
    if noise_keys is not None and temperature is None:
        raise ValueError("noise_keys need a temperature: rows of temperature 0 get no noise")
    if head.dtype != jnp.bfloat16 and scale is None:
        raise ValueError(f"a head of {head.dtype} needs a scale")
    (num_rows, width), vocab_size = hidden.shape, head.shape[0]
    _check_device()
    if hidden.dtype != (wanted := row_dtype(head.dtype)):
        raise NotImplementedError(f"rows must be {wanted} with a head of {head.dtype}, got {hidden.dtype}")
    if noise_keys is not None:
        check_jax_noise()
    if config is None and num_rows < MIN_ROWS:
        raise NotImplementedError(f"fewer than {MIN_ROWS} rows are XLA's, which is faster at one, got T={num_rows}")
    shape = (num_rows, width, vocab_size, head.dtype)
    config = config or default_config(*shape)
    config.check(*shape)

    operands = {"hidden": jnp.pad(hidden, [(0, padded(num_rows) - num_rows), (0, 0)]), "head": head}
    if scale is not None:
        operands["scale"] = scale.astype(jnp.float32)
    row_params = _row_params(noise_keys, temperature, targets)
    if row_params:
        # One operand, so that XLA prepares it in one launch.
        lines = jnp.stack(list(row_params.values()))
        operands["row_params"] = jnp.pad(lines, [(0, 0), (0, padded(num_rows) - num_rows)])
    tiles = _launch(operands, _Options(config, tuple(row_params), noise_in_logsumexp))
    return jax.tree.map(lambda rows: rows[:num_rows], _merge(*tiles, vocab_size))


def _row_params(noise_keys, temperature, targets) -> dict[str, UInt32[Array, "T"]]:
    """What is known of each row, as 32 bits."""
    rows = {}
    if noise_keys is not None:
        rows |= {"key_0": noise_keys[:, 0], "key_1": noise_keys[:, 1]}
    if temperature is not None:
        rows["temperature"] = jax.lax.bitcast_convert_type(temperature.astype(jnp.float32), jnp.uint32)
    if targets is not None:
        rows["target"] = targets.astype(jnp.uint32)
    return rows


def _check_device() -> None:
    described = jax.sharding.get_abstract_mesh().abstract_device
    kind = described.device_kind if described is not None else jax.devices()[0].device_kind
    if not any(name in kind for name in HOPPER):
        raise NotImplementedError(f"wgmma is Hopper's ({', '.join(HOPPER)}), this is {kind!r}")


def _merge(
    top: Float[Array, "tiles T"],
    total: Float[Array, "tiles T"],
    first: Int[Array, "tiles T"],
    target: Float[Array, "tiles T"] | None,
    vocab_size: int,
) -> HeadDraw:
    """Of all tiles' maxima the largest, at its first index; sums of exponentials brought to it.

    Plain reductions: of one that carries all three values XLA makes a kernel of 45 us for 64 rows (H200).
    """
    score = jnp.max(top, axis=0)  # NaN if one is
    is_top = top == score[None, :]
    # Equal infinities have no difference.
    total = jnp.sum(jnp.where(is_top, total, total * jnp.exp(top - score[None, :])), axis=0)
    tokens = jnp.min(jnp.where(is_top, first, vocab_size - 1), axis=0)
    return HeadDraw(tokens, score, score + jnp.log(total), None if target is None else jnp.max(target, axis=0))


def _launch(operands: dict[str, Array], options: _Options) -> tuple[Array, Array, Array, Array | None]:
    """Runs the grid.

    Returns:
        Of each tile and row, [tiles, T]: the largest score, the sum of exponentials relative to it, its first entry,
        and the target's score if asked for (-inf in tiles that do not have it).
    """
    num_rows, vocab_size = operands["hidden"].shape[0], operands["head"].shape[0]
    num_tiles = pl.cdiv(vocab_size, options.config.tile_v)
    dtypes = {"top": jnp.float32, "total": jnp.float32, "first": jnp.int32}
    if "target" in options.row_params:
        dtypes["target"] = jnp.float32

    def head_draw_kernel(*refs):
        inputs = dict(zip(operands, refs, strict=False))
        outputs = dict(zip(dtypes, refs[len(operands) :], strict=True))
        tile = jax.lax.axis_index("tile")
        start = jnp.minimum(tile * options.config.tile_v, vocab_size - options.config.tile_v)
        logits = _logits_of_tile(inputs["hidden"], inputs["head"], start, options.config)

        def epilogue(scores, results):
            _draw_from_tile(logits, inputs, tile * options.config.tile_v, start, scores, results, options)
            plgpu.commit_smem()
            for name, result in results.items():
                plgpu.copy_smem_to_gmem(result, outputs[name].at[tile])
            plgpu.wait_smem_to_gmem(0)

        chunk = options.config.chunk
        pl.run_scoped(
            epilogue,
            scores=plgpu.SMEM((num_rows // chunk, options.config.tile_v, chunk), jnp.float32),
            results={name: plgpu.SMEM((num_rows,), dtype) for name, dtype in dtypes.items()},
        )

    outputs = plgpu.kernel(
        head_draw_kernel,
        out_type=[jax.ShapeDtypeStruct((num_tiles, num_rows), dtype) for dtype in dtypes.values()],
        grid=(num_tiles,),
        grid_names=("tile",),
        compiler_params=plgpu.CompilerParams(reduction_scratch_bytes=options.config.chunk * 128),
    )(*operands.values())
    return (*outputs, None)[:4]


def _logits_of_tile(hidden, head, start, config: HeadDrawConfig):
    """[tile_v, T] in registers: the tile's entries times all rows, streamed over D."""
    num_rows, width = hidden.shape
    is_int8 = head.dtype == jnp.int8
    part = min(config.tile_k, INT8_PART) if is_int8 else config.tile_k

    def block(rows, dtype, index_map):
        swizzle = plgpu.find_swizzle(part * dtype.itemsize * 8)
        transforms = (plgpu.TilingTransform((8, swizzle // dtype.itemsize)), plgpu.SwizzleTransform(swizzle))
        # Weights in registers must be done with before the next are loaded over them; in shared memory the product may
        # still run while the next step begins.
        release = 0 if is_int8 else 1
        return plgpu.BlockSpec((rows, config.tile_k), index_map, transforms=transforms, delay_release=release)

    def stream(accumulator):
        def step(_, head_tile, hidden_tile):
            if is_int8:  # while one part is multiplied, the next becomes bf16
                for first in range(0, config.tile_k, part):
                    inputs = pl.ds(first, part)
                    plgpu.wgmma(accumulator, load_fragments(head_tile.at[:, inputs]), hidden_tile.at[:, inputs].T)
                    plgpu.wgmma_wait(1 if first + part < config.tile_k else 0)
            else:
                plgpu.wgmma(accumulator, head_tile, hidden_tile.T)
                plgpu.wgmma_wait(1)

        plgpu.emit_pipeline(
            step,
            grid=(width // config.tile_k,),
            in_specs=[
                block(config.tile_v, head.dtype, lambda k: (0, k)),
                block(num_rows, hidden.dtype, lambda k: (0, k)),
            ],
            max_concurrent_steps=config.stages,
        )(head.at[pl.ds(start, config.tile_v)], hidden)
        return accumulator[...]

    return pl.run_scoped(stream, plgpu.ACC((config.tile_v, num_rows), jnp.float32))


def _draw_from_tile(logits, inputs, first_entry, start, scores_smem, results, options: _Options):
    """Reduces a tile's logits over its entries, a chunk of rows at a time.

    Args:
        logits: [tile_v, T].
        inputs: the operands in global memory.
        first_entry: entries before it belong to the tile before.
        start: entry of the first row of `logits`.
        scores_smem: [T / chunk, tile_v, chunk], scratch.
        results: [T] each, in shared memory; see `_launch`.
        options: static.
    """
    num_chunks, tile_v, chunk = scores_smem.shape
    vocab_size = inputs["head"].shape[0]
    # Through shared memory, so that one short piece of code does all chunks.
    for index in range(num_chunks):
        scores_smem[index] = jax.lax.slice(logits, (0, index * chunk), (tile_v, (index + 1) * chunk))
    # "Optimized" is about whole lines of memory; these are a few bytes.
    load = functools.partial(plgpu.load, optimized=False)

    def over_entries(by_row):
        return jax.lax.broadcast_in_dim(by_row, (tile_v, chunk), (1,))

    @pl.loop(0, num_chunks)
    def _(index):
        rows = pl.ds(index * chunk, chunk)

        def row_param(name, dtype=jnp.uint32):
            line = load(inputs["row_params"].at[options.row_params.index(name), rows], layout=BY_ROW)
            return over_entries(line if dtype == jnp.uint32 else jax.lax.bitcast_convert_type(line, dtype))

        scaled = plgpu.layout_cast(scores_smem[index], MATRIX)
        entry = plgpu.broadcasted_iota(jnp.int32, (tile_v, chunk), 0, layout=MATRIX) + start
        if "scale" in inputs:
            scale = load(inputs["scale"].at[pl.ds(start, tile_v)], layout=BY_ENTRY)
            scaled = scaled * jax.lax.broadcast_in_dim(scale, (tile_v, chunk), (0,))
        if "temperature" in options.row_params:
            temperature = row_param("temperature", jnp.float32)
            is_greedy = temperature == 0
            scaled = scaled / jnp.where(is_greedy, jnp.float32(1), temperature)
        if vocab_size % tile_v:
            scaled = jnp.where(entry >= first_entry, scaled, -jnp.inf)
        scores = scaled
        if "key_0" in options.row_params:
            noise = gumbel(row_param("key_0"), row_param("key_1"), entry.astype(jnp.uint32))
            scores = jnp.where(is_greedy, scaled, scaled + noise)
        top = jnp.max(scores, axis=0)
        is_top = scores == over_entries(top)
        # The noise is between -4.5 and 16: relative to the noised maximum, exponentials neither overflow nor vanish.
        exponents = (scores if options.noise_in_logsumexp else scaled) - over_entries(top)
        results["top"][rows] = top
        results["total"][rows] = jnp.sum(jnp.exp(exponents), axis=0)
        results["first"][rows] = jnp.min(jnp.where(is_top, entry, jnp.int32(NO_ENTRY)), axis=0)
        if "target" in options.row_params:
            is_target = entry == row_param("target", jnp.int32)
            results["target"][rows] = jnp.max(jnp.where(is_target, scaled, -jnp.inf), axis=0)
