"""Tables for people; narrow enough for a terminal of 80 columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from jetspec_jax.drafters.protocol import Drafter
from jetspec_jax.evaluation.compare import Comparison, Run
from jetspec_jax.outputs import GenerationOutput


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
    # In a narrow terminal headers of two words take two lines; nothing else gives way.
    table.add_column(first, no_wrap=True)
    for column in columns:
        longest = max(map(len, column.split()))
        table.add_column(column, justify="right", min_width=longest, no_wrap=" " not in column)
    return table


def stats_table(drafter: Drafter, outputs: Sequence[GenerationOutput], plain: Sequence[GenerationOutput] = ()) -> Table:
    """Tokens, rounds, τ, cache hits if there is a cache, and speed, beside plain decoding if it was measured."""
    title = f"drafter {drafter.name}, {drafter.num_drafts} drafts a round"
    speculative = Run(drafter.name, drafter.num_drafts, list(outputs))
    runs, has_hits = [("speculative", speculative)], speculative.hit_rate is not None
    columns = ("τ", *["hits"] * has_hits, "ms/round", "tokens/s", "same text")
    table = _table(title, "decoding", "tokens", "rounds", *columns)
    same = "-"
    if plain:
        runs.append(("plain", Run("autoregressive", 0, list(plain))))
        same = "yes" if [o.token_ids for o in outputs] == [o.token_ids for o in plain] else "NO"
    for (label, run), is_same in zip(runs, (same, "-"), strict=False):
        numbers = [_number(run.round_ms, 1), _number(run.tokens_per_s, 1)]
        numbers = [_number(run.tau), *[_percent(run.hit_rate)] * has_hits, *numbers]
        table.add_row(label, str(run.num_tokens), str(run.rounds), *numbers, is_same)
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Each block size against plain decoding: drafting and verification measured apart, and the τ where they pay."""
    has_hits = any(run.hit_rate is not None for run in comparison.runs)
    table = _table(
        "speculative against plain decoding, same prompts, same process",
        "drafter",
        "drafts",
        *["hits"] * has_hits,
        "τ",
        "τ to win",
        "tok/s",
        "x plain",
        "round ms",
        "draft ms",
        "verify ms",
        "same text",
    )
    rows = zip([comparison.baseline, *comparison.runs], [True, *comparison.same_text], strict=True)
    for run, is_same in rows:
        phases = run.phases
        table.add_row(
            "plain" if run is comparison.baseline else run.drafter,
            str(run.num_drafts),
            *[_percent(run.hit_rate)] * has_hits,
            _number(run.tau),
            _number(run.break_even_tau),
            _number(run.tokens_per_s, 0 if run.tokens_per_s >= 100 else 1),
            _number(comparison.speedup(run)),
            _number(run.round_ms, 1),
            _number(phases and phases.draft_ms, 1),
            _number(phases and phases.verify_ms, 1),
            "yes" if is_same else "NO",
        )
    if looping := [run for run in comparison.runs if run.num_loops]:
        cut = ", ".join(f"{_number(run.tau_without_loops)} with {run.num_drafts} drafts" for run in looping)
        table.caption = f"{looping[0].num_loops} texts end in a repetition loop; τ cut at its onset: {cut}"
    return table


def speedup_table(comparison: Comparison) -> Table:
    """Decoding speed of each run relative to plain decoding, prompt by prompt."""
    prompts = [str(number) for number in range(1, len(comparison.baseline.outputs) + 1)]
    table = _table("x plain decoding, by prompt", "drafter", "drafts", *prompts)
    for run in comparison.runs:
        table.add_row(run.drafter, str(run.num_drafts), *map(_number, comparison.speedups(run)))
    return table


def acceptance_table(configurations: Mapping[str, Mapping[str, Any]]) -> Table:
    """τ by configuration and prompt set, with the hit rate over all sets where there is a cache.

    Args:
        configurations: by name, a map from set to its numbers (`tau`, `rounds`, `hit_rate`) and from "mean" to the mean
            τ, as the records of `train/evaluate.py` hold them.
    """
    sets = dict.fromkeys(name for numbers in configurations.values() for name in numbers if name != "mean")
    table = _table("τ, committed tokens per round", "configuration", *sets, "mean", "hits")
    for label, numbers in configurations.items():
        measured = [numbers[name] for name in sets if name in numbers]
        with_cache = [of_set for of_set in measured if of_set["hit_rate"] is not None]
        rounds = sum(of_set["rounds"] for of_set in with_cache)
        hits = sum(of_set["rounds"] * of_set["hit_rate"] for of_set in with_cache)
        taus = [_number(numbers[name]["tau"] if name in numbers else None) for name in sets]
        table.add_row(label, *taus, _number(numbers["mean"]), _percent(hits / rounds if rounds else None))
    return table
