"""How one verified block came about, on the host: every pass of its refinement, and what became of it."""

from dataclasses import dataclass

import numpy as np

from jetspec_jax.decoding.state import DraftReport


@dataclass(frozen=True)
class RoundTrace:
    """One request, one round.

    Attributes:
        passes: tokens after each pass, `[n + 1][γ]`; the last are the ones that were verified.
        num_fixed: settled positions when each pass began, `[n + 1]`.
        proxies: the decoder's tokens at each refresh, `[m][γ]`.
        committed: the target's tokens, accepted drafts and the one after them.
        is_hit: the block came from the outcome cache.
    """

    passes: tuple[tuple[int, ...], ...]
    num_fixed: tuple[int, ...]
    proxies: tuple[tuple[int, ...], ...]
    committed: tuple[int, ...]
    is_hit: bool

    @classmethod
    def of_row(cls, report: DraftReport, row: int, committed: list[int]) -> "RoundTrace | None":
        """The trace of one request, if the report (numpy arrays) carries traces."""
        if report.passes is None:
            return None
        return cls(
            passes=_rows(report.passes[row]),
            num_fixed=tuple(int(count) for count in report.num_fixed[row]),
            proxies=_rows(report.proxies[row]),
            committed=tuple(committed),
            is_hit=bool(report.is_hit[row]),
        )

    @property
    def num_accepted(self) -> int:
        """Drafts that were accepted."""
        return len(self.committed) - 1


def _rows(array: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(token) for token in row) for row in array)
