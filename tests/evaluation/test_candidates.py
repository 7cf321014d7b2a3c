"""What `bench` tries when it is not told, by device and by what there are weights for."""

from types import SimpleNamespace

import pytest

from jetspec_jax.drafters import JetSpecPP, NgramDrafter
from jetspec_jax.evaluation.candidates import candidate_names, candidate_sizes, candidates
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.testing import tiny_target


def model_on(platform: str, drafter) -> LanguageModel:
    """Nothing but a drafter and the kind of device it is on."""
    model = object.__new__(LanguageModel)
    model.drafter, model.device = drafter, SimpleNamespace(platform=platform)
    return model


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(tiny_target(), drafter=None)


@pytest.mark.parametrize(
    ("platform", "names", "most"),
    [
        pytest.param("cpu", ("parallel", "ngram"), 7, id="cpu-refines-nothing"),
        pytest.param("gpu", ("parallel", "jetspec++", "ngram"), 15, id="gpu"),
    ],
)
def test_tries_the_shipped_draft_and_text_lookup(model, platform, names, most):
    with_weights = model_on(platform, JetSpecPP.random(model.config, dtype="float32"))
    assert candidate_names(with_weights) == names
    assert candidate_names(model_on(platform, NgramDrafter(2))) == ("ngram",)
    assert max(candidate_sizes(with_weights)) == most
    assert min(candidate_sizes(with_weights)) >= 2


def test_every_drafter_is_tried_with_every_size(model):
    tried = candidates(model, ("ngram", "autoregressive"), (0,)) + candidates(model, ("ngram",), (2, 3))
    found = [(candidate.drafter.name, candidate.drafter.num_drafts) for candidate in tried]
    assert found == [("autoregressive", 0), ("autoregressive", 0), ("ngram", 2), ("ngram", 3)]
    assert all(candidate.programs.target_leaves is model.programs.target_leaves for candidate in tried)
