"""Tables for people."""

from collections.abc import Sequence

from rich.table import Table

from jetspec_jax.drafters.protocol import Drafter
from jetspec_jax.evaluation.compare import Comparison, Run
from jetspec_jax.outputs import GenerationOutput


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def stats_table(drafter: Drafter, outputs: Sequence[GenerationOutput], plain: Sequence[GenerationOutput] = ()) -> Table:
    """Tokens, rounds, τ and speed of a run, beside plain decoding if it was measured."""
    table = Table(title=f"{drafter.name}, {drafter.num_drafts} drafts a round")
    for column in (
        "decoding",
        "tokens",
        "rounds",
        "tokens/round (τ)",
        "ms/round",
        "tokens/s",
        "prefill ms",
        "same text",
    ):
        table.add_column(column, justify="left" if column == "decoding" else "right")
    runs = [("speculative", Run(drafter.name, drafter.num_drafts, list(outputs)))]
    if plain:
        runs.append(("plain", Run("autoregressive", 0, list(plain))))
    for label, run in runs:
        same = "-"
        if plain and label == "speculative":
            is_same = [o.token_ids for o in outputs] == [o.token_ids for o in plain]
            same = "yes" if is_same else "NO"
        prefill = sum(output.stats.prefill_ms for output in run.outputs) / len(run.outputs)
        table.add_row(
            label,
            str(run.num_tokens),
            str(run.rounds),
            _number(run.tau),
            _number(run.round_ms, 1),
            _number(run.tokens_per_s, 1),
            _number(prefill, 0),
            same,
        )
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Each block size against plain decoding."""
    table = Table(title="speculative against plain decoding, same prompts, same process")
    columns = ("drafter", "drafts", "τ", "τ w/o loops", "tokens/s", "speed-up", "ms/round", "draft ms", "verify ms")
    for column in (*columns, "break-even τ", "same text"):
        table.add_column(column, justify="left" if column == "drafter" else "right")
    rows = zip([comparison.baseline, *comparison.runs], [True, *comparison.same_text], strict=True)
    for run, is_same in rows:
        phases = run.phases
        table.add_row(
            run.drafter,
            str(run.num_drafts),
            _number(run.tau),
            _number(run.tau_without_loops) + (f" ({run.num_loops} loops)" if run.num_loops else ""),
            _number(run.tokens_per_s, 1),
            _number(comparison.speedup(run)),
            _number(run.round_ms, 1),
            _number(phases and phases.draft_ms, 1),
            _number(phases and phases.verify_ms, 1),
            _number(phases and phases.break_even_tau),
            "yes" if is_same else "NO",
        )
    return table
