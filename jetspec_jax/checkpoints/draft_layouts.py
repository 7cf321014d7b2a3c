"""Weight tables of drafts and adapters: which tensors of a drafter folder make up which parameter.

Drafts use the names of the public DFlash and JetSpec checkpoints (handbook 1.3), adapters the same below
`modules.J.layers.N`. On disk projections are apart; in the modules q, k, v and gate, up are one weight each.
"""

from jetspec_jax.checkpoints.layouts import Source, WeightRow, layer_rows
from jetspec_jax.config import AdapterConfig, DraftConfig


def draft_rows(config: DraftConfig) -> tuple[WeightRow, ...]:
    """The weight table of a draft; embedding and head are the target's and have no row."""
    width = config.shape.hidden_size
    rows = [
        WeightRow("fc.weight", (Source("fc.weight", (width, config.num_taps * width)),)),
        WeightRow("hidden_norm.scale", (Source("hidden_norm.weight", (width,)),)),
    ]
    for layer in range(config.num_layers):
        rows += layer_rows(config.shape, f"layers.{layer}", f"layers.{layer}")
    return (*rows, WeightRow("norm.scale", (Source("norm.weight", (width,)),)))


def adapter_rows(config: AdapterConfig) -> tuple[WeightRow, ...]:
    """The weight table of an adapter: layers alone."""
    return tuple(
        row
        for module, num_layers in enumerate(config.layers_per_module)
        for layer in range(num_layers)
        for row in layer_rows(config.shape, f"chain.{module}.{layer}", f"modules.{module}.layers.{layer}")
    )
