"""`generate --trace`: refinement as in the paper's Figure 4, readable without colour."""

import json
from functools import partial

import jax
import pytest
from rich.console import Console

from jetspec_jax.cli import main
from jetspec_jax.commands.trace import legend, token_pieces, trace_tables, visible
from jetspec_jax.config import draft_config_for
from jetspec_jax.decoding.round_trace import RoundTrace
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.testing import ByteTokenizer, write_tiny_checkpoint

WORDS = [" the", " cat", " sat", " on", " a", " mat", ".", "\n", " hat", " and", " dog", " ran"]
THE, CAT, SAT, ON, A, MAT, STOP, NEWLINE, HAT, AND, DOG, RAN = range(12)

# The paper's Figure 4: the decoder agrees at 1..3 and replaces 4; the pass after it gets 7 right by itself.
FIGURE_4 = RoundTrace(
    passes=((THE, CAT, SAT, AND, A, MAT, DOG), (THE, CAT, SAT, ON, A, MAT, STOP)),
    num_fixed=(0, 4),
    proxies=((THE, CAT, SAT, ON, HAT, DOG, RAN),),
    committed=(THE, CAT, SAT, ON, A, MAT, STOP, NEWLINE),
    is_hit=True,
)


def lines_of(trace: RoundTrace, number: int = 2, *, width: int = 80, **drafting) -> list[str]:
    """Printed lines, without colour and without blanks at their ends."""
    console = Console(width=width, color_system=None)
    tables = trace_tables(
        trace, number, drafting=DraftingConfig(**drafting), piece_of=lambda i: visible(WORDS[i]), width=width
    )
    with console.capture() as capture:
        console.print(tables)
    return [line.rstrip() for line in capture.get().splitlines()]


def row_of(lines: list[str], label: str) -> list[str]:
    """Cells of a row: an empty one is blank."""
    (line,) = [line for line in lines if line.startswith(label)]
    header = next(line for line in lines if line.startswith("position"))
    starts = [header.index(f" {n} ") if f" {n} " in header else header.index(f" {n}") for n in range(1, 8)]
    return [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]


def test_figure_4_in_plain_text():
    assert lines_of(FIGURE_4, width=64) == [
        "round 2 · hit · accepted 7 of 7, then ⏎",
        "position   1      2      3      4      5      6      7",
        "──────────────────────────────────────────────────────────",
        "pass 0     ·the   ·cat   ·sat   ·and   ·a     ·mat   ·dog",
        "refresh 1 =·the  =·cat  =·sat  !·on   ~·hat  ~·dog  ~·ran",
        "pass 1    =·the  =·cat  =·sat  =·on    ·a     ·mat  +.",
        "target    ✓·the  ✓·cat  ✓·sat  ✓·on   ✓·a    ✓·mat  ✓.",
        "",
    ]


def test_second_refresh_is_silent_about_what_was_settled():
    trace = RoundTrace(
        passes=(*FIGURE_4.passes, (THE, CAT, SAT, ON, A, MAT, NEWLINE)),
        num_fixed=(0, 4, 7),
        proxies=(*FIGURE_4.proxies, (RAN, RAN, RAN, RAN, A, MAT, NEWLINE)),
        committed=(THE, CAT, DOG),
        is_hit=True,
    )
    lines = lines_of(trace, refine=RefineConfig.parse("J2-R2"))
    assert row_of(lines, "refresh 2") == ["", "", "", "", "=·a", "=·mat", "!⏎"]
    assert row_of(lines, "pass 2") == ["=·the", "=·cat", "=·sat", "=·on", "=·a", "=·mat", "=⏎"]
    assert row_of(lines, "target") == ["✓·the", "✓·cat", "✗·dog", "", "", "", ""]
    assert lines[0] == "round 2 · hit · accepted 2 of 7"


def test_refresh_that_replaces_nothing_marks_nothing():
    trace = RoundTrace(FIGURE_4.passes, (0, 3), FIGURE_4.proxies, (THE, DOG), True)
    lines = lines_of(trace, refine=RefineConfig(replace_anchor=False))
    assert row_of(lines, "refresh 1") == ["=·the", "=·cat", "=·sat", "~·on", "~·hat", "~·dog", "~·ran"]
    assert row_of(lines, "pass 1")[2:4] == ["=·sat", "+·on"]


@pytest.mark.parametrize(
    ("number", "is_hit", "drafting", "origin", "is_refined"),
    [
        pytest.param(1, False, {}, "first block", False, id="first-block-has-one-pass"),
        pytest.param(1, False, {"miss_policy": "refined_fallback"}, "first block", True, id="first-block-refined"),
        pytest.param(5, True, {}, "hit", True, id="hit"),
        pytest.param(5, False, {}, "miss", False, id="miss-falls-back"),
        pytest.param(5, False, {"miss_policy": "refined_fallback"}, "miss", True, id="miss-refined"),
        pytest.param(5, False, {"miss_policy": "soft_miss"}, "miss", True, id="soft-miss-was-prepared"),
        pytest.param(5, False, {"num_outcomes": 0}, "drafted on the critical path", True, id="critical-path"),
    ],
)
def test_title_tells_the_origin_and_unmade_passes_are_not_shown(number, is_hit, drafting, origin, is_refined):
    trace = RoundTrace(FIGURE_4.passes, FIGURE_4.num_fixed, FIGURE_4.proxies, (THE, CAT), is_hit)
    lines = lines_of(trace, number, **drafting)
    assert lines[0] == f"round {number} · {origin} · accepted 1 of 7"
    assert any(line.startswith("pass 1") for line in lines) == is_refined
    assert any(line.startswith("refresh 1") for line in lines) == is_refined


@pytest.mark.parametrize(("width", "num_tables"), [(80, 2), (100, 2), (160, 1)])
def test_long_blocks_are_split_to_fit(width, num_tables):
    block = tuple(token % 12 for token in range(16))
    trace = RoundTrace((block,), (0,), (), (*block[:9], DOG), True)
    lines = lines_of(trace, width=width, refine=RefineConfig.parse("J0"))
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("target") for line in lines) == num_tables
    assert sum(line.count("✓") for line in lines) == 9
    assert sum(line.count("✗") for line in lines) == 1
    assert sum(line.startswith("round") for line in lines) == 1


def test_colour_comes_on_top_of_the_signs():
    console = Console(width=80, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(trace_tables(FIGURE_4, 2, drafting=DraftingConfig(), piece_of=lambda i: WORDS[i]))
    assert "\x1b[32m✓ the" in capture.get()  # green
    assert all(sign in legend().plain for sign in "=!~+✓✗")


def test_pieces_are_visible():
    piece_of = token_pieces(ByteTokenizer())
    assert [piece_of(token) for token in (*b"a \n\t\x07", -1)] == ["a", "·", "⏎", "⇥", "?", "∅"]
    assert piece_of(ByteTokenizer().vocab_size + 5) == f"<{ByteTokenizer().vocab_size + 5}>"  # no text
    assert token_pieces(None)(42) == "42"


class LeadingBlankTokenizer(ByteTokenizer):
    """Strips the blank of a text's first token, as SentencePiece does."""

    def decode(self, ids, *, skip_special_tokens=True):
        return super().decode(ids, skip_special_tokens=skip_special_tokens).removeprefix(" ")


def test_blank_that_a_tokenizer_strips_from_a_text_is_shown():
    assert token_pieces(LeadingBlankTokenizer())(ord(" ")) == "·"
    assert token_pieces(LeadingBlankTokenizer())(ord("a")) == "a"


@pytest.fixture(scope="module")
def invocation(tmp_path_factory) -> list[str]:
    folder = str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))
    limits = ["--max-new-tokens", "6", "--num-drafts", "3", "--outcomes", "0"]
    return ["generate", "abc", "--raw", "--model", folder, "--drafter", "jetspec++", "--trace", *limits]


@pytest.fixture
def cache_outside_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("JETSPEC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    # One layer instead of five compiles sooner.
    monkeypatch.setattr("jetspec_jax.drafters.jetspecpp.draft_config_for", partial(draft_config_for, num_layers=1))
    before = jax.config.jax_compilation_cache_dir  # of the session; the command line sets its own
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.usefixtures("cache_outside_home")
def test_command_prints_a_table_per_round_and_says_that_weights_are_random(capsys, invocation):
    assert main(invocation) == 0
    captured = capsys.readouterr()
    titles = [line for line in captured.out.splitlines() if line.startswith("round ")]
    assert titles[0].startswith("round 1 · drafted on the critical path · accepted ")
    assert [line.split(" ")[1] for line in titles] == [str(n) for n in range(1, len(titles) + 1)]
    assert "the target's own token" in captured.out
    assert captured.err.count("random weights") == 1


@pytest.mark.usefixtures("cache_outside_home")
def test_command_gives_traces_as_json(capsys, invocation):
    assert main([*invocation, "--json", "--refine", "J1-R1"]) == 0
    record = json.loads(capsys.readouterr().out)
    ((first, *_),) = record["traces"]
    assert set(first) == {"passes", "num_fixed", "proxies", "committed", "is_hit"}
    assert [len(first[name]) for name in ("passes", "num_fixed", "proxies")] == [2, 2, 1]
    assert len(record["traces"][0]) == record["outputs"][0]["stats"]["rounds"]
