"""A product cut up by a config: counts that the kernel goes by, shared memory, and the limits of both."""

from dataclasses import dataclass

import jax.numpy as jnp

from pallas_kernels.skinny_matmul.config import SkinnyMatmulConfig
from pallas_kernels.skinny_matmul.product import Product

WGMMA_ROWS = 64  # M of a wgmma: outputs
CHUNK = 64  # inputs that the norm treats at once, and bf16 elements of a swizzled row
MAX_ROWS = 128
WEIGHT_DTYPES = ("bfloat16", "int8", "float8_e4m3fn")
OUT_DTYPES = ("bfloat16", "float32", "float8_e4m3fn")
MAX_INPUTS_OF_NORM = 256 * CHUNK  # 256: sizes of a TMA box
MAX_SMEM = 227 * 1024  # of a CTA on Hopper
SMEM_ALIGNMENT = 1024
REGISTERS, MAX_REGISTERS = 512, 255  # of all warpgroups' threads together, and of one thread
REDUCTION_SMEM = 2048  # Mosaic's scratch for sums across warps


@dataclass(frozen=True)
class Plan:
    """Counts derived from a product and a config.

    A *work item* is a range of the inputs for the outputs of one CTA; a *round* is one work item of a CTA, a *step* one
    tile of inputs.
    """

    product: Product
    config: SkinnyMatmulConfig

    @property
    def num_rows(self) -> int:
        """T as the kernel sees it: N of a wgmma is a multiple of 8."""
        return -(-self.product.num_rows // 8) * 8

    @property
    def given_rows(self) -> int:
        """Rows of x, residual and result in memory: up to 8 may be fewer than the kernel's, which TMA reads as zero."""
        return self.product.num_rows if self.product.num_rows <= 8 else self.num_rows

    @property
    def is_padded(self) -> bool:
        """Rows are copied before and after the kernel."""
        return self.given_rows != self.product.num_rows

    @property
    def is_partial(self) -> bool:
        """The kernel writes partial sums and nothing but the norm's scale is fused."""
        return self.config.split_k > 1

    @property
    def halves(self) -> int:
        """Accumulators of a warpgroup: gate and up, or one."""
        return 2 if self.product.is_swiglu and not self.is_partial else 1

    @property
    def num_blocks(self) -> int:
        """Blocks of outputs in each half."""
        return self.product.num_outputs // self.halves // self.config.block_rows

    @property
    def steps(self) -> int:
        """Of a round."""
        return self.product.num_inputs // self.config.tile_k // self.config.split_k

    @property
    def stages(self) -> int:
        """No more than a round has steps."""
        return min(self.config.stages, self.steps)

    @property
    def num_items(self) -> int:
        """Work items of all CTAs."""
        return self.num_blocks // self.config.warpgroups * self.config.split_k

    @property
    def num_ctas(self) -> int:
        """Of the grid."""
        return self.num_items if self.config.max_ctas is None else min(self.num_items, self.config.max_ctas)

    @property
    def num_threads(self) -> int:
        """Warpgroups of a CTA: those that multiply, the one that loads and the one that scales x by the norm."""
        return self.config.warpgroups + 1 + self.product.has_norm

    @property
    def out_dtype(self) -> jnp.dtype:
        """Of what the kernel writes."""
        return jnp.dtype(jnp.float32 if self.is_partial else self.product.out_dtype)

    @property
    def fuses_scale(self) -> bool:
        """The kernel applies the scale of the outputs."""
        return self.product.has_scale and not self.is_partial

    @property
    def fuses_residual(self) -> bool:
        """The kernel adds the residual."""
        return self.product.has_residual and not self.is_partial

    @property
    def num_side_loads(self) -> int:
        """Tiles that the epilogue of a warpgroup waits for."""
        return self.fuses_residual + self.halves * self.fuses_scale

    @property
    def registers_needed(self) -> int:
        """Of a thread that multiplies: the sums, two chunks of an int8 weight as bf16, and 30 (compiled for sm_90a)."""
        of_weight = min(self.config.tile_k, 2 * CHUNK) // 4 if self.product.weight_dtype == "int8" else 0
        return 30 + self.halves * (self.num_rows // 2 + of_weight)

    @property
    def registers(self) -> tuple[int, int, int] | None:
        """Of a thread that loads, scales and multiplies; None: equal shares are enough."""
        share = REGISTERS // self.num_threads // 8 * 8
        if self.registers_needed <= min(share, MAX_REGISTERS):
            return None
        load, scale = 24, 120 * self.product.has_norm  # what they need for 128 rows
        multiply = (share * self.num_threads - load - scale) // self.config.warpgroups // 8 * 8
        return load, scale, min(multiply, MAX_REGISTERS // 8 * 8)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage: tiles of the weight and of x, and their barriers."""
        config, weight_size = self.config, jnp.dtype(self.product.weight_dtype).itemsize
        weight = config.warpgroups * self.halves * WGMMA_ROWS * config.tile_k * weight_size
        x = self.num_rows * config.tile_k * jnp.dtype(self.product.x_dtype).itemsize
        return weight + x + 8 * (3 + self.product.has_norm)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA beside the stages."""
        config, product = self.config, self.product
        arrays = [
            config.warpgroups * self.num_rows * WGMMA_ROWS * self.out_dtype.itemsize,
            self.fuses_scale * config.warpgroups * self.halves * WGMMA_ROWS * 4,
        ]
        if product.has_norm:
            arrays += [product.num_inputs * 2, self.num_rows * 4, REDUCTION_SMEM]
        barriers = 8 * (config.warpgroups + 2 * product.has_norm)
        return sum(-(-array // SMEM_ALIGNMENT) * SMEM_ALIGNMENT for array in arrays) + barriers

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA."""
        return self.stages * self.stage_bytes + self.shared_bytes

    def check(self) -> None:
        """Whether the kernel can do it.

        Raises:
            NotImplementedError: it cannot.
        """
        product, config = self.product, self.config
        tile = config.block_rows * config.warpgroups * self.halves
        needs = {
            f"T is 1 to {MAX_ROWS}, padded to a multiple of 8": 0 < self.num_rows <= MAX_ROWS,
            "the weight is bfloat16, int8 or float8_e4m3fn": product.weight_dtype in WEIGHT_DTYPES,
            "x of an fp8 weight is normalised before": not (product.has_norm and product.x_dtype != "bfloat16"),
            "the result is bfloat16, float32 or float8_e4m3fn": product.out_dtype in OUT_DTYPES,
            "an fp8 result has no residual": not (product.has_residual and product.out_dtype == "float8_e4m3fn"),
            "block_rows is a multiple of 8 up to 64": config.block_rows in range(8, WGMMA_ROWS + 1, 8),
            # TMA writes lines of 16 bytes.
            "block_rows of an fp8 result is a multiple of 16": self.out_dtype.itemsize > 1
            or config.block_rows % 16 == 0,
            "warpgroups is 1 or 2": config.warpgroups in (1, 2),
            f"O is a multiple of a CTA's {tile} outputs": product.num_outputs % tile == 0,
            f"tile_k is a multiple of {CHUNK} up to 256": config.tile_k in range(CHUNK, 257, CHUNK),
            "I is a multiple of tile_k * split_k": product.num_inputs % (config.tile_k * config.split_k) == 0,
            f"a norm has up to {MAX_INPUTS_OF_NORM} inputs": product.num_inputs <= MAX_INPUTS_OF_NORM
            or not product.has_norm,
            "there are 2 stages or more": config.stages >= 2,
            "max_ctas is positive": config.max_ctas is None or config.max_ctas > 0,
        }
        unmet = [need for need, is_met in needs.items() if not is_met]
        if not unmet and self.smem_bytes > MAX_SMEM:
            unmet = [f"a CTA has {MAX_SMEM} bytes of shared memory, this is {self.smem_bytes}"]
        if not unmet and self.registers and self.registers_needed > self.registers[2]:
            unmet = [f"a thread can have {self.registers[2]} registers, this is about {self.registers_needed}"]
        if unmet:
            raise NotImplementedError(f"{'; '.join(unmet)}: {product}, {config}")
