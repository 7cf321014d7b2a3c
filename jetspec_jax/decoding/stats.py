"""What a request's decoding cost and how well the drafts did."""

from dataclasses import dataclass, field


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
    drafting_stopped_at: int | None = None
    draft_ms: float | None = None
    verify_ms: float | None = None
    exposed_draft_ms: float | None = None

    def __post_init__(self):
        self.accepted_at = self.accepted_at or [0] * self.num_drafts

    def add_round(self, *, delivered: int, committed: int, drafted: int) -> None:
        """Counts a round that committed `committed` tokens of which `delivered` belong to the text."""
        if delivered == 0:
            return
        self.rounds += 1
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
        derived = ("accepted", "tau", "histogram", "acceptance_rate", "tokens_per_s")
        return {**self.__dict__, **{name: getattr(self, name) for name in derived}}
