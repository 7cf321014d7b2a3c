"""What a request's decoding cost and how well the drafts did."""

import itertools
from dataclasses import dataclass, field

import numpy as np


@dataclass
class DecodeStats:
    """Counters of one request; the first token comes from prefill and belongs to no round.

    Attributes:
        num_drafts: γ.
        rounds: verification rounds that delivered text.
        committed: delivered tokens of each round, in order (a round cut by the end of text counts what it delivered).
        drafted: proposed tokens of all rounds.
        accepted_at: how often the draft at offset i was accepted and delivered.
        compile_ms: compiling and loading programs, apart from all other times.
        prefill_ms: from the start to the first token on the host.
        decode_ms: from the first to the last token on the host.
        hits: for each round after the first, whether its block came from the outcome cache; empty without one. The
            first round of a request has no cache to look in.
        cache_mass: for the same rounds, the hit rate that the cache expected.
        refined_rounds: rounds whose block went through all passes.
        right_at_pass: over those rounds, `[pass][offset]`, how often a pass had the draft at an offset and all before
            it right (as far as known); None for drafters that do not refine.
        drafting_stopped_at: context length at which the drafter's own limit switched drafting off.
        draft_ms, verify_ms, exposed_draft_ms: per round; measured by `bench` only, because a fused round is one
            program. None when not measured.
    """

    num_drafts: int
    rounds: int = 0
    committed: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted_at: list[int] = field(default_factory=list)
    compile_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    hits: list[bool] = field(default_factory=list)
    cache_mass: list[float] = field(default_factory=list)
    refined_rounds: int = 0
    right_at_pass: list[list[int]] | None = None
    drafting_stopped_at: int | None = None
    draft_ms: float | None = None
    verify_ms: float | None = None
    exposed_draft_ms: float | None = None

    def __post_init__(self):
        self.accepted_at = self.accepted_at or [0] * self.num_drafts

    def add_round(
        self,
        *,
        delivered: int,
        committed: int,
        drafted: int,
        is_hit: bool | None = None,
        mass: float | None = None,
        right_by_pass: np.ndarray | None = None,
    ) -> None:
        """Counts a round that committed `committed` tokens of which `delivered` belong to the text.

        Args:
            delivered, committed, drafted: token counts.
            is_hit: whether the block came from the outcome cache, None without one.
            mass: hit rate that the cache expected.
            right_by_pass: `[passes, γ]`, what each refinement pass had right; None if they were not all made.
        """
        if delivered == 0:
            return
        self.rounds += 1
        if is_hit is not None and self.rounds > 1:
            self.hits.append(is_hit)
            self.cache_mass.append(mass)
        if right_by_pass is not None:
            self.refined_rounds += 1
            self.right_at_pass = (np.array(self.right_at_pass or 0) + right_by_pass).tolist()
        self.committed.append(delivered)
        self.drafted += drafted
        # The last committed token is the target's own; the ones before it were drafts.
        for offset in range(min(delivered, committed - 1)):
            self.accepted_at[offset] += 1

    @property
    def accepted(self) -> int:
        """Accepted drafts that were delivered."""
        return sum(self.accepted_at)

    @property
    def tau(self) -> float | None:
        """Committed tokens per round, the acceptance length; None before the first round."""
        return sum(self.committed) / self.rounds if self.rounds else None

    @property
    def hit_rate(self) -> float | None:
        """Share of rounds whose block came from the outcome cache, first round excluded; None without any."""
        return sum(self.hits) / len(self.hits) if self.hits else None

    @property
    def expected_hit_rate(self) -> float | None:
        """Hit rate that the outcome scores promised for the same rounds."""
        return sum(self.cache_mass) / len(self.cache_mass) if self.cache_mass else None

    @property
    def tau_on_hit(self) -> float | None:
        """Committed tokens per round over hits."""
        return self._tau_where(True)

    @property
    def tau_on_miss(self) -> float | None:
        """Committed tokens per round over misses, first round excluded."""
        return self._tau_where(False)

    @property
    def refinement_gain(self) -> list[float] | None:
        """Right drafts per refined round that each pass added to the one before it; None without a second pass."""
        totals = [sum(offsets) for offsets in self.right_at_pass or []]
        return [(after - before) / self.refined_rounds for before, after in itertools.pairwise(totals)] or None

    def _tau_where(self, is_hit: bool) -> float | None:
        # The first round is no entry of `hits`.
        chosen = [count for count, hit in zip(self.committed[1:], self.hits, strict=False) if hit == is_hit]
        return sum(chosen) / len(chosen) if chosen else None

    @property
    def histogram(self) -> list[int]:
        """How many rounds committed 1, 2, .. γ+1 tokens."""
        return [self.committed.count(length) for length in range(1, self.num_drafts + 2)]

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted share of the proposed tokens."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_s(self) -> float | None:
        """Decoding speed without prefill and compilation, tokens per second."""
        return 1e3 * sum(self.committed) / self.decode_ms if self.rounds and self.decode_ms > 0 else None

    def to_dict(self) -> dict:
        """All counters and derived numbers, for JSON."""
        derived = ("accepted", "tau", "histogram", "acceptance_rate", "tokens_per_s", "hit_rate", "expected_hit_rate")
        derived += ("tau_on_hit", "tau_on_miss", "refinement_gain")
        return {**self.__dict__, **{name: getattr(self, name) for name in derived}}
