"""Prompt lookup: what followed the longest known suffix the last time."""

import pytest

from jetspec_jax.decoding.verify import NO_TOKEN
from jetspec_jax.drafters import NgramDrafter
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.testing import counting_target

NONE = NO_TOKEN


@pytest.mark.parametrize(
    ("text", "num_drafts", "ngrams", "expected"),
    [
        pytest.param([5, 6, 7, 8, 5, 6], 2, (2, 4), [7, 8], id="example"),
        pytest.param([1, 2, 3, 9, 2, 3, 7, 1, 2, 3], 2, (2, 4), [9, 2], id="longest-suffix-wins"),
        pytest.param([1, 2, 3, 9, 2, 3, 7, 1, 2, 3], 2, (2, 2), [7, 1], id="not-longer-than-max-ngram"),
        pytest.param([1, 2, 5, 1, 2, 6, 1, 2], 1, (2, 4), [6], id="latest-of-equals-wins"),
        pytest.param([1, 2, 1, 2], 5, (2, 4), [1, 2, 1, 2, 1], id="goes-round"),
        pytest.param([7, 7, 7], 3, (2, 4), [7, 7, 7], id="goes-round-with-period-1"),
        pytest.param([9, 1, 2, 3, 1, 2], 4, (2, 4), [3, 1, 2, 3], id="goes-round-after-the-rest-of-the-text"),
        pytest.param([1, 2, 3, 4], 2, (2, 4), [NONE, NONE], id="no-match"),
        pytest.param([5, 1, 5], 2, (2, 4), [NONE, NONE], id="shorter-than-min-ngram"),
        pytest.param([5, 1, 5], 2, (1, 4), [1, 5], id="one-token-if-allowed"),
        pytest.param([5], 2, (1, 4), [NONE, NONE], id="one-token-text"),
        pytest.param([96, 96], 2, (1, 4), [96, 96], id="token-that-looks-like-the-garbage"),
        pytest.param([0, 0], 2, (2, 4), [NONE, NONE], id="nothing-before-the-text"),
    ],
)
@pytest.mark.parametrize("garbage", [96, 0])
def test_proposals(decoder, view_of, text, num_drafts, ngrams, expected, garbage):
    drafter = NgramDrafter(num_drafts, min_ngram=ngrams[0], max_ngram=ngrams[1])
    drafts, _ = drafter.propose((), decoder, (), view_of([text], garbage=garbage))
    assert drafts.tolist() == [expected]


def test_rows_are_independent(decoder, view_of):
    drafts, _ = NgramDrafter(2).propose((), decoder, (), view_of([[1, 2, 3, 1, 2], [1, 2, 3], [4, 4, 4]]))
    assert drafts.tolist() == [[3, 1], [NONE, NONE], [4, 4]]


@pytest.mark.parametrize(
    ("num_drafts", "ngrams"), [pytest.param(0, (2, 4)), pytest.param(3, (0, 4)), pytest.param(3, (3, 2))]
)
def test_refuses_impossible_settings(num_drafts, ngrams):
    with pytest.raises(ValueError, match=f"got {num_drafts}, {ngrams[0]}, {ngrams[1]}"):
        NgramDrafter(num_drafts, min_ngram=ngrams[0], max_ngram=ngrams[1])


def test_cyclic_text_is_accepted_whole_after_one_cycle():
    """I04: generation itself is not cut, however well a loop is guessed."""
    output = LanguageModel(counting_target(7), drafter=NgramDrafter(4)).generate([0], max_new_tokens=60)
    assert output.token_ids == [(1 + i) % 7 for i in range(60)]
    # One token a round until two tokens repeat, then whole blocks; the last one is cut.
    assert output.stats.committed == [1] * 7 + [5] * 10 + [2]
    assert output.stats.drafted == 4 * 11
