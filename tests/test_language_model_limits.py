"""Sizes around the block, the end of the context, the drafter's own limit, and a sliding window, with a real cache."""

import warnings

import numpy as np
import pytest

from jetspec_jax.config import RopeConfig
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import ScriptedDrafter, tiny_config, tiny_target

VOCAB_SIZE = 97


def prompt_of(length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(length).integers(0, VOCAB_SIZE, length)]


def follow(model: LanguageModel, texts: list[list[int]], script: list[int], num_drafts: int) -> LanguageModel:
    """The model with a drafter that knows these texts; the compiled programs are kept if it already has one."""
    drafter = ScriptedDrafter(texts, script, num_drafts=num_drafts, vocab_size=VOCAB_SIZE)
    if model.drafter.name != "scripted":
        return model.with_drafter(drafter)
    model.programs.set_draft_leaves(drafter.place(model.device))
    return model


@pytest.fixture(scope="module")
def plain() -> LanguageModel:
    """A large cache: prompts up to 64 and 100 new tokens share one capacity."""
    config = tiny_config(num_layers=1, taps=(0,), max_position_embeddings=192)
    return LanguageModel(tiny_target(config), drafter=None, max_batch=6)


@pytest.fixture(scope="module")
def texts(plain) -> dict[int, list[int]]:
    """Plain greedy answers of 100 tokens to the prompt of each length."""
    lengths = (1, 14, 15, 16, 17, 64, 30, 48, 49, 50, 60, 63)  # two groups of the same shape
    outputs = plain.generate([prompt_of(n) for n in lengths], max_new_tokens=100)
    return {n: output.token_ids for n, output in zip(lengths, outputs, strict=True)}


@pytest.fixture(scope="module")
def fifteen(plain, texts) -> LanguageModel:
    return follow(plain, [prompt_of(1)], [15], 15)


@pytest.mark.parametrize("prompt_len", [pytest.param(n, id=f"I02-prompt-{n}") for n in (1, 14, 15, 16, 17)])
def test_sizes_around_the_block(fifteen, texts, prompt_len):
    text = texts[prompt_len]
    for max_new_tokens in (0, 1, 15, 16, 17):
        for script in ([15], [0], [15, 0, 14]):
            model = follow(fifteen, [prompt_of(prompt_len) + text], script, 15)
            output = model.generate(prompt_of(prompt_len), max_new_tokens=max_new_tokens)
            assert output.token_ids == text[:max_new_tokens]
            assert output.finish_reason == "length"


def test_no_target_step_for_no_tokens(plain):
    """I02."""
    model = plain.with_drafter("ngram")
    output = model.generate(prompt_of(3), max_new_tokens=0)
    assert (output.token_ids, output.stats.rounds, model.programs.num_compiled) == ([], 0, 0)


@pytest.fixture(scope="module")
def short(plain) -> LanguageModel:
    """A context of 64 tokens."""
    return follow(LanguageModel(plain.target, drafter=None, max_len=64), [prompt_of(1)], [15], 15)


@pytest.mark.parametrize(
    ("prompt_len", "num_tokens"),
    [pytest.param(n, 64 - n, id=f"C16-prompt-{n}") for n in (48, 49, 50, 63, 64)],
)
@pytest.mark.parametrize("script", [[15], [0, 15, 3]])
def test_context_ends_inside_a_block(short, texts, prompt_len, num_tokens, script):
    model = follow(short, [prompt_of(prompt_len) + texts[prompt_len]], script, 15)
    output = model.generate(prompt_of(prompt_len), max_new_tokens=100)
    assert output.token_ids == texts[prompt_len][:num_tokens]
    assert output.finish_reason == "length"


def test_prompt_beyond_the_context_is_refused_before_any_compute(short):
    """C16."""
    compiled = short.programs.num_compiled
    with pytest.raises(ValueError, match="prompt 0 has 65 tokens, the context holds 64"):
        short.generate(prompt_of(65), max_new_tokens=1)
    assert short.programs.num_compiled == compiled


@pytest.mark.parametrize(
    ("prompt_len", "stopped_at", "num_drafted"),
    [
        # Blocks of 1 + 4 are drafted while the text has at most 60 tokens, so at lengths 31, 36, .. 56.
        pytest.param(30, 61, 6 * 4, id="C17-limit-crossed"),
        pytest.param(60, 61, 0, id="C17-no-room-from-the-start"),
    ],
)
def test_drafting_stops_at_the_drafters_own_limit(plain, texts, prompt_len, stopped_at, num_drafted):
    drafter = ScriptedDrafter([prompt_of(prompt_len) + texts[prompt_len]], [4], num_drafts=4, vocab_size=VOCAB_SIZE)
    drafter.max_len = 64
    model = plain.with_drafter(drafter)
    with pytest.warns(
        UserWarning, match=rf"switched off at {stopped_at} tokens in 1 of 1 texts: drafter 'scripted' was made for 64"
    ) as record:
        output = model.generate(prompt_of(prompt_len), max_new_tokens=60)
    assert len(record) == 1
    assert output.token_ids == texts[prompt_len][:60]
    assert output.stats.drafting_stopped_at == stopped_at
    assert output.stats.drafted == num_drafted
    assert output.stats.accepted == num_drafted


def test_drafting_goes_on_for_the_shorter_rows_of_a_batch(plain, texts):
    """C17: the long row decodes token by token beside a row that is drafted for; only the long one is reported."""
    rows = (60, 1)
    drafter = ScriptedDrafter([prompt_of(n) + texts[n] for n in rows], [4], num_drafts=4, vocab_size=VOCAB_SIZE)
    drafter.max_len = 64
    with pytest.warns(UserWarning, match="switched off at 61 tokens") as record:
        long, short = plain.with_drafter(drafter).generate([prompt_of(n) for n in rows], max_new_tokens=40)
    assert len(record) == 1
    assert (long.token_ids, short.token_ids) == (texts[60][:40], texts[1][:40])
    assert (long.stats.drafted, short.stats.drafting_stopped_at) == (0, None)
    assert short.stats.tau > 4


def test_sliding_window_is_crossed_while_generating():
    """C18: window 16, one sliding and one full layer, prompts on both sides of it, blocks of 8."""
    config = tiny_config(
        layer_types=("sliding_attention", "full_attention"),
        ropes=(("sliding_attention", RopeConfig(theta=1e4)), ("full_attention", RopeConfig(theta=1e4))),
        sliding_window=16,
    )
    plain = LanguageModel(tiny_target(config), drafter=None)
    prompts = [prompt_of(4), prompt_of(40)]
    expected = [output.token_ids for output in plain.generate(prompts, max_new_tokens=100)]
    known = [prompt + text for prompt, text in zip(prompts, expected, strict=True)]
    model = follow(plain, known, [7], 7)
    for script in ([7], [0, 7, 3, 1]):
        outputs = follow(model, known, script, 7).generate(prompts, max_new_tokens=100)
        assert [output.token_ids for output in outputs] == expected


def test_no_warning_when_the_drafters_limit_is_not_reached(plain, texts):
    drafter = ScriptedDrafter([prompt_of(30) + texts[30]], [4], num_drafts=4, vocab_size=VOCAB_SIZE)
    drafter.max_len = 64
    with warnings.catch_warnings():
        warnings.simplefilter("error", LowAcceptanceWarning)
        output = plain.with_drafter(drafter).generate(prompt_of(30), SamplingParams(max_new_tokens=20))
    assert output.stats.drafting_stopped_at is None
