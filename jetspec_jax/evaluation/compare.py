"""Speculative against plain decoding on the user's own prompts, in one run."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jetspec_jax.decoding.foresight_programs import ForesightPrograms
from jetspec_jax.evaluation.phases import PhaseTimes, measure_phases
from jetspec_jax.evaluation.repetition import before_onset, loop_onset
from jetspec_jax.evaluation.timeline import Timeline
from jetspec_jax.evaluation.timeline_recorder import record_timeline
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.outputs import GenerationOutput
from jetspec_jax.sampling_params import SamplingParams


@dataclass
class Run:
    """All prompts decoded one at a time with one drafter.

    Attributes:
        drafter: its name.
        num_drafts: γ.
        outputs: one per prompt.
        phases: times of the phases of a round, None for plain decoding.
        timeline: the first prompt once more, recorded; None unless blocks are drafted ahead.
    """

    drafter: str
    num_drafts: int
    outputs: list[GenerationOutput]
    phases: PhaseTimes | None = None
    timeline: Timeline | None = None

    @property
    def num_tokens(self) -> int:
        """Generated tokens."""
        return sum(output.usage.completion_tokens for output in self.outputs)

    @property
    def rounds(self) -> int:
        """Verification rounds."""
        return sum(output.stats.rounds for output in self.outputs)

    @property
    def tau(self) -> float | None:
        """All committed tokens over all rounds (not a mean of means)."""
        committed = sum(sum(output.stats.committed) for output in self.outputs)
        return committed / self.rounds if self.rounds else None

    @property
    def tau_without_loops(self) -> float | None:
        """`tau` with looping texts cut at the loop's onset."""
        counts = [before_onset(output.stats.committed, output.token_ids) for output in self.outputs]
        rounds = sum(count.rounds for count in counts)
        return sum(count.tokens for count in counts) / rounds if rounds else None

    @property
    def decode_ms(self) -> float:
        """Decoding time without prefill and compilation."""
        return sum(output.stats.decode_ms for output in self.outputs)

    @property
    def tokens_per_s(self) -> float:
        """Decoded tokens per second, first tokens left out as they come from prefill."""
        committed = sum(sum(output.stats.committed) for output in self.outputs)
        return 1e3 * committed / self.decode_ms if self.decode_ms else 0.0

    @property
    def round_ms(self) -> float | None:
        """Mean time of a round in the real loop."""
        return self.decode_ms / self.rounds if self.rounds else None

    @property
    def hit_rate(self) -> float | None:
        """Share of all rounds but each text's first whose block came from the outcome cache; None without one."""
        hits = [hit for output in self.outputs for hit in output.stats.hits]
        return sum(hits) / len(hits) if hits else None

    @property
    def exposed_draft_ms(self) -> float | None:
        """Drafting a round that the verification did not hide; None for plain decoding.

        Pipelined: the recorded round less a verification measured alone.
        """
        if self.timeline is not None and self.timeline.named("verify") and self.timeline.round_ms is not None:
            return max(0.0, self.timeline.round_ms - self.phases.verify_ms)
        return self.phases and self.phases.draft_ms  # one program a round hides nothing

    @property
    def break_even_tau(self) -> float | None:
        """Committed tokens per round from which speculation pays, with what the verification hides left out."""
        return self.phases and (self.phases.verify_ms + self.exposed_draft_ms) / self.phases.ar_ms

    @property
    def num_loops(self) -> int:
        """Texts that end in a repetition loop."""
        return sum(loop_onset(output.token_ids) is not None for output in self.outputs)


@dataclass
class Comparison:
    """Plain decoding and one or more speculative runs of the same prompts.

    Attributes:
        baseline: plain decoding.
        runs: speculative runs.
        same_text: for each run, whether every text equals the baseline's.
    """

    baseline: Run
    runs: list[Run]
    same_text: list[bool] = field(default_factory=list)

    def speedup(self, run: Run) -> float:
        """Tokens per second relative to plain decoding."""
        return run.tokens_per_s / self.baseline.tokens_per_s if self.baseline.tokens_per_s else 0.0

    def speedups(self, run: Run) -> list[float | None]:
        """The same for each prompt; None where the text has one token, which comes from prefill."""
        pairs = zip(run.outputs, self.baseline.outputs, strict=True)
        speeds = [(output.stats.tokens_per_s, plain.stats.tokens_per_s) for output, plain in pairs]
        return [speed / plain if speed and plain else None for speed, plain in speeds]

    @property
    def best(self) -> Run:
        """The fastest way to decode these prompts, plain decoding included."""
        return max([self.baseline, *self.runs], key=lambda run: run.tokens_per_s)

    @property
    def fastest_speculative(self) -> Run:
        """The fastest of the speculative runs."""
        return max(self.runs, key=lambda run: run.tokens_per_s)

    @property
    def verdict(self) -> str:
        """One plain sentence."""
        if not self.baseline.rounds:
            return "Too short to compare: the texts have one token, and it comes from prefill."
        best = self.best
        if best is self.baseline:
            fastest = self.fastest_speculative
            return (
                f"Speculation loses here: at best {self.speedup(fastest):.2f} x plain decoding "
                f"({fastest.drafter}, {fastest.num_drafts} drafts). Recommended: plain decoding (num_drafts=0)."
            )
        speedups = [speedup for speedup in self.speedups(best) if speedup is not None]
        spread = f" ({min(speedups):.2f} to {max(speedups):.2f} by prompt)" if len(speedups) > 1 else ""
        return (
            f"Speculation wins: {self.speedup(best):.2f} x plain decoding{spread}. "
            f"Recommended: {best.drafter} with num_drafts={best.num_drafts} (blocks of {best.num_drafts + 1})."
        )

    def to_dict(self) -> dict[str, Any]:
        """Numbers of all runs, for JSON."""
        rows = []
        for run, same in zip([self.baseline, *self.runs], [True, *self.same_text], strict=True):
            phases = run.phases
            rows.append(
                {
                    "drafter": run.drafter,
                    "num_drafts": run.num_drafts,
                    "tokens": run.num_tokens,
                    "rounds": run.rounds,
                    "tau": run.tau,
                    "tau_without_loops": run.tau_without_loops,
                    "loops": run.num_loops,
                    "tokens_per_s": run.tokens_per_s,
                    "speedup": self.speedup(run),
                    "speedup_by_prompt": self.speedups(run),
                    "round_ms": run.round_ms,
                    "draft_ms": phases and phases.draft_ms,
                    "verify_ms": phases and phases.verify_ms,
                    "exposed_draft_ms": run.exposed_draft_ms,
                    "hit_rate": run.hit_rate,
                    "ar_ms": phases and phases.ar_ms,
                    "break_even_tau": run.break_even_tau,
                    "same_text_as_plain": same,
                }
            )
        best = self.best
        recommended = {"drafter": best.drafter, "num_drafts": best.num_drafts, "speedup": self.speedup(best)}
        return {"runs": rows, "recommended": recommended, "verdict": self.verdict}


def compare(
    model: LanguageModel,
    prompts: Sequence[Any],
    params: SamplingParams,
    candidates: Sequence[LanguageModel],
    *,
    passes: int = 3,
    repeats: int = 20,
) -> Comparison:
    """Decodes each prompt plainly and with each candidate, in this process.

    Args:
        model: any model over the target; decodes plainly here.
        prompts: as for `LanguageModel.generate`, decoded one at a time.
        params: a seed is needed to compare texts at temperature > 0.
        candidates: models over the same target with the drafters to try.
        passes: how often each text is decoded; see `decode_in_turns`.
        repeats: calls behind each phase time.
    """
    baseline, *runs = decode_in_turns([model.with_drafter("autoregressive"), *candidates], prompts, params, passes)
    for candidate, run in zip(candidates, runs, strict=True):
        middle = sum(len(o.prompt_token_ids) + len(o.token_ids) // 2 for o in run.outputs) // len(run.outputs)
        run.phases = measure_phases(candidate, context_len=max(middle, 1), params=params, repeats=repeats)
        if isinstance(candidate.programs, ForesightPrograms):
            run.timeline = record_timeline(candidate, prompts[0], params)
        for output in run.outputs:
            stats = output.stats
            stats.draft_ms, stats.verify_ms = run.phases.draft_ms, run.phases.verify_ms
            stats.exposed_draft_ms = run.exposed_draft_ms
    texts = [output.token_ids for output in baseline.outputs]
    same = [[output.token_ids for output in run.outputs] == texts for run in runs]
    return Comparison(baseline, runs, same)


def decode_in_turns(
    models: Sequence[LanguageModel], prompts: Sequence[Any], params: SamplingParams, passes: int
) -> list[Run]:
    """Decodes the prompts with each model, warm, the models taking turns at each prompt.

    What else the machine does then hits all models alike. Of the `passes` outputs of a prompt each run keeps the one
    whose decoding took the median time.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LowAcceptanceWarning)  # what is compared shows it
        for model in models:
            for prompt in prompts:
                model.generate(prompt, params)  # compiles
        taken: list[list[list[GenerationOutput]]] = [[[] for _ in prompts] for _ in models]
        for _ in range(passes):
            for index, prompt in enumerate(prompts):
                for model, outputs in zip(models, taken, strict=True):
                    outputs[index].append(model.generate(prompt, params))
    return [
        Run(model.drafter.name, model.drafter.num_drafts, [_median(of_prompt) for of_prompt in outputs])
        for model, outputs in zip(models, taken, strict=True)
    ]


def _median(outputs: Sequence[GenerationOutput]) -> GenerationOutput:
    return sorted(outputs, key=lambda output: output.stats.decode_ms)[len(outputs) // 2]
