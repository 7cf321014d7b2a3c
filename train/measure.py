"""What every evaluation during training does: decode with the weights at hand and count tokens per round."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from jetspec_jax.drafters.jetspecpp import JetSpecPP
from jetspec_jax.evaluation.acceptance import Acceptance, measure_acceptance
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.target import Target


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """How τ is measured during training.

    Attributes:
        num_prompts: held-out prompts.
        max_new_tokens: per answer.
        batch_size: answers decoded together.
        num_drafts: γ; budget 16 verifies 15 drafts and the anchor.
    """

    num_prompts: int = 64
    max_new_tokens: int = 128
    batch_size: int = 64
    num_drafts: int = 15


class Measure:
    """τ of drafters of one shape; programs are compiled at the first call and kept.

    Args:
        target: the model.
        prompts: token ids.
        end_ids: what ends an answer.
        config: sizes.
    """

    def __init__(self, target: Target, prompts: Sequence[Sequence[int]], end_ids: Sequence[int], config: MeasureConfig):
        if not prompts:
            raise ValueError("no held-out prompts to measure with")
        self.config = config
        self._target, self._prompts, self._end_ids = target, list(prompts)[: config.num_prompts], tuple(end_ids)
        self._model: LanguageModel | None = None

    def __call__(self, drafter: JetSpecPP) -> Acceptance:
        """Decodes greedily with a drafter; all drafters given must have the same options."""
        if self._model is None:
            # Of this process: the first device of all may belong to another one.
            device = jax.local_devices()[0]
            self._model = LanguageModel(self._target, drafter=drafter, device=device, progress=False)
            self._model.eos_token_ids = self._end_ids
        else:
            self._model.programs.set_draft_leaves(drafter.place(self._model.device))
        return measure_acceptance(
            self._model,
            self._prompts,
            max_new_tokens=self.config.max_new_tokens,
            batch_size=min(self.config.batch_size, len(self._prompts)),
        )
