"""How blocks are drafted: refinement, foresight, what happens on a miss. Frozen and hashable, static for jit."""

import re
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

OutcomeRule = Literal["calibrated", "uncalibrated", "draft_model", "geometric", "length_prior", "uniform"]
MissPolicy = Literal["fallback", "refined_fallback", "soft_miss"]
Conditioning = Literal["effective_anchor", "double"]
Rewritten = Literal["keep", "renoise"]
DraftWeights = Literal["given", "int8", "fp8"]

DECISION_TEMPERATURE = 0.25


def _check(name: str, value: str, options: object) -> None:
    if value not in get_args(options):
        raise ValueError(f"{name}={value!r} is not supported ({', '.join(get_args(options))})")


@dataclass(frozen=True, kw_only=True)
class RefineConfig:
    """Self-refinement of a block: Jn passes and Rm refreshes (handbook 7.3).

    Pass 0 runs on a block of noise; pass i rewrites the positions that are not fixed from the tokens of pass i-1. A
    refresh before pass i (for i = 1..m) lets the decoder verify the block by proxy, fixes what agrees, replaces the
    first token that does not, and gives the next pass predicted target states of the fixed rows.

    Attributes:
        num_passes: n, passes after pass 0.
        num_refreshes: m, at most n.
        replace_anchor: write the decoder's token at the first disagreement; False refreshes the context alone.
        conditioning: how refreshed states enter. `effective_anchor`: rows before the last fixed one are seen through
            their refreshed states only; `double`: as block rows too.
        rewritten: what rows after the fixed ones carry into the next pass: `keep` their tokens, or `renoise` them.
    """

    num_passes: int = 1
    num_refreshes: int = 1
    replace_anchor: bool = True
    conditioning: Conditioning = "effective_anchor"
    rewritten: Rewritten = "keep"

    def __post_init__(self):
        if not 0 <= self.num_refreshes <= self.num_passes:
            raise ValueError(f"J{self.num_passes}-R{self.num_refreshes}: need 0 <= refreshes <= passes")
        _check("conditioning", self.conditioning, Conditioning)
        _check("rewritten", self.rewritten, Rewritten)

    @classmethod
    def parse(cls, name: str) -> "RefineConfig":
        """`J0`, `J3` (passes alone) or `J3-R3`.

        Raises:
            ValueError: another form.
        """
        match = re.fullmatch(r"J(\d+)(?:-R(\d+))?", name)
        if match is None:
            raise ValueError(f"refinement {name!r} is not of the form J0, J3 or J3-R3")
        return cls(num_passes=int(match[1]), num_refreshes=int(match[2] or 0))

    @property
    def name(self) -> str:
        """The paper's notation, for example `J1-R1`."""
        return f"J{self.num_passes}" + (f"-R{self.num_refreshes}" if self.num_refreshes else "")


@dataclass(frozen=True, kw_only=True)
class DraftingConfig:
    """Everything that shapes the drafting of a round; one executable per value.

    Attributes:
        num_drafts: γ, drafted tokens a round; None takes what the draft was trained for.
        refine: refinement of each block.
        num_outcomes: blocks prepared a round for the likeliest outcomes of the verification under way (the paper's
            cache size B); 0 drafts on the critical path, after the verification.
        miss_policy: what is proposed when the outcome was not prepared for. `fallback`: one pass with the true states;
            `refined_fallback`: that, refined; `soft_miss`: the likeliest prepared block of the same accepted length,
            with the true anchor in the wrong one's place (no draft call, nothing if there is none).
        outcome_rule: how outcomes are scored (handbook 7.6); None is `calibrated` where the drafter has a calibration,
            else `uncalibrated`.
        acceptance_prior: α of the rules with a fixed length law.
        decision_temperature: how sure the decoder is taken to be where the draw is decided by logits and known noise
            (greedy, or coupled noise): divides its logits in outcome scores. Small is sure. Sampling without coupling
            is left to chance, that is to the distribution itself. None takes what the calibration was fitted with,
            0.25 without one.
        couple_noise: at T > 0 add the draw's own position noise to the logits of draft and decoder, so that they agree
            with the target's draw more often. The text does not depend on it.
        draft_weights: how draft, adapter, decoder and head are read while drafting: as `given`, or with half
            the bytes of bf16 and a scale an output, as `int8`, or as `fp8`, which rounds more, activations too, and
            is faster on GPU (`ops/quantized_weight.py`). The decoder is then a copy; the target's arrays stay.
        keep_trace: hand the trace of every pass to the host.
    """

    num_drafts: int | None = None
    refine: RefineConfig = field(default_factory=RefineConfig)
    num_outcomes: int = 4
    miss_policy: MissPolicy = "fallback"
    outcome_rule: OutcomeRule | None = None
    acceptance_prior: float = 0.8
    decision_temperature: float | None = None
    couple_noise: bool = True
    draft_weights: DraftWeights = "given"
    keep_trace: bool = False

    def __post_init__(self):
        if self.num_drafts is not None and self.num_drafts < 1:
            raise ValueError(f"num_drafts={self.num_drafts} must be at least 1")
        if self.num_outcomes < 0:
            raise ValueError(f"num_outcomes={self.num_outcomes} must not be negative")
        if not 0 < self.acceptance_prior < 1:
            raise ValueError(f"acceptance_prior={self.acceptance_prior} must be between 0 and 1")
        if self.decision_temperature is not None and self.decision_temperature <= 0:
            raise ValueError(f"decision_temperature={self.decision_temperature} must be positive")
        _check("miss_policy", self.miss_policy, MissPolicy)
        _check("draft_weights", self.draft_weights, DraftWeights)
        if self.outcome_rule is not None:
            _check("outcome_rule", self.outcome_rule, OutcomeRule)

    def resolved(self, *, is_calibrated: bool) -> "DraftingConfig":
        """The same with what was left to the drafter filled in, for one with or without a calibration."""
        rule = self.outcome_rule or ("calibrated" if is_calibrated else "uncalibrated")
        temperature = DECISION_TEMPERATURE if self.decision_temperature is None else self.decision_temperature
        return replace(self, outcome_rule=rule, decision_temperature=temperature)

    @property
    def needs_predictor(self) -> bool:
        """Whether target states must be predicted: for refreshes and for foresight."""
        return self.num_outcomes > 0 or self.refine.num_refreshes > 0

    @property
    def fallback(self) -> RefineConfig:
        """Refinement of the block that is drafted on a miss."""
        if self.miss_policy == "refined_fallback":
            return self.refine
        return replace(self.refine, num_passes=0, num_refreshes=0)


# The defaults without foresight: for one device, where drafting ahead has nothing to hide behind.
AT_CRITICAL_PATH = DraftingConfig(num_outcomes=0)
# One pass on the critical path: what a parallel draft is without JetSpec++.
PLAIN_PASS = DraftingConfig(refine=RefineConfig(num_passes=0, num_refreshes=0), num_outcomes=0).resolved(
    is_calibrated=False
)
# Trained drafts on CPU, where rows and passes cost time: what `jetspec bench` recommended for SmolLM2-135M on two cores
# (`docs/results.md`).
ON_CPU = replace(PLAIN_PASS, num_drafts=3)
