"""What `bench` tries beside plain decoding when it is not told: cheap drafters, and block sizes that can win."""

from collections.abc import Sequence

import jax

from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig
from jetspec_jax.language_model import LanguageModel

# On CPU every row of a pass costs time, so that small blocks win; elsewhere rows are nearly free.
NUM_DRAFTS_ON_CPU, NUM_DRAFTS = (2, 3, 4, 7), (4, 8, 15)


def candidate_names(model: LanguageModel) -> tuple[str, ...]:
    """Drafters for a model that was loaded with `auto`: those that need no training, or come trained.

    Refinement is left out on CPU, where a second pass costs more than it brings (`docs/results.md`).
    """
    if not isinstance(model.drafter, JetSpecPP):
        return ("ngram",)
    return ("parallel", "ngram") if model.device.platform == "cpu" else ("parallel", "jetspec++", "ngram")


def candidate_sizes(model: LanguageModel) -> tuple[int, ...]:
    """Block sizes for the device of a model."""
    return NUM_DRAFTS_ON_CPU if model.device.platform == "cpu" else NUM_DRAFTS


def candidates(
    model: LanguageModel,
    names: Sequence[str],
    num_drafts: Sequence[int],
    *,
    drafting: DraftingConfig | None = None,
    draft_device: jax.Device | None = None,
) -> list[LanguageModel]:
    """The target with each drafter and block size; the options are those of `LanguageModel`."""
    options = {"drafting": drafting, "draft_device": draft_device}
    return [model.with_drafter(name, num_drafts=count, **options) for name in names for count in num_drafts]
