"""How the products of a layer share a grid."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LayerProductsConfig:
    """Tiles and pipeline.

    Attributes:
        num_ctas: of the grid, all of which run at the same time: one an SM.
        slot_size: elements of a slot of the ring of weights, which a step of every product fills: a multiple of 64 times
            the outputs of a CTA in each.
        stages: slots; None: as many as fit.
    """

    num_ctas: int = 128
    slot_size: int = 192 * 64
    stages: int | None = None
    no_auto: bool = True
