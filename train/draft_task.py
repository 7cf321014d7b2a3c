"""The draft as a task of the loop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jetspec_jax.config import DraftConfig
from jetspec_jax.drafters.jetspecpp import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import Leaves, split, structure
from jetspec_jax.models.target import Target
from train.draft_objective import DraftObjective, FrozenParts, draft_loss
from train.measure import Measure
from train.sequence import cast


class DraftTask:
    """Trains a draft for a frozen target; measured with one pass a round on the critical path.

    Args:
        target: in the dtype it is served in.
        config: of the draft.
        objective: blocks and loss.
        measure: decodes held-out prompts.
        adapter: for an objective with predicted states.
        starts_from_target: draft layers start as copies of the target's last layers, not at random.
    """

    name = "draft"

    def __init__(
        self,
        target: Target,
        config: DraftConfig,
        objective: DraftObjective,
        measure: Measure,
        *,
        adapter: Adapter | None = None,
        starts_from_target: bool = False,
    ):
        if (adapter is None) != (objective.predicted_share == 0):
            raise ValueError(
                f"predicted_share={objective.predicted_share} with{'out' if adapter is None else ''} an adapter"
            )
        blocks = objective.blocks
        facts = (config.block_rows, config.inputs, config.mask_token_id, config.shift)
        if facts != (blocks.num_rows, blocks.inputs, blocks.mask_token_id, blocks.shift):
            raise ValueError(f"the draft's rows, inputs, mask and shift are {facts}, the objective's {blocks}")
        self.target, self.config, self.objective, self.measure = target, config, objective, measure
        self.adapter, self.starts_from_target = adapter, starts_from_target
        self._target_definition, target_leaves = split(target)
        self._adapter_definition, adapter_leaves = (None, ()) if adapter is None else split(adapter)
        self._frozen = FrozenParts(target_leaves, adapter_leaves)
        self._definition = structure(nnx.eval_shape(lambda: Draft(config, dtype=jnp.float32, rngs=nnx.Rngs(0))))

    def init_params(self, seed: int) -> Leaves:
        """Random weights, or the target's last layers where shapes agree."""
        draft = Draft(self.config, dtype=jnp.float32, rngs=nnx.Rngs(seed))
        if self.starts_from_target:
            copy_last_layers(self.target, draft)
        return split(draft)[1]

    @property
    def frozen(self) -> FrozenParts:
        """Target and adapter."""
        return self._frozen

    def loss(self, params: Leaves, frozen: FrozenParts, batch: Any, key: jax.Array) -> tuple[jax.Array, dict]:
        """See `draft_loss`."""
        definitions = (self._target_definition, self._definition)
        return draft_loss(self.objective, *definitions, params, frozen, batch, key, self._adapter_definition)

    def module(self, params: Leaves) -> Draft:
        """The draft as it is served, in the target's dtype."""
        return self._definition.merge(cast(params, self.target.dtype))

    def evaluate(self, params: Leaves, step: int) -> dict[str, float]:
        """τ of one pass a round."""
        drafting = DraftingConfig(
            num_drafts=self.measure.config.num_drafts, refine=RefineConfig.parse("J0"), num_outcomes=0
        )
        found = self.measure(JetSpecPP(self.module(params), drafting=drafting))
        return {"tau": found.tau, "rounds": float(found.num_rounds), "accept_1": found.acceptance_at[0]}


def copy_last_layers(target: Target, draft: Draft) -> None:
    """Fills draft layers with the target's last ones, except for what the target has not (its qk-norm).

    Raises:
        ValueError: another width, heads or MLP, or fewer layers than the draft has.
    """
    sources = target.layers[len(target.layers) - len(draft.layers) :]
    if len(sources) != len(draft.layers):
        raise ValueError(f"the draft has {len(draft.layers)} layers, the target {len(target.layers)}")
    for source, layer in zip(sources, draft.layers, strict=True):
        given = {path: value[...] for path, value in nnx.to_flat_state(nnx.state(source))}
        for path, variable in nnx.to_flat_state(nnx.state(layer)):
            if path not in given and "q_norm" not in path and "k_norm" not in path:
                raise ValueError(f"the target's layers have no {'.'.join(map(str, path))}")
            if path in given and given[path].shape != variable.shape:
                raise ValueError(f"{path}: target {given[path].shape}, draft {variable.shape}")
        kept = [(path, variable) for path, variable in nnx.to_flat_state(nnx.state(layer)) if path in given]
        nnx.update(
            layer,
            nnx.from_flat_state(
                {path: variable.replace(jnp.asarray(np.asarray(given[path]), jnp.float32)) for path, variable in kept}
            ),
        )
