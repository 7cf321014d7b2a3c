"""The end-of-text walk: which token ends the text, why, and what text it leaves."""

import pytest

from jetspec_jax.decoding.walk import TextWalk
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import ByteTokenizer
from jetspec_jax.text.streaming import IncrementalDetokenizer

EOS = 257


def walk_of(
    max_new_tokens: int = 100, *, prompt_len: int = 3, eos=(EOS,), with_text: bool = True, **options
) -> TextWalk:
    params = SamplingParams(max_new_tokens=None, **options)
    detokenizer = None
    if with_text:
        detokenizer = IncrementalDetokenizer(ByteTokenizer(), stop=params.stop, include_stop=params.include_stop)
    return TextWalk(params, eos, max_new_tokens, detokenizer, prompt_len)


def advance(walk: TextWalk, tokens: str | list[int], bad: int | None = None) -> tuple[int, str]:
    """Walks one round's tokens; `bad` is the offset of a NaN row."""
    ids = list(tokens.encode()) if isinstance(tokens, str) else tokens
    return walk.advance(ids, [i != bad for i in range(len(ids))])


@pytest.mark.parametrize(
    ("options", "tokens", "bad", "num_ids", "text", "reason", "stop_reason"),
    [
        pytest.param({}, "abc", None, 3, "abc", None, None, id="goes-on"),
        pytest.param({}, [EOS, 97, 98], None, 1, "", "stop", EOS, id="C09-eos-first"),
        pytest.param({}, [97, EOS, 98], None, 2, "a", "stop", EOS, id="C09-eos-middle"),
        pytest.param({}, [97, 98, EOS], None, 3, "ab", "stop", EOS, id="C09-eos-last"),
        pytest.param({"ignore_eos": True}, [97, EOS, 98], None, 3, "ab", None, None, id="C09-eos-ignored"),
        pytest.param({"stop_token_ids": [98]}, "abc", None, 2, "a", "stop", 98, id="stop-id"),
        pytest.param(
            {"stop_token_ids": [98], "include_stop": True}, "abc", None, 2, "ab", "stop", 98, id="stop-id-kept"
        ),
        pytest.param({"stop_token_ids": [98], "ignore_eos": True}, [EOS, 98], None, 2, "", "stop", 98, id="both-lists"),
        pytest.param({"stop": "bc"}, "abcd", None, 3, "a", "stop", "bc", id="C10-stop-string"),
        pytest.param({"stop": "bc", "include_stop": True}, "abcd", None, 3, "abc", "stop", "bc", id="C10-include-stop"),
        pytest.param({"stop": ["cd", "bc"]}, "abcd", None, 3, "a", "stop", "bc", id="C10-earliest-match-wins"),
        pytest.param({"max_new_tokens": 2}, "abc", None, 2, "ab", "length", None, id="C11-length"),
        pytest.param({"max_new_tokens": 3}, "abc", None, 3, "abc", "length", None, id="C11-exactly-the-length"),
        pytest.param({}, "abc", 0, 0, "", "error", None, id="C08-nan-first"),
        pytest.param({}, "abc", 2, 2, "ab", "error", None, id="C08-nan-last"),
        # Precedence: whatever comes first in the order of tokens; on one token a stop beats the length.
        pytest.param({"max_new_tokens": 2}, [97, EOS], None, 2, "a", "stop", EOS, id="eos-on-the-last-allowed"),
        pytest.param(
            {"max_new_tokens": 2, "stop": "b"}, "ab", None, 2, "a", "stop", "b", id="string-on-the-last-allowed"
        ),
        pytest.param({"max_new_tokens": 1}, [97, EOS], None, 1, "a", "length", None, id="length-before-eos"),
        pytest.param({"max_new_tokens": 1}, "abc", 1, 1, "a", "length", None, id="length-before-nan"),
        pytest.param({}, [EOS, 97], 1, 1, "", "stop", EOS, id="eos-before-nan"),
        pytest.param({}, [97, EOS], 0, 0, "", "error", None, id="nan-before-eos"),
        pytest.param({"stop": "a", "stop_token_ids": [97]}, "ab", None, 1, "", "stop", 97, id="id-before-its-text"),
    ],
)
def test_end_of_text(options, tokens, bad, num_ids, text, reason, stop_reason):
    options = dict(options)
    walk = walk_of(options.pop("max_new_tokens", 100), **options)
    delivered, new_text = advance(walk, tokens, bad)
    assert delivered == len(walk.token_ids) == num_ids
    # The same ids are given back, nothing after the end.
    assert walk.token_ids == (list(tokens.encode()) if isinstance(tokens, str) else tokens)[:num_ids]
    assert (walk.text, walk.finish_reason, walk.stop_reason) == (text, reason, stop_reason)
    assert new_text == text if reason else text.startswith(new_text)


def test_error_names_the_absolute_position():
    walk = walk_of(prompt_len=3)
    advance(walk, "ab")
    advance(walk, "cd", bad=1)
    assert walk.error == "logits for position 6 are not finite, from the target or after filters"  # 3 + "abc"


def test_stop_string_across_rounds():
    walk = walk_of(stop="abc")
    assert advance(walk, "xa") == (2, "x")  # "a" could begin the stop string
    assert advance(walk, "b") == (1, "")
    assert advance(walk, "cx") == (1, "")
    assert (walk.text, walk.stop_reason, walk.token_ids) == ("x", "abc", list(b"xabc"))


def test_held_text_comes_out_at_the_end():
    walk = walk_of(4, stop="abc")
    advance(walk, "xab")
    assert walk.text == "x"
    assert advance(walk, "d") == (1, "abd")
    assert walk.text == "xabd"


def test_character_cut_by_the_length_becomes_one_replacement_mark():
    walk = walk_of(3)
    advance(walk, list("a🚀".encode()))
    assert (walk.text, walk.finish_reason) == ("a\ufffd", "length")


def test_nothing_is_taken_after_the_end():
    walk = walk_of()
    advance(walk, [EOS])
    assert advance(walk, "abc") == (0, "")
    assert walk.token_ids == [EOS]


def test_zero_new_tokens_are_finished_from_the_start():
    walk = walk_of(0)
    assert (walk.is_finished, walk.finish_reason, walk.text) == (True, "length", "")
    assert advance(walk, "abc") == (0, "")


def test_cancel_keeps_what_was_delivered_and_gives_out_what_was_held():
    walk = walk_of(stop="abc")
    advance(walk, "xab")
    assert walk.cancel() == "ab"
    assert (walk.text, walk.finish_reason, walk.token_ids) == ("xab", "cancelled", list(b"xab"))
    assert advance(walk, "c") == (0, "")


def test_cancel_does_not_change_a_finished_text():
    walk = walk_of()
    advance(walk, [97, EOS])
    assert walk.cancel() == ""
    assert walk.finish_reason == "stop"


def test_without_a_tokenizer_ids_are_walked_and_stop_strings_refused():
    walk = walk_of(with_text=False)
    assert advance(walk, [97, EOS, 98]) == (2, "")
    assert walk.finish_reason == "stop"
    with pytest.raises(ValueError, match="stop strings need a tokenizer"):
        walk_of(with_text=False, stop="x")
