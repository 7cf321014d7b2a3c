"""Text with drafts equals text without: every drafter, block size, acceptance pattern, option and prompt length."""

from dataclasses import replace
from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import draft_config_for
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafters.jetspecpp import PLAIN_PASS
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.target import Target
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import ScriptedDrafter

pytestmark = pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")

PROMPT_LENS = (1, 2, 15, 16, 17, 64)


def new_tokens(prompt_len: int) -> int:
    """200, fewer for the long prompt, so that all prompts share one capacity."""
    return 200 if prompt_len < 64 else 160


@pytest.fixture(scope="module")
def greedy(plain, prompt_of) -> dict[int, list[int]]:
    """The greedy answer to the prompt of each length, one request at a time."""
    return {n: plain.generate(prompt_of(n), max_new_tokens=new_tokens(n)).token_ids for n in PROMPT_LENS}


@pytest.mark.parametrize("prompt_len", [pytest.param(n, id=f"C01-prompt-{n}") for n in PROMPT_LENS])
@pytest.mark.parametrize(
    "script",
    [
        pytest.param([0], id="none-accepted"),
        pytest.param([15], id="all-accepted"),
        pytest.param([15, 0, 3, 1], id="mixed"),
        pytest.param(None, id="random-drafts"),
    ],
)
def test_one_request_with_15_drafts(follow, greedy, prompt_of, random_text, prompt_len, script):
    prompt, text = prompt_of(prompt_len), greedy[prompt_len]
    model = follow([random_text(prompt_len)], [15], 15) if script is None else follow([prompt + text], script, 15)
    output = model.generate(prompt, max_new_tokens=new_tokens(prompt_len))
    assert output.token_ids == text
    if script is not None and len(script) == 1:
        # The first token comes from prefill and belongs to no round.
        assert output.stats.rounds == ceil((len(text) - 1) / (script[0] + 1))


@pytest.mark.parametrize("accepted", [pytest.param(k, id=f"C01-accepts-{k}") for k in range(16)])
def test_every_acceptance_length(follow, greedy, prompt_of, accepted):
    prompt, text = prompt_of(1), greedy[1]
    output = follow([prompt + text], [accepted], 15).generate(prompt, max_new_tokens=200)
    assert output.token_ids == text
    assert output.stats.rounds == ceil(199 / (accepted + 1))
    assert set(output.stats.committed[:-1]) == {accepted + 1}


@pytest.mark.parametrize("num_drafts", [pytest.param(1, id="C01-gamma-1"), pytest.param(4, id="C01-gamma-4")])
@pytest.mark.parametrize("script", [[0], [1], [1, 0, 1, 1, 0]])
def test_batch_of_all_prompt_lengths(follow, greedy, prompt_of, num_drafts, script):
    script = [length * num_drafts for length in script]  # 1 stands for all drafts
    texts = [prompt_of(n) + greedy[n] for n in PROMPT_LENS]
    params = [SamplingParams(max_new_tokens=new_tokens(n)) for n in PROMPT_LENS]
    outputs = follow(texts, script, num_drafts).generate([prompt_of(n) for n in PROMPT_LENS], params)
    assert [output.token_ids for output in outputs] == [greedy[n] for n in PROMPT_LENS]
    if len(script) == 1:
        assert [o.stats.rounds for o in outputs] == [ceil((len(t) - 1) / (script[0] + 1)) for t in greedy.values()]


@pytest.fixture(scope="module", params=["scripted-3", "scripted-14", "scripted-15", "random-15", "parallel"])
def speculating(request, shallow, follow, option_prompts, option_texts, random_text) -> LanguageModel:
    if request.param == "parallel":
        draft = Draft(draft_config_for(shallow.config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0))
        return shallow.with_drafter(JetSpecPP(draft, drafting=replace(PLAIN_PASS, num_drafts=4)))
    kind, num_drafts = request.param.split("-")
    if kind == "random":
        return follow([random_text(row) for row in range(len(option_prompts))], [15], 15, shallow)
    texts = [prompt + text for prompt, text in zip(option_prompts, option_texts.values(), strict=True)]
    return follow(texts, [int(num_drafts), 0, 3, 1, 2], int(num_drafts), shallow)


def test_every_option_in_one_batch(speculating, option_prompts, option_texts, option_requests):
    outputs = speculating.generate(option_prompts, option_requests())
    for (name, text), output in zip(option_texts.items(), outputs, strict=True):
        assert output.token_ids == text, name


def test_rows_that_end_early_do_not_disturb_the_others(speculating, option_prompts, option_texts, option_requests):
    # A token that does not occur earlier in its text, at another place in each.
    new = [[i for i in range(len(text)) if text[i] not in text[:i]] for text in option_texts.values()]
    ends = [max(i for i in places if i <= 5 * row) for row, places in enumerate(new)]
    stops = [text[end] for text, end in zip(option_texts.values(), ends, strict=True)]
    outputs = speculating.generate(option_prompts, option_requests(stops))
    for name, text, end, output in zip(option_texts, option_texts.values(), ends, outputs, strict=True):
        assert output.token_ids == text[: end + 1], name
        assert (output.finish_reason, output.stop_reason) == ("stop", text[end]), name


class RoundedTarget(Target):
    """Flat logits with one decimal, so that ties are common."""

    def logits(self, x):
        return jnp.round(super().logits(x) / 20, 1)


def test_ties_are_broken_the_same_way_everywhere(shallow):
    """C06: the first index wins in the one-row step, in the block, in prefill, and in numpy."""
    rounded = RoundedTarget(shallow.config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    plain = LanguageModel(rounded, drafter=None)
    text = plain.generate([5, 6, 7], max_new_tokens=40).token_ids
    drafter = ScriptedDrafter([[5, 6, 7, *text]], [4, 0, 2, 3], num_drafts=4, vocab_size=97)
    assert plain.with_drafter(drafter).generate([5, 6, 7], max_new_tokens=40).token_ids == text

    tokens = jnp.asarray([[5, 6, 7, *text]], jnp.int32)
    x, _, _ = jax.jit(lambda tokens: rounded(tokens, rounded.init_cache(1, 64)))(tokens)
    logits = np.asarray(rounded.logits(x))[0, 2:-1]
    assert np.argmax(logits, axis=-1).tolist() == text
    num_tied = np.sum(logits == logits.max(axis=-1, keepdims=True), axis=-1)
    assert np.sum(num_tied > 1) >= 20
