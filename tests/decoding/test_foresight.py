"""Foresight against theory: exact outcome scores, blocks drafted ahead equal blocks drafted after, coupled noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.decoding.draft_side import DraftSide
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import OraclePredictor, TableTarget, tiny_config, tiny_target

pytestmark = pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Large programs that run for a moment each."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


P = np.random.default_rng(0).dirichlet(np.full(5, 0.7), 5)


class TableSide(DraftSide):
    """A draft that takes the second likeliest token after 0 and 1, the likeliest after the others."""

    def draft_logits(self, rows, start, num_fixed, states, config):
        best = np.argsort(-P, axis=1)
        choice = np.where(np.arange(5) < 2, best[:, 1], best[:, 0])
        return 9.0 * jax.nn.one_hot(jnp.asarray(choice)[rows], 5)


class TableJetSpecPP(JetSpecPP):
    side_type = TableSide


# Rows of a batch are unrolled in the programs: few rows and many calls compile faster than many rows.
BATCH = 12


def table_model(**drafting) -> LanguageModel:
    target = TableTarget(np.log(P))
    draft = Draft(draft_config_for(target.config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0))
    options = {"num_drafts": 3, "num_outcomes": 3, "refine": RefineConfig.parse("J1")} | drafting
    drafter = TableJetSpecPP(draft, OraclePredictor(target), drafting=DraftingConfig(**options))
    return LanguageModel(target, drafter=drafter, max_batch=BATCH)


def hits_and_mass(model: LanguageModel, num_requests: int, **options) -> tuple[np.ndarray, np.ndarray]:
    requests = [SamplingParams(seed=row, **options) for row in range(num_requests)]
    outputs = model.generate([[row % 5] for row in range(num_requests)], requests)
    hits = np.concatenate([output.stats.hits for output in outputs])
    return hits, np.concatenate([output.stats.cache_mass for output in outputs])


def test_perfect_decoder_hits_as_often_as_it_promises():
    """9.1: the target itself as adapter and decoder; the hit rate is the mass of the selected outcomes."""
    model = table_model(couple_noise=False)
    hits, mass = hits_and_mass(model, 10 * BATCH, temperature=1.0, max_new_tokens=500)
    assert len(hits) > 20_000
    assert abs(hits.mean() - mass.mean()) < 0.01
    # Not only on average: rounds that promise more hit more.
    for low, high in ((0, 0.5), (0.5, 0.7), (0.7, 1.0)):
        among = (low <= mass) & (mass < high)
        if among.sum() > 3000:
            assert abs(hits[among].mean() - mass[among].mean()) < 0.02
    assert np.std(mass) > 0.05


def test_perfect_adapter_and_decoder_of_a_transformer():
    """The same with the real modules: an adapter that copies the target's layers is exact."""
    config = tiny_config(num_layers=3, taps=(0, 1))
    target = tiny_target(config)
    draft = Draft(draft_config_for(config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0))
    adapter = Adapter.from_target(target, adapter_config_for(config, layers_per_module=(1, 1)))
    drafting = DraftingConfig(num_drafts=3, num_outcomes=4, couple_noise=False)
    model = LanguageModel(target, drafter=JetSpecPP(draft, adapter, drafting=drafting), max_batch=BATCH)
    hits, mass = hits_and_mass(model, 2 * BATCH, temperature=0.8, max_new_tokens=250)
    assert len(hits) > 3000
    # Three standard errors of the mean, and never more than 2.5 %.
    assert abs(hits.mean() - mass.mean()) < min(0.025, 3 * np.sqrt(np.mean(mass * (1 - mass)) / len(hits)))


def test_coupled_noise_foresees_the_draw_itself():
    """With the draw's own noise a perfect decoder's favourite outcome is the outcome: one prepared block is enough."""
    options = {"num_outcomes": 1, "refine": RefineConfig.parse("J3-R3"), "decision_temperature": 1e-3}
    coupled, uncoupled = table_model(**options), table_model(**options, couple_noise=False)
    requests = [SamplingParams(seed=row, temperature=1.0, max_new_tokens=120) for row in range(BATCH)]
    prompts = [[row % 5] for row in range(BATCH)]
    foreseen, guessed = coupled.generate(prompts, requests), uncoupled.generate(prompts, requests)
    assert [o.token_ids for o in foreseen] == [o.token_ids for o in guessed]
    # Three refreshes write three tokens of the text: after the first round (one pass) every block is right and ready.
    assert all(set(output.stats.committed[1:-1]) == {4} for output in foreseen)
    assert all(output.stats.hit_rate == 1 and output.stats.expected_hit_rate > 0.98 for output in foreseen)
    assert max(output.stats.tau for output in guessed) < 3


@pytest.mark.parametrize(("refine", "temperature"), [("J0", 1.0), ("J2-R2", 0.0), ("J2-R2", 1.0)])
def test_hit_path_equals_fallback_path_with_true_states(refine, temperature):
    """9.4: where predicted states are the true ones, a block drafted ahead is the block drafted after, pass by pass."""
    config = tiny_config(taps=(0, 1))
    target = tiny_target(config, sharpness=6.0)
    draft = Draft(draft_config_for(config, num_layers=2), dtype=jnp.float32, rngs=nnx.Rngs(0))
    drafting = DraftingConfig(
        num_drafts=4,
        refine=RefineConfig.parse(refine),
        num_outcomes=4,
        miss_policy="refined_fallback",
        keep_trace=True,
    )
    ahead = JetSpecPP(draft, OraclePredictor(target), drafting=drafting)
    traces = []
    for drafter in (ahead, ahead.with_drafting(num_outcomes=0)):
        model = LanguageModel(target, drafter=drafter)
        chunks = model.stream([5, 6, 7], max_new_tokens=120, temperature=temperature, seed=2)
        traces.append([chunk.trace for chunk in chunks if chunk.trace is not None])
    assert sum(trace.is_hit for trace in traces[0]) > 15
    assert not any(trace.is_hit for trace in traces[1])
    assert [trace.passes for trace in traces[0]] == [trace.passes for trace in traces[1]]
    hits = [index for index, trace in enumerate(traces[0]) if trace.is_hit]
    assert [traces[0][i].proxies for i in hits] == [traces[1][i].proxies for i in hits]
