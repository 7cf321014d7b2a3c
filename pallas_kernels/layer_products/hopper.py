"""The products of a layer in one launch, Mosaic GPU for sm_90a: the weights stream without a break.

A product of its own loses 3 to 8 us on an H200 while its first tiles are on the way and while the slower SMs end. Here
the CTAs stay for all of them. One warpgroup loads weights, in a ring that is filled across the border of two products;
what the next one multiplies, the results of all CTAs, is waited for by another, which loads x. Two multiply. Between
products the grid meets at a counter in global memory, and as long as the ring holds weights, memory is not idle.

The residual stream stays in registers from the first product to the third: a warpgroup owns the same outputs in both.
It leaves as `bf16(y) * scale` of the norm, which the next product multiplies, and as sums of squares of each CTA; 1 / rms
multiplies the sums at the end. The order of a sum depends on the shapes alone, not on which CTA was first.

* Moved: the weights once; Qwen3-8B 386 MB, 89 us at 4.35 TB/s. x comes from the second-level cache, every CTA reads all of it:
  `2 T (heads + 2 D + F)` bytes times 128, 150 MB for 24 rows.
* Grid: `num_ctas`, one an SM, all at once: they wait for each other. Nothing else may keep SMs busy that waits for this kernel.
* SMEM: `plan.py`. Limits: `Plan.check`, bf16, up to 32 rows. Blackwell has no wgmma: there and on a CPU the function refuses.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from pallas_kernels.fragments import is_emulated
from pallas_kernels.layer_products.config import LayerProductsConfig
from pallas_kernels.layer_products.memory import load_outputs, load_scales, meet, release_to_copies, store_outputs
from pallas_kernels.layer_products.plan import CHUNK, WARPGROUPS, WGMMA_ROWS, Phase, Plan
from pallas_kernels.skinny_matmul.hopper import hopper_cores

SUMS = plgpu.Layout.WGMMA
LOAD_WEIGHTS, LOAD_X = WARPGROUPS, WARPGROUPS + 1  # warpgroups behind those that multiply
SWIZZLED = (plgpu.TilingTransform((8, CHUNK)), plgpu.SwizzleTransform(128))
NUM_MEETINGS = 3  # of the grid in a call


def layer_products(
    heads: Float[Array, "T heads"],
    x: Float[Array, "T D"],
    out: Float[Array, "D heads"],
    mlp_norm: tuple[Float[Array, " D"], float],
    gate_up: Float[Array, "twice D"],
    down: Float[Array, "D F"],
    next_norm: tuple[Float[Array, " D"], float] | None = None,
    qkv: Float[Array, "O D"] | None = None,
    *,
    arrivals: Int[Array, "calls meetings"],
    call: Int[Array, ""] | int,
    config: LayerProductsConfig | None = None,
) -> tuple[Float[Array, "T D"], Float[Array, "T O"] | None, Int[Array, "calls meetings"]]:
    """What `reference.py` defines, in one launch.

    A norm's scale multiplies the rounded residual stream in bf16 and 1 / rms the fp32 sums, where the reference rounds
    both together: results differ by the rounding of bf16.

    Args:
        arrivals: counters of the meetings, `NUM_MEETINGS` for each call of a program, zero before it.
        call: row of `arrivals` that is this call's.
        config: chosen by the shape unless given.

    Returns:
        The residual stream, the next q, k and v before their norms, and the counters for the next call.

    Raises:
        NotImplementedError: outside the limits above.
    """
    num_cores = hopper_cores()
    if (next_norm is None) != (qkv is None):
        raise ValueError("next_norm and qkv go together")
    arrays = {"heads": heads, "x": x, "out": out, "gate_up": gate_up, "down": down}
    arrays |= {"mlp_scale": mlp_norm[0]} | ({} if qkv is None else {"qkv": qkv, "next_scale": next_norm[0]})
    if other := {name: str(array.dtype) for name, array in arrays.items() if array.dtype != jnp.bfloat16}:
        raise NotImplementedError(f"everything must be bfloat16, got {other}")
    plan = Plan(
        num_rows=x.shape[0],
        hidden_size=out.shape[0],
        heads_size=out.shape[1],
        mlp_size=down.shape[1],
        qkv_size=None if qkv is None else qkv.shape[0],
        norm_eps=(mlp_norm[1], 0.0 if next_norm is None else next_norm[1]),
        config=config or LayerProductsConfig(),
    )
    plan.check()
    if plan.config.num_ctas > num_cores:
        raise NotImplementedError(f"{plan.config.num_ctas} CTAs wait for each other, the device has {num_cores} SMs")
    return _launch(plan, arrays, arrivals, jnp.asarray(call, jnp.int32).reshape(1))


@partial(jax.jit, static_argnums=0)  # a program with many layers traces and lowers it once
def _launch(plan: Plan, arrays, arrivals, call):
    rows, dtype = plan.padded_rows, jnp.bfloat16
    shape = jax.ShapeDtypeStruct
    results = {"stream": shape((plan.num_rows, plan.hidden_size), dtype)}
    if plan.qkv_size is not None:
        results["next_qkv"] = shape((plan.num_rows, plan.qkv_size), dtype)
    # Between the CTAs: the scaled stream before each norm, the sums of its squares, and the MLP's middle.
    for norm in range(1 + (plan.qkv_size is not None)):
        results[f"scaled{norm}"] = shape((rows, plan.hidden_size), dtype)
        results[f"squares{norm}"] = shape((-(-plan.config.num_ctas // WGMMA_ROWS) * WGMMA_ROWS, rows), jnp.float32)
    results["hidden"] = shape((rows, plan.mlp_size), dtype)
    counters = jax.new_ref(arrivals)
    operands = {**arrays, "call": call, "arrivals": counters}

    def layer_products_kernel(*args, **scratch):
        refs = SimpleNamespace(**dict(zip([*operands, *results], args, strict=True)), **scratch)
        refs.w_rings, refs.x_rings = _ring_views(plan, refs.rings)
        wg = lax.axis_index("wg")
        pl.when(wg < WARPGROUPS)(lambda: _multiply(plan, refs))
        pl.when(wg == LOAD_WEIGHTS)(lambda: _load_weights(plan, refs))
        pl.when(wg == LOAD_X)(lambda: _load_x(plan, refs))

    values = plgpu.kernel(
        layer_products_kernel,
        out_type=tuple(results.values()),
        scratch_types={
            "rings": _rings(plan),
            "row_factors": plgpu.SMEM((rows,), jnp.float32),
            "w_full": plgpu.Barrier(num_barriers=plan.stages, num_arrivals=2),  # gate and up
            "x_full": plgpu.Barrier(num_barriers=plan.stages),
            "free": plgpu.Barrier(num_barriers=plan.stages, num_arrivals=WARPGROUPS),
            "phase_done": plgpu.Barrier(num_arrivals=WARPGROUPS),
            "factors_full": plgpu.Barrier(),
            "exchange": plgpu.SMEM((WARPGROUPS, WGMMA_ROWS, rows), jnp.float32),
            "exchanged": plgpu.Barrier(num_arrivals=WARPGROUPS),
        },
        grid=(plan.config.num_ctas,),
        grid_names=("cta",),
        num_threads=WARPGROUPS + 2,
        thread_name="wg",
        # Safe because threads of a warpgroup share nothing but what barriers hand over; with a barrier before each copy
        # loads are slower.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=plan.config.no_auto),
    )(*operands.values())
    results = dict(zip(results, values, strict=True))
    return results["stream"], results.get("next_qkv"), jax.freeze(counters)


def _rings(plan: Plan):
    """Slots of the weights, [slots and spare rows, inputs] as each product sees them, and behind them those of x.

    A slot of the weights has the same place for every product, so that the ring is filled across their borders. All of x
    is used up when a product ends.
    """
    ring = partial(plgpu.SMEM, dtype=jnp.bfloat16, transforms=SWIZZLED)
    weights = [ring((plan.stages * phase.slot_rows + phase.spare_rows, phase.width)) for phase in plan.phases]
    x = [ring((plan.stages, plan.padded_rows, phase.width)) for phase in plan.phases]
    if is_emulated():  # it would take one product's view for another's
        return [*weights, *x]
    slots = ring((plan.stages * plan.config.slot_size // CHUNK, CHUNK))
    return plgpu.RefUnion(*weights, *([slots, each] for each in x))


def _ring_views(plan: Plan, rings) -> tuple[list, list]:
    """Weights and x for each product."""
    views = list(rings)
    count = len(plan.phases)
    return views[:count], [view if is_emulated() else view[1] for view in views[count:]]


# Loading


def _load_weights(plan: Plan, refs) -> None:
    """Fills the ring of weights, through all products without a stop."""
    cta = lax.axis_index("cta")
    for phase, ring in zip(plan.phases, refs.w_rings, strict=True):
        weight = getattr(refs, phase.name)

        @pl.loop(0, phase.num_steps)
        def _step(step, phase=phase, ring=ring, weight=weight):
            slot = lax.rem(phase.first_step + step, plan.stages)
            full = refs.w_full.at[slot]
            plgpu.barrier_wait(refs.free.at[slot])
            for half in range(phase.halves):
                first = half * (phase.num_outputs // phase.halves) + cta * phase.rows
                box = ring.at[pl.ds(slot * phase.slot_rows + half * phase.rows, phase.rows), :]
                inputs = pl.ds(step * phase.width, phase.width)
                plgpu.copy_gmem_to_smem(weight.at[pl.ds(first, phase.rows), inputs], box, full)
            if phase.halves == 1:
                plgpu.barrier_arrive(full)

    for slot in range(plan.stages):  # every completion is waited for
        plgpu.barrier_wait(refs.free.at[slot])


def _load_x(plan: Plan, refs) -> None:
    """Fills the ring of x; before each product but the first it meets the other CTAs, and finds 1 / rms of each row."""
    sources = [refs.heads, refs.scaled0, refs.hidden, *([refs.scaled1] if plan.qkv_size is not None else [])]
    call = refs.call[0]
    for index, (phase, ring, source) in enumerate(zip(plan.phases, refs.x_rings, sources, strict=True)):
        if index > 0:
            plgpu.barrier_wait(refs.phase_done)
            meet(refs.arrivals.at[call], index - 1, plan.config.num_ctas)
            release_to_copies()

        def load(step, phase=phase, ring=ring, source=source):
            slot = lax.rem(phase.first_step + step, plan.stages)
            plgpu.barrier_wait(refs.free.at[slot])
            x = source.at[_from_zero(plan.padded_rows), pl.ds(step * phase.width, phase.width)]
            plgpu.copy_gmem_to_smem(x, ring.at[slot], refs.x_full.at[slot])

        soon = min(plan.stages, phase.num_steps)
        pl.loop(0, soon)(load)
        if phase.name in ("gate_up", "qkv"):
            _find_factors(plan, refs, int(phase.name == "qkv"))
        pl.loop(soon, phase.num_steps)(load)
    for slot in range(plan.stages):
        plgpu.barrier_wait(refs.free.at[slot])


def _find_factors(plan: Plan, refs, norm: int) -> None:
    """1 / rms of each row from the squares of all CTAs."""
    ref, own, total = getattr(refs, f"squares{norm}"), plan.config.num_ctas, 0.0
    for first in range(0, ref.shape[0], WGMMA_ROWS):
        squares = plgpu.load(ref.at[pl.ds(first, WGMMA_ROWS)], layout=SUMS, optimized=False)
        if first + WGMMA_ROWS > own:
            row = plgpu.broadcasted_iota(jnp.int32, squares.shape, 0, layout=SUMS)
            squares = jnp.where(row < own - first, squares, 0.0)
        total = total + squares
    mean = jnp.sum(total, axis=0) / plan.hidden_size
    refs.row_factors[...] = lax.rsqrt(mean + plan.norm_eps[norm])
    plgpu.barrier_arrive(refs.factors_full)


def _from_zero(size: int) -> pl.Slice:
    """A slice that may reach beyond its array: TMA reads zeros there. A start that is a Python number is refused."""
    return pl.ds(lax.axis_index("cta") * 0, size)


# Multiplying


def _multiply(plan: Plan, refs) -> None:
    """The products of a warpgroup's outputs, one after the other."""
    for slot in range(plan.stages):
        plgpu.barrier_arrive(refs.free.at[slot])
    out, gate_up, down, *rest = plan.phases
    residual = load_outputs(_columns(refs.x, out), WGMMA_ROWS, plan.padded_rows).astype(jnp.float32)
    stream = _add(plan, refs, out, residual, refs.mlp_scale, 0)
    gate, up = _scaled_by_row(plan, refs, _sums(plan, refs, gate_up))
    hidden = gate / (1 + jnp.exp(-gate)) * up
    store_outputs(_columns(refs.hidden, gate_up), hidden.astype(jnp.bfloat16))
    _finish(refs)
    if not rest:
        product = _exchanged(refs, *_sums(plan, refs, down))
        _store(refs.stream, down, (stream + product).astype(jnp.bfloat16))
        return
    _add(plan, refs, down, stream, refs.next_scale, 1)
    (qkv,) = _scaled_by_row(plan, refs, [_exchanged(refs, *_sums(plan, refs, rest[0]))])
    _store(refs.next_qkv, rest[0], qkv.astype(jnp.bfloat16))


def _own(phase: Phase):
    """The outputs of this warpgroup, as a block of so many."""
    cta = lax.axis_index("cta")
    block = cta if phase.splits_inputs else cta * WARPGROUPS + lax.axis_index("wg")
    return pl.ds(block * phase.own_rows, phase.own_rows)


def _columns(ref, phase: Phase):
    """The outputs of this warpgroup in an array [T, outputs]."""
    return ref.at[:, _own(phase)]


def _store(ref, phase: Phase, values) -> None:
    """Writes outputs that both warpgroups have, once."""
    pl.when(lax.axis_index("wg") == 0)(lambda: store_outputs(_columns(ref, phase), values))


def _exchanged(refs, part):
    """The sum of what the warpgroups have each for a part of the inputs, the same bits in both."""
    wg = lax.axis_index("wg")
    plgpu.store(refs.exchange.at[wg], part, optimized=False)
    plgpu.barrier_arrive(refs.exchanged)
    plgpu.barrier_wait(refs.exchanged)
    return part + plgpu.load(refs.exchange.at[1 - wg], layout=SUMS, optimized=False)


def _add(plan: Plan, refs, phase: Phase, residual, scale_ref, norm: int):
    """Adds a product to the residual stream, and leaves what the norm behind it needs."""
    scales = load_scales(scale_ref.at[_own(phase)], WGMMA_ROWS)
    product = _exchanged(refs, *_sums(plan, refs, phase))
    rounded = (residual + product).astype(jnp.bfloat16)
    stream = rounded.astype(jnp.float32)

    @pl.when(lax.axis_index("wg") == 0)
    def _once():
        scaled = rounded * lax.broadcast_in_dim(scales, rounded.shape, [0])
        store_outputs(_columns(getattr(refs, f"scaled{norm}"), phase), scaled)
        output = plgpu.broadcasted_iota(jnp.int32, stream.shape, 0, layout=SUMS)
        # Rows that belong to no output of this CTA may be anything.
        squares = jnp.where(output < phase.rows, stream * stream, 0.0)
        square_ref = getattr(refs, f"squares{norm}").at[lax.axis_index("cta")]
        plgpu.store(square_ref, jnp.sum(squares, axis=0), optimized=False)
        if norm == 1:
            store_outputs(_columns(refs.stream, phase), rounded)

    _finish(refs)
    return stream


def _finish(refs) -> None:
    """The results of a product are in memory."""
    release_to_copies()
    plgpu.barrier_arrive(refs.phase_done)


def _scaled_by_row(plan: Plan, refs, sums: tuple) -> list:
    plgpu.barrier_wait(refs.factors_full)
    factors = plgpu.load(refs.row_factors, layout=SUMS.reduce(0), optimized=False)
    return [each * lax.broadcast_in_dim(factors, each.shape, [1]) for each in sums]


def _sums(plan: Plan, refs, phase: Phase) -> tuple:
    """Sums of a product over its inputs: for each half [64 outputs, T] fp32, of which `own_rows` outputs count."""
    wg, index = lax.axis_index("wg"), plan.phases.index(phase)
    w_ring, x_ring = refs.w_rings[index], refs.x_rings[index]

    def leave(step):
        plgpu.barrier_arrive(refs.free.at[lax.rem(phase.first_step + step, plan.stages)])

    def multiply(*sums):
        @pl.loop(0, phase.num_steps)
        def _step(step):
            slot = lax.rem(phase.first_step + step, plan.stages)
            plgpu.barrier_wait(refs.w_full.at[slot])
            plgpu.barrier_wait(refs.x_full.at[slot])
            for half, acc in enumerate(sums):
                row = slot * phase.slot_rows + half * phase.rows
                row, first = (row, wg * phase.own_width) if phase.splits_inputs else (row + wg * phase.own_rows, 0)
                inputs = pl.ds(first, phase.own_width)
                plgpu.wgmma(acc, w_ring.at[pl.ds(row, WGMMA_ROWS), inputs], x_ring.at[slot, :, inputs].T)
            plgpu.wgmma_wait(phase.halves)  # this step's may still run, those of the step before are over
            pl.when(step > 0)(lambda: leave(step - 1))

        return tuple(acc[...] for acc in sums)

    sums = pl.run_scoped(multiply, *[plgpu.ACC((WGMMA_ROWS, plan.padded_rows), jnp.float32)] * phase.halves)
    leave(phase.num_steps - 1)
    return sums
