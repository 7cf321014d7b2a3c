"""The products of a layer cut up among the CTAs of one grid: counts, shared memory, limits."""

from dataclasses import dataclass
from functools import cached_property

from pallas_kernels.layer_products.config import LayerProductsConfig

WGMMA_ROWS = 64  # M of a wgmma: outputs
CHUNK = 64  # inputs of a wgmma call, and bf16 elements of a swizzled row
WARPGROUPS = 2  # that multiply
MAX_ROWS = 32
MAX_BOX = 256  # of a TMA copy, in each direction
MAX_SMEM = 227 * 1024  # of a CTA on Hopper
OTHER_SMEM = 4096  # Mosaic's scratch for sums across warps, factors of the rows, barriers


@dataclass(frozen=True)
class Phase:
    """One product; the grid meets before the next begins.

    Attributes:
        name: of the weight.
        num_outputs: rows of the weight, gate and up together.
        num_inputs: its columns.
        halves: 2 for gate and up, otherwise 1.
        rows: outputs of a CTA in each half.
        width: inputs of a step, which fills a slot of the ring; those beyond the weight's count as zeros.
        first_step: of all steps that a CTA goes through.
    """

    name: str
    num_outputs: int
    num_inputs: int
    halves: int
    rows: int
    width: int
    first_step: int

    @property
    def splits_inputs(self) -> bool:
        """The warpgroups have all outputs of the CTA and a part of the inputs each, else a part of the outputs.

        A wgmma reads 64 outputs from shared memory, however few there are: with 16 that would be four times too much.
        """
        return self.halves == 1

    @property
    def own_rows(self) -> int:
        """Outputs of a warpgroup in each half."""
        return self.rows if self.splits_inputs else self.rows // WARPGROUPS

    @property
    def own_width(self) -> int:
        """Inputs of a warpgroup in a step."""
        return self.width // WARPGROUPS if self.splits_inputs else self.width

    @property
    def slot_rows(self) -> int:
        """Outputs of a CTA."""
        return self.halves * self.rows

    @property
    def num_steps(self) -> int:
        """Slots that the weight goes through."""
        return -(-self.num_inputs // self.width)

    @property
    def spare_rows(self) -> int:
        """Rows behind the last slot that its last wgmma reads, for nothing."""
        return WGMMA_ROWS - self.own_rows


@dataclass(frozen=True)
class Plan:
    """Counts derived from the shapes of a layer and a config.

    Attributes:
        num_rows: T as given.
        hidden_size, heads_size, mlp_size: D, N H and F.
        qkv_size: outputs of the next layer's first product; None: the call ends with the residual stream.
        norm_eps: of both norms.
    """

    num_rows: int
    hidden_size: int
    heads_size: int
    mlp_size: int
    qkv_size: int | None
    norm_eps: tuple[float, float]
    config: LayerProductsConfig

    @property
    def padded_rows(self) -> int:
        """N of a wgmma."""
        return -(-self.num_rows // 8) * 8

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """In the order they run in."""
        products = [
            ("out", self.hidden_size, self.heads_size, 1),
            ("gate_up", 2 * self.mlp_size, self.hidden_size, 2),
            ("down", self.hidden_size, self.mlp_size, 1),
        ]
        if self.qkv_size is not None:
            products.append(("qkv", self.qkv_size, self.hidden_size, 1))
        phases, step = [], 0
        for name, outputs, inputs, halves in products:
            rows = outputs // halves // self.config.num_ctas
            width = self.config.slot_size // (halves * rows) if rows else 0
            phases.append(Phase(name, outputs, inputs, halves, rows, width, step))
            step += phases[-1].num_steps if width else 0
        return tuple(phases)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a step: a slot of the weight and as many inputs of x, of the widest product."""
        return 2 * (self.config.slot_size + self.padded_rows * max(phase.width for phase in self.phases))

    @property
    def stages(self) -> int:
        """Slots of the rings."""
        fitting = (MAX_SMEM - self.shared_bytes) // self.stage_bytes
        return fitting if self.config.stages is None else self.config.stages

    @property
    def shared_bytes(self) -> int:
        """Shared memory beside the stages: sums that the warpgroups exchange, and what is small."""
        return 4 * WARPGROUPS * WGMMA_ROWS * self.padded_rows + OTHER_SMEM

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a CTA."""
        slots = 2 * self.stages * self.config.slot_size
        spare = max(2 * phase.spare_rows * phase.width for phase in self.phases)
        return max(slots + spare, self.stages * self.stage_bytes) + self.shared_bytes

    def check(self) -> None:
        """Whether the kernel can do it.

        Raises:
            NotImplementedError: it cannot.
        """
        config = self.config
        needs = {f"T is 1 to {MAX_ROWS}": 0 < self.num_rows <= MAX_ROWS}
        for phase in self.phases:
            multiple = 8 * phase.halves * config.num_ctas * (1 if phase.splits_inputs else WARPGROUPS)
            chunks = CHUNK * phase.width // phase.own_width if phase.width else CHUNK
            needs |= {
                f"{phase.name} has outputs in multiples of {multiple}": phase.num_outputs % multiple == 0,
                f"{phase.name} has inputs in multiples of {CHUNK}": phase.num_inputs % CHUNK == 0,
                f"a warpgroup has up to {WGMMA_ROWS} outputs of {phase.name}": phase.own_rows <= WGMMA_ROWS,
                f"{phase.name} fills slots of {config.slot_size} elements in steps of {chunks} inputs": phase.width > 0
                and phase.width % chunks == 0
                and phase.width * phase.slot_rows == config.slot_size,
                f"{phase.name} has up to {MAX_BOX} outputs a CTA": phase.rows <= MAX_BOX,
            }
        unmet = [need for need, is_met in needs.items() if not is_met]
        if not unmet and self.stages < 2:
            unmet = [f"two stages do not fit into {MAX_SMEM} bytes of shared memory"]
        if not unmet and self.smem_bytes > MAX_SMEM:
            unmet = [f"a CTA has {MAX_SMEM} bytes of shared memory, this is {self.smem_bytes}"]
        if unmet:
            raise NotImplementedError(f"{'; '.join(unmet)}: {self}")
