"""A record of `evaluate_sets` as a table for people."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table


def acceptance_table(record: dict[str, Any]) -> Table:
    """τ of every point on every set, its mean, and the hit rate where there is an outcome cache.

    Args:
        record: of `evaluate_sets`; sets that a point was not measured on show as "-".
    """
    configurations = record["configurations"]
    names = dict.fromkeys(name for found in configurations.values() for name in found if name != "mean")
    table = Table(title="τ: tokens a round", box=SIMPLE_HEAD, title_justify="left")
    table.add_column("point", no_wrap=True)
    for column in (*names, "mean", "hits"):
        table.add_column(column, justify="right")
    for point, found in configurations.items():
        taus = [f"{found[name]['tau']:.2f}" if name in found else "-" for name in names]
        rates = [found[name]["hit_rate"] for name in names if name in found and found[name]["hit_rate"] is not None]
        hits = f"{sum(rates) / len(rates):.0%}" if rates else "-"
        table.add_row(point, *taus, f"{found['mean']:.2f}", hits)
    return table
