"""Where everything of a run lies, and which of its records train and which are held out."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from train.answers import FACTS, AnswerSource


@dataclass(frozen=True)
class Folders:
    """The parts of a run's folder."""

    root: Path

    @property
    def prompts(self) -> Path:
        """Tokenised prompts."""
        return self.root / "prompts.npz"

    @property
    def answers(self) -> Path:
        """The target's answers."""
        return self.root / "answers"

    @property
    def drafter(self) -> Path:
        """The export."""
        return self.root / "drafter"

    def answer_facts(self, target_name: str) -> dict[str, Any]:
        """What is recorded of the answers.

        Raises:
            ValueError: there are none, they were not finished, or another target gave them.
        """
        path = self.answers / FACTS
        record = json.loads(path.read_text()) if path.exists() else {"is_finished": False}
        if not record["is_finished"]:
            raise ValueError(f"{self.answers} holds no finished answers; run `python -m train data` (again)")
        if record["facts"]["target"] != target_name:
            raise ValueError(
                f"{self.answers} holds answers of {record['facts']['target']!r}, the target is {target_name!r}"
            )
        return record["facts"] | {"num_records": record["num_records"]}

    def source(self, max_len: int) -> AnswerSource:
        """All records."""
        return AnswerSource(self.answers, max_len)


def split_records(num_records: int, held_out: int) -> tuple[Int[np.ndarray, "H"], Int[np.ndarray, "N"]]:
    """Record numbers that are held out, and the others; the same for every stage.

    Raises:
        ValueError: nothing would be left.
    """
    if held_out >= num_records:
        raise ValueError(
            f"held_out={held_out} of {num_records} records leaves nothing to train on; give more prompts or a smaller "
            "--set held_out="
        )
    order = np.random.default_rng(0).permutation(num_records)
    return order[:held_out], np.sort(order[held_out:])
