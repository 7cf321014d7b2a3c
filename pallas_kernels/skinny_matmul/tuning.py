"""Configs for a product: an estimate of what limits each, the best by it, and a list for a sweep.

The constants are an H200's, measured where a note says so and guessed otherwise; a sweep corrects them. What needs no
constant is the balance: tiles that fill all SMs the same number of times, and how often x is read.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product as combinations

import jax.numpy as jnp

from pallas_kernels.skinny_matmul.config import SkinnyMatmulConfig
from pallas_kernels.skinny_matmul.plan import MAX_SMEM, REGISTERS, SMEM_ALIGNMENT, WGMMA_ROWS, Plan
from pallas_kernels.skinny_matmul.product import Product

NUM_CORES = 132
SMEM_PER_CORE = 228 * 1024
# Bytes per microsecond: from memory (measured: 4.0 to 4.4 TB/s), from the second-level cache and into one SM. The
# cache's, a fit beyond what it gives for reads of different bytes, and STEP are from fp8's down with 64 rows and 32
# outputs a CTA (151 MB from the cache): 48 steps, tile_k=256, measured 17.5 us, estimated 19.0; 64 steps 21.4 and 21.0.
MEMORY_RATE, CACHE_RATE, CORE_RATE = 4.2e6, 16.0e6, 0.110e6
LATENCY = 1.5  # microseconds under load: at 4.2 TB/s 48 KB of the weight must be on their way to each SM
# Microseconds: a step's barriers; per 64 x 128 of the weight its wgmmas for 64 rows (half in fp8), and an int8 one's
# conversion; per 128 x 64 of x its scaling; and another kernel, for partial sums or padding.
STEP, MULTIPLY, CONVERT, SCALE, LAUNCH = 0.2, 0.05, 0.15, 0.25, 2.5
SAME_SUM_ROWS, SAME_SUM_AS = 64, 24
OVERLAP = 0.9  # share of everything but the slowest part that is hidden behind it


@cache
def default_config(product: Product, num_cores: int = NUM_CORES) -> SkinnyMatmulConfig:
    """The first of the candidates; up to `SAME_SUM_ROWS` rows, of those that sum in the order of `SAME_SUM_AS` rows.

    A row in a small block and in a large one then gets the same bits: the parts that the inputs are split into are all
    that the order of a sum depends on.

    Raises:
        NotImplementedError: no config fits the shape.
    """
    if product.num_rows > SAME_SUM_ROWS:
        return candidate_configs(product, num_cores, limit=1)[0]
    split_k = candidate_configs(replace(product, num_rows=SAME_SUM_AS), num_cores, limit=1)[0].split_k
    candidates = candidate_configs(product, num_cores, limit=None)
    return next((config for config in candidates if config.split_k == split_k), candidates[0])


def candidate_configs(product: Product, num_cores: int = NUM_CORES, limit: int | None = 24) -> list[SkinnyMatmulConfig]:
    """What a sweep should try, by estimate: of each split into outputs and inputs the two best pipelines.

    Raises:
        NotImplementedError: no config fits the shape.
    """
    distinct = dict.fromkeys(_all_configs(product, num_cores))
    ranked = sorted(distinct, key=lambda config: estimate(product, config, num_cores))
    if not ranked:
        raise NotImplementedError(f"no tiles for {product}: T up to 128, I a multiple of 64, O of 8 needed")
    chosen, taken = [], {}
    for config in ranked:
        split = (config.block_rows, config.warpgroups, config.split_k)
        taken[split] = taken.get(split, 0) + 1
        if taken[split] <= 2:
            chosen.append(config)
    return chosen[:limit]


def estimate(product: Product, config: SkinnyMatmulConfig, num_cores: int = NUM_CORES) -> float:
    """Microseconds, with the other kernels that a split or rows to be padded need."""
    plan = Plan(product, config)
    weight_size, x_size = (jnp.dtype(dtype).itemsize for dtype in (product.weight_dtype, product.x_dtype))
    inputs = plan.steps * config.tile_k
    weight = config.warpgroups * plan.halves * config.block_rows * inputs * weight_size
    x = plan.num_rows * inputs * x_size
    multiply = MULTIPLY * x_size / 2 * max(1, plan.num_rows / 64) + CONVERT * (product.weight_dtype == "int8")
    scale = SCALE * product.has_norm * plan.num_rows / 128
    step = STEP + max(multiply * plan.halves * config.tile_k / 128, scale * config.tile_k / 64)
    per_core = ctas_per_core(plan)

    def time_of(active: int) -> float:
        """Of CTAs that stream one work item each."""
        of_core = min(per_core, -(-active // num_cores))
        parts = [
            active * weight / MEMORY_RATE,
            active * (weight + x) / CACHE_RATE,
            of_core * (weight + x) / CORE_RATE,
            plan.steps / (plan.stages - 1 / 2) * LATENCY,
            plan.steps * step,
        ]
        return OVERLAP * max(parts) + (1 - OVERLAP) * sum(parts)

    concurrent = min(plan.num_ctas, per_core * num_cores)
    rounds, rest = divmod(plan.num_items, concurrent)
    # A CTA that goes through several tiles fills its pipeline once; one that ends leaves a gap unless another is there.
    gaps = 1 if config.max_ctas or per_core > 1 else rounds + (rest > 0)
    launches = LAUNCH * (plan.is_partial + 2 * plan.is_padded)
    return rounds * time_of(concurrent) + (time_of(rest) if rest else 0) + gaps * LATENCY + launches


def ctas_per_core(plan: Plan) -> int:
    """CTAs that share an SM: by shared memory and registers."""
    by_registers = REGISTERS // (plan.num_threads * plan.registers_needed) if plan.registers is None else 1
    return max(1, min(SMEM_PER_CORE // (plan.smem_bytes + SMEM_ALIGNMENT), by_registers))


def _all_configs(product: Product, num_cores: int) -> Iterator[SkinnyMatmulConfig]:
    """Every way to cut the product, for one and two CTAs an SM, as deep as shared memory allows."""
    rows = [rows for rows in range(8, WGMMA_ROWS + 1, 8) if product.width % rows == 0]
    inputs = [tile_k for tile_k in (64, 128, 192, 256) if product.num_inputs % tile_k == 0]
    for block_rows, warpgroups, tile_k, split_k in combinations(rows, (1, 2), inputs, (1, 2)):
        config = SkinnyMatmulConfig(
            block_rows=block_rows, warpgroups=warpgroups, tile_k=tile_k, stages=2, split_k=split_k
        )
        try:
            Plan(product, config).check()
        except NotImplementedError:
            continue
        for shared in (1, 2):
            yield from _deepened(product, config, shared * num_cores, shared)


def _deepened(product: Product, config: SkinnyMatmulConfig, max_ctas: int, shared: int) -> Iterator[SkinnyMatmulConfig]:
    """The config with the stages that fit `shared` CTAs an SM: a tile a CTA, and if there are more, with `max_ctas`."""
    plan = Plan(product, config)
    budget = min(MAX_SMEM, SMEM_PER_CORE // shared - SMEM_ALIGNMENT)
    stages = max(2, min(plan.steps, (budget - plan.shared_bytes) // plan.stage_bytes))
    deep = replace(config, stages=stages)
    if shared > 1 and ctas_per_core(Plan(product, deep)) < shared:
        return
    yield deep
    if plan.num_items > max_ctas:
        yield replace(deep, max_ctas=max_ctas)
