"""Drafters, tokenizers and processors that misbehave: the text stays the target's, or the call is refused."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.decoding.filters import truncate
from jetspec_jax.decoding.row_params import row_params
from jetspec_jax.drafters import StatelessDrafter
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import ByteTokenizer, ScriptedDrafter, random_drafter, tiny_config, tiny_target


def test_draft_with_non_finite_states_changes_nothing():
    # C08: id 96 has a NaN embedding. The target never draws it, the drafter proposes nothing else.
    target = tiny_target(tiny_config(num_layers=1, taps=(0,)))
    target.embed.weight[...] = target.embed.weight[...].at[96].set(jnp.nan)
    plain = LanguageModel(target, drafter=None)
    model = plain.with_drafter(lambda tokens, length: jnp.full((4,), 96), num_drafts=4)
    expected, output = (m.generate([5, 6, 7], max_new_tokens=20) for m in (plain, model))
    assert output.finish_reason == expected.finish_reason == "length"
    assert output.token_ids == expected.token_ids


class _WrongWidth(StatelessDrafter):
    name, num_drafts = "wrong-width", 2

    def __init__(self, width: int, dtype=jnp.int32):
        self.width, self.dtype = width, dtype

    def propose(self, leaves, decoder, state, view):
        return jnp.zeros((view.tokens.shape[0], self.width), self.dtype), state


@pytest.mark.parametrize(
    ("drafter", "got"),
    [
        pytest.param(_WrongWidth(20), r"int32\[1, 20\]", id="wide"),
        pytest.param(_WrongWidth(1), r"int32\[1, 1\]", id="narrow"),
        pytest.param(_WrongWidth(2, jnp.float32), r"float32\[1, 2\]", id="floats"),
    ],
)
def test_drafter_that_breaks_its_word_is_refused(drafter, got):
    model = LanguageModel(tiny_target(tiny_config(num_layers=1, taps=(0,))), drafter=drafter)
    with pytest.raises(ValueError, match=rf"'wrong-width' must propose integers of shape \[1, 2\], got {got}"):
        model.generate([5], max_new_tokens=25)


def test_text_beyond_the_targets_vocabulary_is_refused():
    # C28: the byte tokenizer knows 258 ids, the target 97.
    model = LanguageModel(tiny_target(), ByteTokenizer(), drafter=None)
    with pytest.raises(ValueError, match="prompt 0 holds token id 97, but the target has 97 ids"):
        model.generate("a")


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["positive-nan", "negative-nan"])
def test_truncation_keeps_a_nan_to_be_seen(sign, cpu_devices):
    # C08: an ordering of bit patterns puts a NaN with the sign bit last.
    params = row_params(
        [SamplingParams(temperature=1.0, top_k=2, top_p=0.9)], eos_token_ids=(), vocab_size=4, device=cpu_devices[0]
    )
    logits = np.array([[[0.0, 1.0, 2.0, np.nan]]], np.float32)
    logits[..., 3] = np.copysign(logits[..., 3], sign)
    assert np.isnan(np.asarray(truncate(jnp.asarray(logits), params))[0, 0, 3])


def test_accepted_drafts_are_counted_whole_at_the_end_of_the_buffer():
    # Prompt 1 + 23 tokens + a block of 8 are exactly 32 slots. After the first token come blocks of 8, 8 and 6: the
    # last one is cut by the limit, and all six of its tokens were drafts.
    plain = LanguageModel(tiny_target(tiny_config(num_layers=1, taps=(0,))), drafter=None)
    text = plain.generate([5], max_new_tokens=40).token_ids
    model = plain.with_drafter(ScriptedDrafter([[5, *text]], [7], num_drafts=7, vocab_size=97))
    output = model.generate([5], max_new_tokens=23)
    assert output.token_ids == text[:23]
    assert output.stats.committed == [8, 8, 6]
    assert output.stats.accepted == 7 + 7 + 6


def test_different_processors_are_refused_before_anything_is_computed():
    model = LanguageModel(tiny_target(tiny_config(num_layers=1, taps=(0,))), drafter=None, max_batch=1)

    def ban_zero(tokens, length, logits):
        return logits.at[0].set(-jnp.inf)

    params = [SamplingParams(), SamplingParams(logits_processors=[ban_zero])]
    with pytest.raises(ValueError, match="same logits_processors"):
        model.stream([[5], [6]], params)
    assert model.programs.num_compiled == 0


def test_processor_with_another_shape_is_refused():
    model = LanguageModel(tiny_target(tiny_config(num_layers=1, taps=(0,))), drafter=None)
    params = SamplingParams(max_new_tokens=2, logits_processors=[lambda tokens, length, logits: logits[0]])
    with pytest.raises(ValueError, match=r"must return float32 logits of shape \[97\], got float32\[\]"):
        model.generate([5], params)


def test_warning_comes_once_and_after_every_output():
    plain = LanguageModel(tiny_target(tiny_config(num_layers=1, taps=(0,))), drafter=None)
    model = plain.with_drafter(random_drafter(97, 2), num_drafts=2)
    outputs = []

    def consume():
        for chunk in model.stream([[5], [6]], max_new_tokens=60):
            outputs.extend([] if chunk.output is None else [chunk.output])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LowAcceptanceWarning, match=r"over 1\d\d rounds"):
            consume()
    assert [len(output.token_ids) for output in outputs] == [60, 60]
