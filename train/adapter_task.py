"""The adapter as a task of the loop."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jetspec_jax.config import AdapterConfig, draft_config_for
from jetspec_jax.drafters.jetspecpp import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import Leaves, split, structure
from jetspec_jax.models.target import Target
from train.adapter_objective import AdapterObjective, adapter_loss
from train.measure import Measure
from train.sequence import cast


class AdapterTask:
    """Trains an adapter for a frozen target.

    Args:
        target: in the dtype it is served in.
        config: of the adapter.
        objective: blocks, weights, loss.
        measure: decodes held-out prompts.
        draft: a trained draft to measure with, at J1-R1. None measures J3-R3 over an untrained draft, where each
            refresh settles at least one token by the adapter and the decoder alone; τ is then at most a little above 4.
        starts_from_target: layers start as copies of the target's, evenly spaced between taps, not at random.
    """

    name = "adapter"

    def __init__(
        self,
        target: Target,
        config: AdapterConfig,
        objective: AdapterObjective,
        measure: Measure,
        *,
        draft: Draft | None = None,
        starts_from_target: bool = True,
    ):
        self.target, self.config, self.objective, self.measure = target, config, objective, measure
        self.starts_from_target = starts_from_target
        self._refine = RefineConfig.parse("J3-R3" if draft is None else "J1-R1")
        if draft is None:
            draft = Draft(draft_config_for(target.config), dtype=target.dtype, rngs=nnx.Rngs(0))
        self.draft = draft
        self._target_definition, self._frozen = split(target)
        abstract = nnx.eval_shape(lambda: Adapter.random(config, dtype=jnp.float32, rngs=nnx.Rngs(0)))
        self._definition = structure(abstract)

    def init_params(self, seed: int) -> Leaves:
        """Copies of target layers, or random weights."""
        if self.starts_from_target:
            adapter = Adapter.from_target(self.target, self.config)
        else:
            adapter = Adapter.random(self.config, dtype=jnp.float32, rngs=nnx.Rngs(seed))
        return cast(split(adapter)[1], jnp.float32)

    @property
    def frozen(self) -> Leaves:
        """The target."""
        return self._frozen

    def loss(self, params: Leaves, frozen: Leaves, batch: Any, key: jax.Array) -> tuple[jax.Array, dict]:
        """See `adapter_loss`."""
        return adapter_loss(self.objective, self._target_definition, self._definition, params, frozen, batch, key)

    def module(self, params: Leaves) -> Adapter:
        """The adapter as it is served, in the target's dtype."""
        return self._definition.merge(cast(params, self.target.dtype))

    def evaluate(self, params: Leaves, step: int) -> dict[str, float]:
        """τ of refined drafting on the critical path."""
        drafting = DraftingConfig(num_drafts=self.measure.config.num_drafts, refine=self._refine, num_outcomes=0)
        found = self.measure(JetSpecPP(self.draft, self.module(params), drafting=drafting))
        return {"tau": found.tau, "rounds": float(found.num_rounds), "accept_1": found.acceptance_at[0]}
