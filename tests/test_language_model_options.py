"""Every request option does the same with and without drafts; unknown and impossible values are refused."""

from collections.abc import Sequence
from dataclasses import fields

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from jetspec_jax.drafters import NgramDrafter
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams, sampling_params
from jetspec_jax.testing import ByteTokenizer, ScriptedDrafter, TableTarget, counting_target

VOCAB_SIZE = 26


class Letters(ByteTokenizer):
    """Id 0 is "a", id 25 is "z"."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(chr(97 + token) for token in ids)


def random_table() -> np.ndarray:
    """Logits in which each letter has a likely successor, so that a greedy text wanders for a while."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(VOCAB_SIZE, VOCAB_SIZE))
    order = rng.permutation(VOCAB_SIZE)
    logits[order, np.roll(order, -1)] += 2.0
    return logits


TABLE = random_table()


def greedy_ids(length: int) -> list[int]:
    """What follows "a"."""
    ids = [0]
    for _ in range(length):
        ids.append(int(np.argmax(TABLE[ids[-1]])))
    return ids[1:]


@pytest.fixture(scope="module")
def plain() -> LanguageModel:
    target = TableTarget(TABLE, eos_token_ids=(greedy_ids(14)[-1],))
    return LanguageModel(target, Letters(), drafter=None, max_batch=32)


@pytest.fixture(scope="module")
def speculating(plain) -> LanguageModel:
    return plain.with_drafter(NgramDrafter(4, min_ngram=1))


@pytest.fixture
def as_a_user(monkeypatch) -> None:
    """Users have no type checker that would refuse a bad value before the library sees it."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


GREEDY = {"max_new_tokens": 30, "ignore_eos": True}
SAMPLED = {**GREEDY, "temperature": 1.0, "seed": 3}
# One option changed against one of the two; in one batch, so that one program must tell the rows apart.
CHANGES = {
    "max_new_tokens": (GREEDY, {"max_new_tokens": 12}),
    "min_new_tokens": (GREEDY, {"stop_token_ids": [0], "min_new_tokens": 25}),
    "temperature": (GREEDY, {"temperature": 2.0, "seed": 3}),
    "top_k": (SAMPLED, {"top_k": 2}),
    "top_p": (SAMPLED, {"top_p": 0.3}),
    "min_p": (SAMPLED, {"min_p": 0.6}),
    "seed": (SAMPLED, {"seed": 4}),
    "repetition_penalty": (GREEDY, {"repetition_penalty": 3.0}),
    "presence_penalty": (GREEDY, {"presence_penalty": 2.0}),
    "frequency_penalty": (GREEDY, {"frequency_penalty": 2.0}),
    "logit_bias": (GREEDY, {"logit_bias": {7: 2.5, 3: -100.0}}),
    "ignore_eos": (GREEDY, {"ignore_eos": False}),
    "stop": (GREEDY, {"stop": "to be filled in"}),
    "include_stop": (GREEDY, {"stop": "to be filled in", "include_stop": True}),
    "stop_token_ids": (GREEDY, {"stop_token_ids": [-1]}),
    "logprobs": (GREEDY, {"logprobs": 2}),
}


@pytest.fixture(scope="module")
def changed() -> dict[str, SamplingParams]:
    """The request of each change, the two unchanged ones first; stops are taken from the text they must cut."""
    ids = greedy_ids(30)
    requests = {"greedy": SamplingParams(**GREEDY), "sampled": SamplingParams(**SAMPLED)}
    for name, (base, change) in CHANGES.items():
        change = dict(change)
        if "stop" in change:
            change["stop"] = Letters().decode(ids[10:13])
        if name == "stop_token_ids":
            change["stop_token_ids"] = [ids[8]]
        requests[name] = SamplingParams(**{**base, **change})
    return requests


@pytest.fixture(scope="module")
def plain_outputs(plain, changed):
    return dict(zip(changed, plain.generate([[0]] * len(changed), list(changed.values())), strict=True))


@pytest.fixture(scope="module")
def speculated_outputs(speculating, changed):
    return dict(zip(changed, speculating.generate([[0]] * len(changed), list(changed.values())), strict=True))


@pytest.mark.parametrize("name", [pytest.param(name, id=f"C20-{name}") for name in CHANGES])
def test_option_changes_plain_text_and_drafts_change_nothing(plain_outputs, speculated_outputs, changed, name):
    output, base = plain_outputs[name], plain_outputs["greedy" if CHANGES[name][0] is GREEDY else "sampled"]
    if name == "logprobs":
        assert (output.token_ids, base.logprobs, len(output.logprobs)) == (base.token_ids, None, 30)
    elif name == "min_new_tokens":
        # Without it the stop id would end the text at once or later; with it there are 25 tokens at least.
        assert 25 <= len(output.token_ids) <= 30
        assert 0 not in output.token_ids[:25]
    else:
        assert (output.text, output.finish_reason) != (base.text, base.finish_reason)
    assert speculated_outputs[name].token_ids == output.token_ids
    assert speculated_outputs[name].text == output.text
    assert speculated_outputs[name].stop_reason == output.stop_reason


def test_every_option_is_tested():
    """C20: an option that is accepted and ignored is worse than none. Processors have a test of their own below."""
    assert {field.name for field in fields(SamplingParams)} == {*CHANGES, "logits_processors"}


def test_stop_options_cut_where_they_should(plain_outputs):
    text = plain_outputs["greedy"].text
    stop = text[10:13]
    assert plain_outputs["stop"].text == text[: text.index(stop)]
    assert plain_outputs["include_stop"].text == text[: text.index(stop) + 3]


def test_processors_see_committed_tokens_and_the_drafts_before_their_row():
    """C19: recorded prefixes, and the text with a processor equals plain text with it."""
    seen: list[tuple[int, ...]] = []

    def bias_by_parity(tokens, length, logits):
        """Adds 20 to token (sum of the prefix) mod 8, so that any wrong history shows in the text."""
        jax.debug.callback(
            lambda tokens, length: seen.append(tuple(np.asarray(tokens).tolist()[:length])), tokens, length
        )
        total = jnp.sum(jnp.where(jnp.arange(tokens.shape[0]) < length, tokens, 0))
        return logits + 20.0 * (jnp.arange(logits.shape[0]) == total % 8)

    plain = LanguageModel(counting_target(8), drafter=None)
    options = {"max_new_tokens": 12, "logits_processors": [bias_by_parity]}
    text = [1, *plain.generate([1], **options).token_ids]
    expected = [1]
    while len(expected) < 13:
        expected.append(sum(expected) % 8)
    assert text == expected
    jax.effects_barrier()
    assert sorted(seen, key=len) == [tuple(text[:n]) for n in range(1, len(seen) + 1)]

    seen.clear()
    model = plain.with_drafter(ScriptedDrafter([text], [2, 0, 3], num_drafts=3, vocab_size=8))
    output = model.generate([1], **options)
    assert output.token_ids == text[1:]
    jax.effects_barrier()
    wanted, committed = {tuple(text[:1])}, 2
    for accepted in [2, 0, 3] * 4:
        drafts = [(t + 1) % 8 if i == accepted else t for i, t in enumerate(text[committed : committed + 3])]
        if len(drafts) == 3 and committed < 12:
            wanted |= {(*text[:committed], *drafts[:i]) for i in range(4)}
        committed += accepted + 1
    recorded = {prefix for prefix in seen if len(prefix) <= 10}  # beyond it the script's text has ended
    assert recorded == {prefix for prefix in wanted if len(prefix) <= 10}


def test_processor_may_close_over_host_arrays(plain):
    """A constant of the user's is no hidden transfer in the loop."""
    push = np.arange(VOCAB_SIZE, dtype=np.float32)
    processor = lambda tokens, length, logits: logits + 10 * push  # noqa: E731
    output = plain.generate([0], max_new_tokens=5, ignore_eos=True, logits_processors=[processor])
    assert output.token_ids == [VOCAB_SIZE - 1] * 5


def test_numbers_of_numpy_are_numbers(plain, as_a_user):
    one = plain.generate([0], max_new_tokens=np.int64(30), temperature=np.float32(1.0), seed=np.int64(3))
    assert one.token_ids == plain.generate([0], max_new_tokens=30, temperature=1, seed=3).token_ids


def test_requests_with_different_processors_cannot_share_a_batch(plain):
    double = SamplingParams(logits_processors=[lambda tokens, length, logits: 2 * logits])
    with pytest.raises(ValueError, match="must have the same logits_processors"):
        plain.generate([[0], [0]], [double, SamplingParams()])


def test_logprobs_are_those_of_plain_decoding():
    """C23: log-softmax of the table, T = 0 and 1, for every accepted length."""
    log_probs = TABLE - np.log(np.exp(TABLE).sum(axis=1, keepdims=True))
    plain = LanguageModel(TableTarget(TABLE), drafter=None)
    requests = [
        SamplingParams(max_new_tokens=25, logprobs=3),
        SamplingParams(max_new_tokens=25, logprobs=3, temperature=1.0, seed=5),
    ]
    expected = plain.generate([[0], [0]], requests)
    texts = [[0, *output.token_ids] for output in expected]
    model = plain.with_drafter(ScriptedDrafter(texts, [0], num_drafts=4, vocab_size=VOCAB_SIZE))
    for accepted in range(5):
        model.programs.set_draft_leaves(model.drafter.follow(texts, [accepted]))
        for row, output in enumerate(model.generate([[0], [0]], requests)):
            assert output.token_ids == expected[row].token_ids
            assert len(output.logprobs) == 25
            for previous, entry in zip(texts[row], output.logprobs, strict=False):
                law = log_probs[previous]
                likeliest = np.argsort(-law)[:3].tolist()
                assert entry.logprob == pytest.approx(law[entry.token_id], abs=1e-5)
                assert entry.processed_logprob == pytest.approx(0.0 if row == 0 else entry.logprob, abs=1e-5)
                # The chosen id is among the three, or is added.
                extra = [] if entry.token_id in likeliest else [entry.token_id]
                assert [token for token, _ in entry.top] == likeliest + extra
                np.testing.assert_allclose([p for _, p in entry.top], law[likeliest + extra], atol=1e-5)


def test_each_request_gets_the_number_of_logprobs_it_asked_for(plain):
    requests = [SamplingParams(max_new_tokens=3, logprobs=n) for n in (None, 0, 1, 4)]
    outputs = plain.generate([[0]] * 4, requests)
    assert [output.logprobs and [len(entry.top) for entry in output.logprobs] for output in outputs] == [
        None,
        [1, 1, 1],  # the chosen one
        [1, 1, 1],
        [4, 4, 4],
    ]


def test_temperatures_alone_and_in_one_batch(plain):
    """C24: one threshold for greedy, no NaN at the ends."""
    temperatures = (0.0, 1e-40, 1e-6, 1e-5, 1e-3, 1.0, 100.0)
    requests = [SamplingParams(temperature=t, seed=1, **GREEDY) for t in temperatures]
    mixed = [output.token_ids for output in plain.generate([[0]] * 7, requests)]
    assert mixed == [plain.generate([0], request).token_ids for request in requests]
    assert mixed[0] == mixed[1] == mixed[2] == mixed[3]  # 1e-5 samples, but nothing is within 1e-4 of the maximum
    assert len({tuple(text) for text in mixed[3:]}) >= 3
    assert [len(text) for text in mixed] == [30] * 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"temperature": -0.1}, r"temperature must be in \[0.0, inf\], got -0.1", id="C24-negative"),
        pytest.param({"temperature": float("nan")}, "temperature must be .* got nan", id="C24-nan"),
        pytest.param({"temperature": float("inf")}, "temperature must be .* got inf", id="C24-inf"),
        pytest.param({"temperature": "hot"}, "temperature must be a number, got 'hot'", id="I01-word"),
        pytest.param(
            {"temprature": 1.0}, "unknown sampling option temprature; known: max_new_tokens", id="C20-unknown"
        ),
        pytest.param({"top_k": -1}, "top_k must be in 0", id="top-k-negative"),
        pytest.param({"top_k": 1.5}, "top_k must be an integer, got 1.5", id="top-k-fraction"),
        pytest.param({"top_p": 0.0}, r"top_p must be in \(0.0, 1.0\], got 0.0", id="top-p-0"),
        pytest.param({"top_p": 1.1}, r"top_p must be in \(0.0, 1.0\], got 1.1", id="top-p-above-1"),
        pytest.param({"min_p": 1.0}, r"min_p must be in \[0.0, 1.0\), got 1.0", id="min-p-1"),
        pytest.param({"repetition_penalty": 0.0}, "repetition_penalty must be in", id="repetition-0"),
        pytest.param({"presence_penalty": float("nan")}, "presence_penalty must be in", id="presence-nan"),
        pytest.param({"frequency_penalty": float("inf")}, "frequency_penalty must be in", id="frequency-inf"),
        pytest.param({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens=5 exceeds", id="min-above-max"),
        pytest.param({"seed": -1}, "seed must be in", id="seed-negative"),
        pytest.param({"seed": 2**63}, "seed must be in", id="seed-too-large"),
        pytest.param({"logprobs": 101}, "logprobs must be in", id="logprobs-too-many"),
        pytest.param({"stop": ""}, "stop must hold non-empty strings", id="stop-empty"),
        pytest.param({"stop": ["a", ""]}, "stop must hold non-empty strings", id="stop-one-empty"),
        pytest.param({"stop_token_ids": [26]}, "stop_token_ids holds token id 26, .* has 26 ids", id="C20-stop-vocab"),
        pytest.param({"stop_token_ids": [-1]}, "stop_token_ids must be in", id="C20-stop-negative"),
        pytest.param({"stop_token_ids": [2**31]}, "stop_token_ids must be in", id="C20-stop-huge"),
        pytest.param({"logit_bias": {26: 1.0}}, "logit_bias holds token id 26, .* has 26 ids", id="C20-bias-vocab"),
        pytest.param({"logit_bias": {-1: 1.0}}, "logit_bias must be in", id="C20-bias-negative"),
        pytest.param({"logit_bias": {2**31: 1.0}}, "logit_bias must be in", id="C20-bias-huge"),
        pytest.param({"logit_bias": {3: float("nan")}}, r"logit_bias\[3\] must be in", id="C20-bias-nan"),
        pytest.param({"logits_processors": [3]}, "logits_processors must be hashable callables, got 3", id="processor"),
        pytest.param({"logits_processors": 3}, "logits_processors must be a list or tuple, got 3", id="no-list"),
        pytest.param({"stop_token_ids": 5}, "stop_token_ids must be a list or tuple, got 5", id="stop-ids-no-list"),
        pytest.param({"logit_bias": [1, 2]}, "logit_bias must map token ids to numbers", id="bias-no-mapping"),
        pytest.param({"stop": 3}, "stop must be a string or a list of strings, got 3", id="stop-number"),
    ],
)
def test_refuses_bad_values_and_the_next_request_works(plain, as_a_user, options, message):
    with pytest.raises(ValueError, match=message):
        plain.generate([0], **options)
    with pytest.raises(ValueError, match=message):
        plain.generate([[0], [0]], [SamplingParams(max_new_tokens=3), sampling_params(None, **options)])
    assert len(plain.generate([0], **GREEDY).token_ids) == 30


def test_stop_none_is_absent():
    assert SamplingParams(stop=None) == SamplingParams()
