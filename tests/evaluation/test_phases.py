"""Times of the phases of a round, for drafters on the critical path and for those that draft ahead."""

from dataclasses import replace

import jax.numpy as jnp
import pytest
from flax import nnx

from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafters.jetspecpp import PLAIN_PASS
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.evaluation.phases import PhaseTimes, measure_phases
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import tiny_config, tiny_target

FORESIGHT = DraftingConfig(num_drafts=3, num_outcomes=2)


@pytest.fixture(scope="module")
def plain() -> LanguageModel:
    return LanguageModel(tiny_target(tiny_config(num_layers=1, taps=(0,))), drafter=None)


def jetspecpp(plain: LanguageModel, drafting: DraftingConfig) -> JetSpecPP:
    draft = Draft(draft_config_for(plain.config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0))
    config = adapter_config_for(plain.config, layers_per_module=(1,))
    return JetSpecPP(draft, Adapter.random(config, dtype=jnp.float32, rngs=nnx.Rngs(1)), drafting=drafting)


def check(phases: PhaseTimes) -> None:
    assert (phases.context_len, phases.capacity, phases.num_rows, phases.repeats) == (20, 32, 4, 3)
    assert min(phases.ar_ms, phases.verify_ms, phases.draft_ms) > 0
    assert phases.break_even_tau == (phases.verify_ms + phases.draft_ms) / phases.ar_ms


@pytest.mark.parametrize(
    "drafting",
    [
        pytest.param(replace(PLAIN_PASS, num_drafts=3), id="one-pass"),
        pytest.param(DraftingConfig(num_drafts=3, num_outcomes=0), id="refined"),
        pytest.param(replace(FORESIGHT, refine=RefineConfig(num_passes=0, num_refreshes=0)), id="foresight"),
        pytest.param(replace(FORESIGHT, miss_policy="soft_miss"), id="refined-foresight-without-fallback"),
    ],
)
def test_measures_every_way_of_drafting(plain, drafting, monkeypatch):
    drafter, parts = jetspecpp(plain, drafting), []
    for name in ("propose", "observe", "foresee", "next_block"):
        part = getattr(drafter, name)
        monkeypatch.setattr(drafter, name, lambda *args, n=name, p=part: (parts.append(n), p(*args))[1])
    phases = measure_phases(plain.with_drafter(drafter), context_len=20, repeats=3)
    check(phases)
    # Everything that the draft side does in a round is in the one program that is timed.
    assert [part for part in parts if part != "observe"] == (
        ["foresee", "next_block"] if drafter.foresees else ["propose"]
    )


def test_measures_the_draft_side_on_its_own_device(plain, cpu_devices):
    model = plain.with_drafter(jetspecpp(plain, FORESIGHT), draft_device=cpu_devices[1])
    check(measure_phases(model, context_len=20, repeats=3))


def test_measures_plain_decoding_as_rounds_of_one_row(plain):
    phases = measure_phases(plain, context_len=20, repeats=3)
    assert phases.num_rows == 1
    assert min(phases.ar_ms, phases.verify_ms, phases.draft_ms) > 0
