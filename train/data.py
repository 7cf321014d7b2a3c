"""Training data: the target answers prompts, part of them greedily, part sampled."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax

from jetspec_jax.evaluation.record import environment
from jetspec_jax.models.target import Target
from train.answers import AnswerWriter, Record
from train.engine import AnswerEngine, EngineConfig
from train.prompt_set import PromptSet

NOTE_EVERY = 10.0  # seconds


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """How answers are made.

    Attributes:
        engine: sizes.
        temperatures: prompt i is answered at temperature i modulo their number.
        seed: prompt i is answered with seed `seed + i`.
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    seed: int = 0

    def __post_init__(self):
        temperatures = self.temperatures
        if not isinstance(temperatures, tuple) or not temperatures or not all(0 <= t < 10 for t in temperatures):
            raise ValueError(f"temperatures={temperatures!r} must be a list of numbers of at least 0")


@dataclass(frozen=True)
class DataReport:
    """What was made by this call, and how fast.

    Attributes:
        num_records, num_tokens: answers and their tokens.
        seconds: of answering, compilation included.
        tokens_per_second: answer tokens by `seconds`.
    """

    num_records: int
    num_tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens by all of `seconds`."""
        return self.num_tokens / self.seconds


def make_answers(
    target: Target,
    end_ids: Sequence[int],
    prompts: PromptSet,
    recipe: DataRecipe,
    folder: Path,
    *,
    target_name: str,
    device: jax.Device | None = None,
    max_seconds: float | None = None,
    note: Callable[[str], Any] = print,
) -> DataReport:
    """Answers prompts and writes them to a folder.

    Args:
        target, end_ids: the model and what ends its turn.
        prompts: prompts longer than the engine takes are refused.
        recipe: temperatures and sizes.
        folder: of the answers; those that are there stay, their prompts are not answered again.
        target_name: recorded, so that nobody trains another target's draft on these answers unknowingly.
        device: where the target runs.
        max_seconds: no prompt enters after this time.
        note: told the progress.
    """
    # What an answer depends on: the sizes of the engine do not change it, but for its length.
    lengths = {name: getattr(recipe.engine, name) for name in ("max_prompt_len", "max_new_tokens")}
    facts = {"target": target_name, "temperatures": recipe.temperatures, "seed": recipe.seed, **lengths}
    facts["prompts"] = len(prompts.token_ids)
    began = time.monotonic()
    engine = AnswerEngine(target, end_ids, recipe.engine, device)
    with AnswerWriter(
        folder,
        vocab_size=target.config.vocab_size,
        facts=facts,
        notes={"engine": asdict(recipe.engine), **environment()},
    ) as writer:
        last = began
        if writer.done:
            note(f"{len(writer.done)} answers are there already")
        options = {"temperatures": recipe.temperatures, "seed": recipe.seed, "max_seconds": max_seconds}
        options["done"] = writer.done
        for answer in engine.answers(prompts.token_ids, **options):
            prompt = prompts.token_ids[answer.index]
            writer.add(
                Record(
                    answer.index,
                    [*prompt, *answer.token_ids.tolist()],
                    len(prompt),
                    prompts.sources[answer.index],
                    recipe.temperatures[answer.index % len(recipe.temperatures)],
                    answer.is_complete,
                )
            )
            if time.monotonic() - last > NOTE_EVERY:
                last = time.monotonic()
                rate = writer.num_tokens / (last - began)
                note(f"{writer.num_records} answers, {writer.num_tokens} tokens, {rate:.0f} tokens/s")
    return DataReport(writer.num_records, writer.num_tokens, time.monotonic() - began)
