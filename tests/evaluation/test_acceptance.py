"""Measured acceptance: equal to what generation counts, whatever the grouping; sums and shares by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import draft_config_for
from jetspec_jax.decoding.stats import DecodeStats
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.evaluation.acceptance import Acceptance, Answer, answer_prompts, measure_acceptance
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.models.cache import MAX_UNROLLED
from jetspec_jax.models.draft import Draft
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import OraclePredictor, ScriptedDrafter, TableTarget, counting_target

pytestmark = pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")

VOCAB = 13


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Programs that run for a moment each."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def scripted() -> LanguageModel:
    """The text counts upwards; in turn 3, 0 and 2 drafts are right."""
    text = [[int(i) % VOCAB for i in range(200)]]
    drafter = ScriptedDrafter(text, [3, 0, 2], num_drafts=3, vocab_size=VOCAB)
    return LanguageModel(counting_target(VOCAB), drafter=drafter)


def test_tau_is_all_tokens_over_all_rounds(scripted):
    # A token from prefill, then rounds of 4, 1, 3, 4, 1 and 1 of 3: 15 tokens.
    found = measure_acceptance(scripted, [[0]], max_new_tokens=15, batch_size=1, keep_answers=True)
    assert found.answers[0].stats.committed == [4, 1, 3, 4, 1, 1]
    assert (found.num_requests, found.num_rounds, found.num_committed) == (1, 6, 14)
    assert found.tau == 14 / 6
    assert found.accepted_at == (4, 3, 2)
    assert found.acceptance_at == [4 / 6, 3 / 4, 2 / 3]
    assert found.answers[0].token_ids == tuple(i % VOCAB for i in range(1, 16))
    assert found.hit_rate is None
    assert found.tau_on_hit is None


def test_groups_give_what_generation_gives():
    """The rows that fill a group, rows that end early and the order of lengths change neither text nor counts."""
    law = np.random.default_rng(0).dirichlet(np.full(VOCAB, 0.7), VOCAB)
    target = TableTarget(np.log(law), eos_token_ids=(8,))
    drafting = DraftingConfig(num_drafts=3, num_outcomes=2, refine=RefineConfig.parse("J0"))
    draft = Draft(draft_config_for(target.config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0))
    drafter = JetSpecPP(draft, OraclePredictor(target), drafting=drafting)
    model = LanguageModel(target, drafter=drafter, max_batch=3)
    prompts = [[5] * 9, [7], [6, 7, 8], [1, 2], [4] * 5]
    filled = [*prompts, [9]]  # generation would compile for the group of two
    options = {"max_new_tokens": 24, "temperature": 1.0}
    answers = answer_prompts(model, prompts, **options, seeds=range(40, 45), batch_size=3)
    expected = model.generate(filled, [SamplingParams(**options, seed=40 + i) for i in range(6)])[:5]
    assert [list(answer.token_ids) for answer in answers] == [output.token_ids for output in expected]
    assert len({len(answer.token_ids) for answer in answers}) > 1
    for answer, output in zip(answers, expected, strict=True):
        # Input noise of drafts depends on the request alone, so even the rounds are the same.
        assert (answer.stats.committed, answer.stats.hits) == (output.stats.committed, output.stats.hits)
    found = Acceptance.of_answers(answers)
    assert found.num_rounds == sum(output.stats.rounds for output in expected)
    assert found.hit_rate == np.mean([hit for output in expected for hit in output.stats.hits])
    assert found.answers is None


def test_large_batches_decode_the_same_text(scripted):
    """Above the limit rows are written by one operation instead of one each."""
    prompts = [[index % VOCAB] for index in range(MAX_UNROLLED + 2)]
    answers = answer_prompts(scripted, prompts, seeds=range(18), max_new_tokens=20, batch_size=18)
    texts = [tuple((index + i) % VOCAB for i in range(1, 21)) for index in range(len(prompts))]
    assert [answer.token_ids for answer in answers] == texts
    assert answers[0].stats.committed == answers[VOCAB].stats.committed == [4, 1, 3, 4, 1, 3, 3]


def test_same_programs_serve_full_and_partial_groups(scripted):
    measure_acceptance(scripted, [[0], [0, 1]], max_new_tokens=10, batch_size=2)
    compiled = scripted.programs.num_compiled
    found = measure_acceptance(scripted, [[0], [0, 1], [0, 1, 2]], max_new_tokens=10, batch_size=2)
    assert scripted.programs.num_compiled == compiled
    assert found.num_requests == 3


def stats_of(committed: list[int], hits: list[bool], mass: list[float]) -> DecodeStats:
    stats = DecodeStats(7)
    for index, count in enumerate(committed):
        is_hit, expected = (False, 0.0) if index == 0 else (hits[index - 1], mass[index - 1])
        stats.add_round(delivered=count, committed=count, drafted=4, is_hit=is_hit, mass=expected)
    return stats


def test_shares_leave_out_first_rounds():
    answers = [
        Answer((1,) * 10, stats_of([5, 1, 3], [True, False], [0.5, 0.25])),
        Answer((2,) * 3, stats_of([2], [], [])),
        Answer((3,) * 8, stats_of([1, 2, 4], [True, True], [1.0, 0.25])),
    ]
    found = Acceptance.of_answers(answers, keep=True)
    assert (found.num_committed, found.num_rounds) == (18, 7)
    assert found.hit_rate == 3 / 4
    assert found.expected_hit_rate == 0.5
    assert found.tau_on_hit == (1 + 2 + 4) / 3
    assert found.tau_on_miss == 3
    assert found.accepted_at == (5, 3, 2, 1, 0, 0, 0)
    assert found.answers == tuple(answers)


def test_loops_are_cut_from_one_of_the_two_taus():
    # 10 tokens of text, then four copies of a span of 64; the onset falls on the end of the second round.
    loop = list(range(100, 164))
    committed = [4, 5, *[8] * 32]
    answer = Answer((*range(10), *loop * 4), stats_of(committed, [True] * 33, [1.0] * 33))
    found = Acceptance.of_answers([answer])
    assert found.num_loops == 1
    assert found.tau == sum(committed) / len(committed)
    assert found.tau_without_loops == 9 / 2


@pytest.mark.parametrize(
    ("prompts", "changes", "message"),
    [
        pytest.param([], {}, "0 prompts", id="no-prompt"),
        pytest.param([[1], []], {}, "prompt 1 has 0 tokens, need 1..1023", id="empty"),
        pytest.param([[1] * 1024], {}, "prompt 0 has 1024 tokens", id="full-context"),
        pytest.param([[1]], {"max_new_tokens": 0}, "max_new_tokens=0", id="no-tokens"),
        pytest.param([[1]], {"batch_size": 0}, "batch_size=0", id="no-rows"),
    ],
)
def test_errors_name_the_values(scripted, prompts, changes, message):
    with pytest.raises(ValueError, match=message):
        measure_acceptance(scripted, prompts, **({"max_new_tokens": 4} | changes))


def test_unusable_logits_are_an_error():
    model = LanguageModel(counting_target(VOCAB, nan_at=5), drafter=None)
    with pytest.raises(ValueError, match=r"prompt 0: logits for position 5"):
        measure_acceptance(model, [[0]], max_new_tokens=8, batch_size=1)
