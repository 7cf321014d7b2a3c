"""What predicted states are worth: blocks drafted from them against blocks drafted from true states (handbook 7.4).

Both sides draft every block for the outcome that came, so neither outcome selection nor cache size plays a part. The
outcomes are known from the text that the critical path decoded before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jetspec_jax.drafters.jetspecpp import JetSpecPP
from jetspec_jax.drafting_config import RefineConfig
from jetspec_jax.evaluation.acceptance import measure_acceptance
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.testing.foresight import KnownOutcomes


@dataclass(frozen=True)
class StatesReport:
    """τ by kind of states.

    Attributes:
        true, predicted: tokens a round.
        known: share of rounds whose outcome was the known one; below 1 where the two runs decoded different texts (near
            ties in bf16), and the block was then drafted from true states.
    """

    true: float
    predicted: float
    known: float

    @property
    def ratio(self) -> float:
        """Predicted over true."""
        return self.predicted / self.true


def compare_states(
    model: LanguageModel, drafter: JetSpecPP, prompts: Sequence[Sequence[int]], refine: str, *, max_new_tokens: int
) -> StatesReport:
    """Decodes greedily twice, in one batch.

    Args:
        model: gives the target.
        drafter: with an adapter; its refinement and cache size play no part.
        prompts: token ids.
        refine: `J0`, `J1-R1`, ...
        max_new_tokens: per prompt.

    Raises:
        ValueError: the drafter has no adapter.
    """
    if drafter.adapter is None:
        raise ValueError("a drafter without an adapter predicts no states")
    prompts = sorted(prompts, key=len)  # the order in which `answer_prompts` decodes them
    options = {"max_new_tokens": max_new_tokens, "batch_size": len(prompts)}
    refining = RefineConfig.parse(refine)
    at_critical_path = drafter.with_drafting(refine=refining, num_outcomes=0)
    true = measure_acceptance(model, prompts, drafter=at_critical_path, keep_answers=True, **options)
    texts = [[*prompt, *answer.token_ids] for prompt, answer in zip(prompts, true.answers, strict=True)]
    changes = {"refine": refining, "num_outcomes": 1, "outcome_rule": "uncalibrated"}
    foreseeing = JetSpecPP(
        drafter.draft, KnownOutcomes(drafter.adapter, texts), drafting=drafter.with_drafting(**changes).drafting
    )
    predicted = measure_acceptance(model, prompts, drafter=foreseeing, **options)
    return StatesReport(true.tau, predicted.tau, predicted.hit_rate)
