"""The public object: prompts in, outputs out; what it refuses, and what it does with lists and streams.

The target counts, and its tokens are bytes: after "a" comes "bcdef...", so every expected text can be read off.
"""

import json
from typing import Any

import jaxtyping
import numpy as np
import pytest

import jetspec_jax
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import ByteTokenizer, ScriptedDrafter, counting_target, random_drafter

VOCAB_SIZE, MAX_LEN = 258, 128


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return LanguageModel(counting_target(VOCAB_SIZE, max_len=MAX_LEN), ByteTokenizer(), drafter="ngram")


@pytest.fixture
def as_a_user(monkeypatch) -> None:
    """Users have no type checker that would refuse a bad value before the library sees it."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def test_one_prompt_gives_one_output(model):
    output = model.generate("a", max_new_tokens=5)
    assert (output.text, output.token_ids) == ("bcdef", list(b"bcdef"))
    assert (output.finish_reason, output.stop_reason, output.error) == ("length", None, None)
    assert (output.prompt_token_ids, output.logprobs) == ([97], None)
    assert (output.usage.prompt_tokens, output.usage.completion_tokens, output.usage.total_tokens) == (1, 5, 6)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        pytest.param("xa", "bcd", id="text"),
        pytest.param([120, 97], "bcd", id="ids"),
        pytest.param([np.int64(120), np.int32(97)], "bcd", id="numpy-ids"),
        pytest.param([{"role": "user", "content": "a"}], '!"#', id="chat"),  # "assistant: " ends with a space
    ],
)
def test_kinds_of_prompts(model, as_a_user, prompt, text):
    assert model.generate(prompt, max_new_tokens=3).text == text
    assert [output.text for output in model.generate([prompt, prompt], max_new_tokens=3)] == [text, text]


def test_list_of_prompts_with_a_request_each(model):
    params = [SamplingParams(max_new_tokens=2), SamplingParams(max_new_tokens=4, stop="o"), SamplingParams()]
    outputs = model.generate(["a", "k", "z"], [params[0], params[1], SamplingParams(max_new_tokens=0)])
    assert [output.text for output in outputs] == ["bc", "lmn", ""]
    assert [output.finish_reason for output in outputs] == ["length", "stop", "length"]


def test_longer_lists_are_decoded_in_groups(model):
    small = LanguageModel(model.target, ByteTokenizer(), drafter="ngram", max_batch=2)
    prompts = ["a", "bb", "ccc", "0", "11"]
    chunks = list(small.stream(prompts, max_new_tokens=3))
    texts = ["".join(chunk.text for chunk in chunks if chunk.index == i) for i in range(5)]
    assert texts == ["bcd", "cde", "def", "123", "234"]
    assert [output.text for output in small.generate(prompts, max_new_tokens=3)] == texts


def test_stream_adds_up_to_the_output(model):
    drafter = ScriptedDrafter([[97 + i for i in range(40)]], [3, 0, 2], num_drafts=3, vocab_size=VOCAB_SIZE)
    chunks = list(model.with_drafter(drafter).stream("a", max_new_tokens=12, stop="lm"))
    assert [(chunk.text, chunk.num_accepted) for chunk in chunks] == [
        ("b", 0),
        ("cdef", 3),
        ("g", 0),
        ("hij", 2),
        ("k", 3),
    ]
    assert [chunk.output is None for chunk in chunks] == [True, True, True, True, False]
    output = chunks[-1].output
    assert output.text == "".join(chunk.text for chunk in chunks) == "bcdefghijk"
    assert output.token_ids == [token for chunk in chunks for token in chunk.token_ids] == list(b"bcdefghijklm")
    assert output.stats.committed == [4, 1, 3, 3]


def test_stream_checks_before_the_first_chunk_is_asked_for(model):
    with pytest.raises(ValueError, match="unknown sampling option max_tokens; known: max_new_tokens"):
        model.stream("a", max_tokens=3)
    with pytest.raises(ValueError, match="prompt 1"):
        model.stream(["a", ""])


def test_closed_stream_leaves_the_model_usable(model):
    stream = model.stream("a", max_new_tokens=100)
    next(stream)
    stream.close()
    assert model.generate("a", max_new_tokens=3).text == "bcd"


def test_output_is_json(model):
    values = json.loads(json.dumps(model.generate("a", max_new_tokens=3, logprobs=2).to_dict()))
    assert (values["text"], values["usage"]["total_tokens"], values["stats"]["rounds"]) == ("bcd", 4, 2)
    assert [entry["token_id"] for entry in values["logprobs"]] == list(b"bcd")


def test_with_drafter_shares_the_weights(model):
    other = model.with_drafter("autoregressive")
    assert other.drafter.num_drafts == 0
    assert all(a is b for a, b in zip(other.programs.target_leaves, model.programs.target_leaves, strict=True))
    assert other.generate("a", max_new_tokens=3).text == "bcd"
    assert model.drafter.name == "ngram"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        pytest.param("", "prompt 0 is empty", id="C37-empty-text"),
        pytest.param([], "empty prompt", id="C37-empty-list"),
        pytest.param([""], "prompt 0 is empty", id="C37-list-of-empty-text"),
        pytest.param([[]], "prompt 0 is empty", id="C37-list-of-no-ids"),
        pytest.param(["good", ""], "prompt 1 is empty", id="C37-beside-a-good-one"),
        pytest.param([[97], []], "prompt 1 is empty", id="C37-ids-beside-a-good-one"),
        pytest.param([97, 258], "token id 258", id="C20-id-beyond-the-vocabulary"),
        pytest.param([97, -1], "token id -1", id="C20-negative-id"),
        pytest.param([[97], [2**31]], "prompt 1.*2147483648", id="C20-huge-id"),
        pytest.param([97] * 129, "prompt 0 has 129 tokens, the context holds 128", id="C16-too-long"),
        pytest.param(3, "prompt 0 must be text", id="no-prompt"),
        pytest.param([{"role": "poet", "content": "a"}], "role 'poet'", id="I01-unknown-role"),
    ],
)
def test_refuses_prompts_before_computing(model, as_a_user, prompt, message):
    compiled = model.programs.num_compiled
    with pytest.raises(ValueError, match=message):
        model.generate(prompt)
    assert model.programs.num_compiled == compiled
    assert model.generate("a", max_new_tokens=3).text == "bcd"  # the next request works


@pytest.mark.parametrize("prompt", [pytest.param("", id="C37-text"), pytest.param([[]], id="C37-ids")])
def test_empty_prompt_is_one_token_with_a_bos_tokenizer(model, prompt):
    with_bos = LanguageModel(model.target, ByteTokenizer(add_bos=True), drafter=None)
    outputs = with_bos.generate(prompt, max_new_tokens=2, ignore_eos=True)
    output = outputs if prompt == "" else outputs[0]
    assert (output.prompt_token_ids, output.token_ids) == ([256], [257, 0])


@pytest.mark.parametrize(
    ("value", "num_tokens"),
    [
        pytest.param(0, 0, id="C38-0"),
        pytest.param(1, 1, id="C38-1"),
        pytest.param(MAX_LEN + 1, 78, id="C38-context-plus-1"),
        pytest.param(10**6, 78, id="C38-million"),
        pytest.param(2**31 - 1, 78, id="C38-largest"),
        pytest.param(None, 78, id="C38-none"),
    ],
)
@pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")
def test_number_of_new_tokens_is_capped_by_the_context(model, value, num_tokens):
    output = model.generate([7] * 50, max_new_tokens=value)
    assert output.token_ids == [8 + i for i in range(num_tokens)]
    assert (output.finish_reason, output.usage.completion_tokens) == ("length", num_tokens)
    # Memory follows the context: the buffers of every program so far have at most 192 slots.
    assert max(key[1][1] for key in model.programs.executables._kept) <= 192


@pytest.mark.parametrize(
    "value", [pytest.param(v, id=f"C38-{v!r}") for v in (-1, 1.5, "12", 2**31, 2**63, True, float("nan"))]
)
def test_refuses_other_numbers_of_new_tokens(model, as_a_user, value):
    with pytest.raises(ValueError, match="max_new_tokens must be"):
        model.generate("a", max_new_tokens=value)


def test_prompt_one_below_the_limit_gives_one_token(model):
    """C17: no room is lost to look-ahead."""
    output = model.generate([9] * 127, max_new_tokens=None)
    assert (output.token_ids, output.finish_reason) == ([10], "length")


def test_prompt_that_fills_the_context_gives_none(model):
    compiled = model.programs.num_compiled
    output = model.generate([9] * 128, max_new_tokens=None)
    assert (output.token_ids, output.text, output.finish_reason) == ([], "", "length")
    assert model.programs.num_compiled == compiled


def test_without_a_tokenizer_prompts_are_ids(as_a_user):
    model = LanguageModel(counting_target(16), drafter=None)
    output = model.generate([3], max_new_tokens=2)
    assert (output.token_ids, output.text) == ([4, 5], "")
    for prompt in ("text", ["text"], [{"role": "user", "content": "a"}]):
        with pytest.raises(ValueError, match="this model has none: give token ids"):
            model.generate(prompt)
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        model.generate([[]])
    with pytest.raises(ValueError, match=r"stop=\('x',\) needs a tokenizer"):
        model.generate([3], stop="x")


def test_refuses_wrong_params(model, as_a_user):
    with pytest.raises(ValueError, match="1 SamplingParams for 2 prompts"):
        model.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(ValueError, match="not both"):
        model.generate("a", SamplingParams(), temperature=1.0)
    with pytest.raises(ValueError, match="1 SamplingParams for 1 prompts, options "):
        model.generate(["a"], [SamplingParams()], temperature=1.0)
    with pytest.raises(ValueError, match=r"params must be SamplingParams, got \{'temperature': 1.0\}"):
        model.generate("a", {"temperature": 1.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"max_len": 0}, r"max_len=0 must be in 1\.\.128", id="no-context"),
        pytest.param({"max_len": 129}, r"max_len=129 must be in 1\.\.128", id="more-than-the-target-has"),
        pytest.param({"max_batch": 0}, "max_batch=0 must be at least 1", id="no-batch"),
        pytest.param({"num_drafts": 128}, "num_drafts=128 does not fit a context of 128", id="I02-gamma-above-context"),
        pytest.param(
            {"max_len": 8, "num_drafts": 8}, "num_drafts=8 does not fit a context of 8", id="I02-short-context"
        ),
    ],
)
def test_refuses_impossible_sizes(model, options: dict[str, Any], message):
    with pytest.raises(ValueError, match=message):
        LanguageModel(model.target, **options)


def test_warns_when_drafts_bring_nothing(model):
    """C25: random drafts for 50 rounds or more; the text is right all the same."""
    useless = model.with_drafter(random_drafter(VOCAB_SIZE, 4), num_drafts=4)
    with pytest.warns(
        LowAcceptanceWarning, match=r"'propose_random' committed 1\.0\d tokens per round over \d\d rounds"
    ):
        output = useless.generate("a", max_new_tokens=60)
    assert output.token_ids == [97 + 1 + i for i in range(60)]
    # Too short to tell, and plain decoding: no warning (any would be an error here).
    useless.generate("a", max_new_tokens=20)
    model.with_drafter("autoregressive").generate("a", max_new_tokens=60)


def test_warmed_up_calls_compile_nothing():
    model = LanguageModel(counting_target(VOCAB_SIZE, max_len=MAX_LEN), ByteTokenizer(), drafter="ngram")
    size = {"max_new_tokens": 12, "temperature": 0.5}
    assert jetspec_jax.warm_up(model, prompt_len=3, batch=2, **size) > 0
    num_compiled = model.programs.num_compiled
    assert jetspec_jax.warm_up(model, prompt_len=3, batch=2, **size) == 0
    model.generate(["abc", "d"], **size)
    assert model.programs.num_compiled == num_compiled
