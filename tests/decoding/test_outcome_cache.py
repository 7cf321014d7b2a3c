"""I03: a prepared block is used for its own request, round, accepted length and anchor, and for nothing else."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import draft_config_for
from jetspec_jax.decoding.outcome_cache import OutcomeCache, select_block
from jetspec_jax.decoding.outcomes import Outcomes
from jetspec_jax.decoding.proposal import Proposal, RefineTrace
from jetspec_jax.decoding.state import ContextRows, Verdict
from jetspec_jax.decoding.verify import NO_TOKEN
from jetspec_jax.drafting_config import DraftingConfig
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import OraclePredictor, PeekingJetSpecPP, counting_target

pytestmark = pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")

KEYS = [(2, 7), (2, 9), (0, 7), (1, 3)]  # (k, a), likeliest first


def verdict_of(num_accepted: int, anchor: int, *, request: int = 5, round_index: int = 11) -> Verdict:
    def one(value):
        return jnp.asarray([value], jnp.int32)

    rows = ContextRows(jnp.zeros((1, 4), jnp.int32), jnp.zeros((1, 4, 1, 2)), one(0), one(num_accepted + 1))
    return Verdict(one(request), one(round_index), one(num_accepted), one(anchor), rows)


@pytest.fixture
def cache() -> OutcomeCache:
    outcomes = Outcomes(
        num_accepted=jnp.asarray([[k for k, _ in KEYS]], jnp.int32),
        anchor=jnp.asarray([[a for _, a in KEYS]], jnp.int32),
        log_score=jnp.log(jnp.asarray([[0.4, 0.3, 0.1, 0.05]])),
        is_valid=jnp.ones((1, 4), bool),
    )
    tokens = jnp.arange(12, dtype=jnp.int32).reshape(1, 4, 3)
    trace = RefineTrace(jnp.stack([tokens + 50, tokens], axis=2), jnp.zeros((1, 4, 2), jnp.int32), tokens[:, :, None])
    proposals = replace(Proposal.of_tokens(tokens, None, trace), mass=jnp.full((1, 4), 0.85))
    return OutcomeCache(jnp.asarray([5], jnp.int32), jnp.asarray([11], jnp.int32), outcomes, proposals)


@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("soft", [False, True])
def test_exact_match(cache, row, soft):
    block = select_block(cache, verdict_of(*KEYS[row]), soft=soft)
    assert block.tokens.tolist() == [[3 * row, 3 * row + 1, 3 * row + 2]]
    assert block.is_hit.tolist() == [True]
    np.testing.assert_allclose(block.mass, [0.85])


@pytest.mark.parametrize(
    ("key", "place", "soft_tokens"),
    [
        pytest.param((2, 8), {}, [0, 1, 2], id="right-k-wrong-a"),
        pytest.param((3, 7), {}, [NO_TOKEN] * 3, id="wrong-k-right-a"),
        pytest.param((2, 7), {"round_index": 12}, [NO_TOKEN] * 3, id="from-the-previous-round"),
        pytest.param((2, 7), {"request": 6}, [NO_TOKEN] * 3, id="from-another-request"),
        pytest.param((-1, 7), {}, [NO_TOKEN] * 3, id="row-not-active"),
    ],
)
def test_miss(cache, key, place, soft_tokens):
    block = select_block(cache, verdict_of(*key, **place))
    assert (block.tokens.tolist(), block.is_hit.tolist()) == ([[NO_TOKEN] * 3], [False])
    soft = select_block(cache, verdict_of(*key, **place), soft=True)
    assert (soft.tokens.tolist(), soft.is_hit.tolist()) == ([soft_tokens], [False])
    # What was not proposed leaves no trace that could be counted as right.
    first_pass = [token if token == NO_TOKEN else token + 50 for token in soft_tokens]
    assert soft.trace.passes.tolist() == [[first_pass, soft_tokens]]


def test_pruned_entries_are_not_there(cache):
    pruned = replace(cache, outcomes=replace(cache.outcomes, is_valid=jnp.asarray([[False, True, True, True]])))
    assert select_block(pruned, verdict_of(2, 7)).is_hit.tolist() == [False]
    assert select_block(pruned, verdict_of(2, 7), soft=True).tokens.tolist() == [[3, 4, 5]]


def test_rows_of_a_batch_are_looked_up_apart(cache):
    """Two requests with the same cached keys: each finds its own blocks, in either order."""
    other = replace(cache, request=cache.request + 1)
    other = replace(other, proposals=replace(other.proposals, tokens=other.proposals.tokens + 100))
    both = jax.tree.map(lambda *rows: jnp.concatenate(rows), cache, other)
    verdicts = jax.tree.map(lambda *rows: jnp.concatenate(rows), verdict_of(0, 7), verdict_of(2, 9, request=6))
    block = select_block(both, verdicts)
    assert block.tokens.tolist() == [[6, 7, 8], [103, 104, 105]]
    swapped = jax.tree.map(lambda x: x[::-1], both)
    assert select_block(swapped, verdicts).is_hit.tolist() == [False, False]


class TamperedJetSpecPP(PeekingJetSpecPP):
    """Damages every outcome cache before it is looked at."""

    def foresee(self, *args):
        cache, caches = super().foresee(*args)
        return self.tamper(cache), caches


def with_keys(cache: OutcomeCache, **keys) -> OutcomeCache:
    return replace(cache, outcomes=replace(cache.outcomes, **keys))


def poisoned(cache: OutcomeCache) -> OutcomeCache:
    tokens = (cache.proposals.tokens * 7 + 3) % 11
    return replace(cache, proposals=replace(cache.proposals, tokens=tokens))


TAMPERS = {
    "untouched": (lambda cache: cache, True),
    "wrong-anchor": (lambda c: replace(c, outcomes=replace(c.outcomes, anchor=(c.outcomes.anchor + 1) % 11)), False),
    "wrong-length": (
        lambda c: replace(c, outcomes=replace(c.outcomes, num_accepted=c.outcomes.num_accepted + 5)),
        False,
    ),
    "previous-round": (lambda c: replace(c, round=c.round - 1), False),
    "another-request": (lambda c: replace(c, request=c.request[::-1]), False),
    "poisoned-tokens": (poisoned, True),
}


@pytest.mark.parametrize("policy", ["fallback", "soft_miss"])
@pytest.mark.parametrize("name", TAMPERS)
def test_text_and_hits_with_a_damaged_cache(name, policy):
    tamper, may_hit = TAMPERS[name]
    target = counting_target(11)
    plain = LanguageModel(target, drafter=None)
    prompts = [[3], [1, 2, 3, 4]]
    expected = [output.token_ids for output in plain.generate(prompts, max_new_tokens=60)]
    draft = Draft(draft_config_for(target.config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0))
    drafter = TamperedJetSpecPP(
        draft,
        OraclePredictor(target),
        drafting=DraftingConfig(num_drafts=4, num_outcomes=2, miss_policy=policy),
        texts=[prompt + text for prompt, text in zip(prompts, expected, strict=True)],
        period=4,
    )
    drafter.tamper = tamper
    outputs = plain.with_drafter(drafter).generate(prompts, max_new_tokens=60)
    assert [output.token_ids for output in outputs] == expected
    for output in outputs:
        assert len(output.stats.hits) == output.stats.rounds - 1  # the first round has no cache
        # The target is certain, so the right outcome is always among the prepared ones.
        assert output.stats.hit_rate == (1.0 if may_hit else 0.0)
