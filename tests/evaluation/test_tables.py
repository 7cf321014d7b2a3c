"""Tables fit a terminal of 80 columns, and show cache hits where there is a cache."""

import pytest
from rich.console import Console

from jetspec_jax.decoding.stats import DecodeStats
from jetspec_jax.drafters import NgramDrafter
from jetspec_jax.evaluation.compare import Comparison, Run
from jetspec_jax.evaluation.phases import PhaseTimes
from jetspec_jax.evaluation.tables import acceptance_table, comparison_table, stats_table
from jetspec_jax.outputs import GenerationOutput, Usage


def run_of(drafter: str, num_drafts: int, hits: list[bool]) -> Run:
    stats = DecodeStats(num_drafts, rounds=4, committed=[5] * 4, decode_ms=1000.0, hits=hits)
    output = GenerationOutput([*range(21)], "", "length", None, None, [0], None, Usage(1, 21), stats)
    return Run(
        drafter, num_drafts, [output], PhaseTimes(8, 16, 16, ar_ms=52.0, verify_ms=148.0, draft_ms=50.0, repeats=1)
    )


def printed(table) -> str:
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.mark.parametrize(("hits", "share"), [([True, True, True], "100%"), ([True, False, False], "33%"), ([], None)])
def test_hit_rate_is_shown_where_there_is_one(hits, share):
    run = run_of("jetspec++", 15, hits)
    for table in (
        comparison_table(Comparison(run_of("autoregressive", 0, []), [run], [True])),
        stats_table(NgramDrafter(15), run.outputs),
    ):
        text = printed(table)
        assert "…" not in text
        assert ("hits" in text) == (share is not None)
        assert share is None or share in text


def test_acceptance_is_shown_by_configuration_and_set():
    configurations = {
        "J3-R3": {"humaneval": {"tau": 4.5, "rounds": 10, "hit_rate": None}, "mean": 4.5},
        "J3-R3 B=4": {
            "humaneval": {"tau": 4.0, "rounds": 100, "hit_rate": 0.5},
            "held-out gsm": {"tau": 7.125, "rounds": 300, "hit_rate": 0.9},
            "mean": 5.5625,
        },
    }
    rows = [line.split() for line in printed(acceptance_table(configurations)).splitlines()]
    assert ["J3-R3", "4.50", "-", "4.50", "-"] in rows
    assert ["J3-R3", "B=4", "4.00", "7.12", "5.56", "80%"] in rows
