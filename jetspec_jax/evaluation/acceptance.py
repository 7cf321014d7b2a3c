"""Acceptance length of a drafter over many prompts, by real decoding in large batches (handbook 8.3).

The driver and programs are those of generation, critical path or fused; only text is not made of the ids. Nothing here
measures time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jetspec_jax.decoding.drivers import Driver
from jetspec_jax.decoding.stats import DecodeStats
from jetspec_jax.decoding.walk import TextWalk
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.evaluation.repetition import before_onset, loop_onset
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams


@dataclass(frozen=True)
class Answer:
    """One decoded request.

    Attributes:
        token_ids: its text, the end-of-text id included.
        stats: its rounds.
    """

    token_ids: tuple[int, ...]
    stats: DecodeStats


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """How much a drafter's proposals were worth, over all rounds of all requests.

    Attributes:
        num_requests: requests.
        num_rounds: verification rounds that delivered text.
        num_committed: tokens they delivered; the first token of a request comes from prefill and is not among them.
        accepted_at: how often the draft at each offset was accepted and delivered.
        hit_rate: share of blocks from the outcome cache; None without one. This and the next three leave out the first
            round of each request.
        expected_hit_rate: mean probability mass of the prepared outcomes, the hit rate they promised.
        tau_on_hit, tau_on_miss: tokens per round after a hit and after a miss.
        num_loops: texts that end in a repetition loop.
        tau_without_loops: τ with these texts cut at the loop's onset.
        answers: the requests in the order of the prompts; None unless kept.
    """

    num_requests: int
    num_rounds: int
    num_committed: int
    accepted_at: tuple[int, ...]
    hit_rate: float | None
    expected_hit_rate: float | None
    tau_on_hit: float | None
    tau_on_miss: float | None
    num_loops: int
    tau_without_loops: float | None
    answers: tuple[Answer, ...] | None = None

    @property
    def tau(self) -> float | None:
        """All committed tokens over all rounds (no mean of means); None without a round."""
        return _ratio(self.num_committed, self.num_rounds)

    @property
    def acceptance_at(self) -> list[float | None]:
        """For each offset the share of drafts accepted among those whose predecessors were; None if none was."""
        reached = (self.num_rounds, *self.accepted_at)
        return [_ratio(accepted, before) for accepted, before in zip(self.accepted_at, reached, strict=False)]

    @classmethod
    def of_answers(cls, answers: Sequence[Answer], *, keep: bool = False) -> "Acceptance":
        """Sums over requests.

        Args:
            answers: at least one.
            keep: hand them on as `answers`.
        """
        if not answers:
            raise ValueError("no answers, no acceptance")
        stats = [answer.stats for answer in answers]
        # The first round of a request has no entry in `hits`.
        after_first = [count for s in stats for count in s.committed[1 : 1 + len(s.hits)]]
        counts, hits = np.array(after_first), np.array([hit for s in stats for hit in s.hits], bool)
        onsets = [loop_onset(answer.token_ids) for answer in answers]
        cut = [
            before_onset(answer.stats.committed, answer.token_ids, onset=onset)
            for answer, onset in zip(answers, onsets, strict=True)
        ]
        return cls(
            num_requests=len(answers),
            num_rounds=sum(s.rounds for s in stats),
            num_committed=sum(sum(s.committed) for s in stats),
            accepted_at=tuple(int(count) for count in np.sum([s.accepted_at for s in stats], axis=0)),
            hit_rate=_mean(hits),
            expected_hit_rate=_mean([mass for s in stats for mass in s.cache_mass]),
            tau_on_hit=_mean(counts[hits]),
            tau_on_miss=_mean(counts[~hits]),
            num_loops=sum(onset is not None for onset in onsets),
            tau_without_loops=_ratio(sum(c.tokens for c in cut), sum(c.rounds for c in cut)),
            answers=tuple(answers) if keep else None,
        )


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def _mean(values: Any) -> float | None:
    return float(np.mean(values)) if len(values) else None


def measure_acceptance(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    batch_size: int = 64,
    drafter: JetSpecPP | None = None,
    keep_answers: bool = False,
) -> Acceptance:
    """Decodes the prompts and counts rounds.

    Programs are compiled once per model: for new weights of the same shapes keep the model and give
    `model.programs.set_draft_leaves(drafter.place(model.device))` before the call.

    Args:
        model: target and drafter; its `max_batch` and tokenizer play no part.
        prompts: token ids, none empty.
        max_new_tokens: limit of each answer, cut further by the model's `max_len`.
        temperature, seed: sampling; prompt i draws with `seed + i`, whatever batch it falls in. Greedy rounds depend on
            the seed too, by the input noise of drafts.
        batch_size: requests decoded together; see `answer_prompts`.
        drafter: measured instead of the model's own, in programs of its own.
        keep_answers: keep token ids and per-request statistics.
    """
    model = model if drafter is None else model.with_drafter(drafter)
    answers = answer_prompts(
        model,
        prompts,
        seeds=range(seed, seed + len(prompts)),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        batch_size=batch_size,
    )
    return Acceptance.of_answers(answers, keep=keep_answers)


def answer_prompts(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    seeds: Sequence[int],
    max_new_tokens: int,
    temperature: float = 0.0,
    batch_size: int = 64,
) -> list[Answer]:
    """Decodes the prompts in groups of similar length, each of exactly `batch_size` rows.

    The group that is not full is filled with rows that never start, so that all groups of one bucket of lengths share
    their executables; a row that has ended commits nothing and is counted nowhere.

    Args:
        model, prompts, max_new_tokens, temperature: as for `measure_acceptance`.
        seeds: of draws and input noise, one per prompt.
        batch_size: rows of a group.

    Returns:
        The answers in the order of the prompts.

    Raises:
        ValueError: nothing to decode, a prompt that is empty or fills the context, or unusable logits of the target.
    """
    _check(model, prompts, max_new_tokens, batch_size)
    params = [
        SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        for _, seed in zip(prompts, seeds, strict=True)
    ]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    answers: dict[int, Answer] = {}
    for first in range(0, len(order), batch_size):
        group = order[first : first + batch_size]
        fill = [group[0]] * (batch_size - len(group))
        # No detokenizer: nobody reads the text, and there are no stop strings.
        walks = [
            TextWalk(
                params[index],
                model.eos_token_ids,
                min(max_new_tokens, model.max_len - len(prompts[index])),
                None,
                len(prompts[index]),
            )
            for index in (*group, *fill)
        ]
        for walk in walks[len(group) :]:
            walk.cancel()
        stats = [DecodeStats(model.drafter.num_drafts) for _ in walks]
        for _ in Driver(model.programs).decode([prompts[index] for index in (*group, *fill)], walks, stats):
            pass
        for index, walk, counted in zip(group, walks, stats, strict=False):
            if walk.error is not None:
                raise ValueError(f"prompt {index}: {walk.error}")
            answers[index] = Answer(tuple(walk.token_ids), counted)
    return [answers[index] for index in range(len(prompts))]


def _check(model: LanguageModel, prompts: Sequence[Sequence[int]], max_new_tokens: int, batch_size: int) -> None:
    if not prompts or max_new_tokens < 1 or batch_size < 1:
        raise ValueError(f"nothing to decode: {len(prompts)} prompts, {max_new_tokens=}, {batch_size=}")
    for index, prompt in enumerate(prompts):
        if not 0 < len(prompt) < model.max_len:
            raise ValueError(f"prompt {index} has {len(prompt)} tokens, need 1..{model.max_len - 1}")
