import numpy as np
import pytest

from jetspec_jax.language_model import LanguageModel
from jetspec_jax.testing.tiny import tiny_target
from train.engine import AnswerEngine, EngineConfig

END = 5
CONFIG = EngineConfig(num_slots=4, max_prompt_len=16, max_new_tokens=20, steps_per_call=4, prompts_per_call=3)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 97, size=rng.integers(1, 12)).tolist() for _ in range(9)]


def test_greedy_and_sampled_answers_are_what_generate_gives(target, prompts):
    engine = AnswerEngine(target, (END,), CONFIG)
    answers = {a.index: a for a in engine.answers(prompts, temperatures=(0.0, 0.8), seed=100)}
    model = LanguageModel(target, drafter="autoregressive", progress=False)
    assert sorted(answers) == list(range(9))  # more prompts than slots: slots were refilled
    for index, prompt in enumerate(prompts):
        options = {
            "temperature": (0.0, 0.8)[index % 2],
            "seed": 100 + index,
            "max_new_tokens": 20,
            "stop_token_ids": [END],
        }
        expected = model.generate(prompt, **options)
        assert answers[index].token_ids.tolist() == list(expected.token_ids)
        assert answers[index].is_complete == (expected.finish_reason == "stop")


def test_what_is_done_is_not_answered_again(target, prompts):
    answers = list(AnswerEngine(target, (END,), CONFIG).answers(prompts, done={0, 1, 2, 3, 4, 5, 7}))
    assert sorted(answer.index for answer in answers) == [6, 8]


def test_after_the_time_limit_no_prompt_enters(target, prompts):
    engine = AnswerEngine(target, (END,), CONFIG)
    assert list(engine.answers(prompts, max_seconds=-1.0)) == []


@pytest.mark.parametrize("bad", [[], [1] * 17], ids=["empty", "too-long"])
def test_refuses_prompts_it_cannot_hold(target, bad):
    with pytest.raises(ValueError, match="prompt 1 has"):
        list(AnswerEngine(target, (END,), CONFIG).answers([[1], bad]))


def test_refuses_more_than_the_targets_context(target):
    with pytest.raises(ValueError, match="context of 1024"):
        AnswerEngine(target, (END,), EngineConfig(max_prompt_len=1000, max_new_tokens=100))
