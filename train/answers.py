"""Answers on disk: token ids of prompt and answer, in parts that are complete or absent.

A folder holds `part-00000.npz`, ... and `answers.json` (which target, which temperatures, counts). A part is written
under another name and renamed, so a killed run leaves only whole parts, and a later one goes on after them. As a source
for training, record i is a padded row with the mask of its answer.
"""

import json
import os
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PART_RECORDS = 16384
FACTS = "answers.json"


@dataclass(frozen=True)
class Record:
    """One answered prompt.

    Attributes:
        index: of the prompt among all that are to be answered.
        token_ids: prompt (chat template applied), then the answer with its end-of-turn token if it was reached.
        prompt_len: tokens of the prompt.
        source: where the prompt is from.
        temperature: of the answer.
        is_complete: whether the answer reached the end of its turn.
    """

    index: int
    token_ids: Sequence[int]
    prompt_len: int
    source: str
    temperature: float
    is_complete: bool


class AnswerWriter:
    """Appends parts to a folder; use as a context manager.

    Args:
        folder: of the answers; answers that are there must have been made under the same `facts`.
        vocab_size: of the target.
        facts: what the answers depend on, JSON types.
        notes: what else is to be recorded.

    Attributes:
        done: indices of the prompts that are answered already.

    Raises:
        ValueError: the folder holds answers made otherwise.
    """

    def __init__(self, folder: Path, *, vocab_size: int, facts: dict[str, Any], notes: dict[str, Any] | None = None):
        self.folder, self.notes = Path(folder), notes or {}
        self.facts = json.loads(json.dumps(facts))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_same()
        parts = sorted(self.folder.glob("part-*.npz"))
        indices = [np.load(path)["index"] for path in parts]
        self.done = frozenset(np.concatenate(indices).tolist()) if parts else frozenset()
        self._write_facts(is_finished=False)
        self._dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        self._pending: list[Record] = []
        self.num_records = self.num_tokens = 0
        self._num_parts = len(parts)

    def add(self, record: Record) -> None:
        """Takes a record; it is on disk once its part is full or the writer is closed."""
        self._pending.append(record)
        self.num_records += 1
        self.num_tokens += len(record.token_ids) - record.prompt_len
        if len(self._pending) == PART_RECORDS:
            self._flush()

    def __enter__(self) -> "AnswerWriter":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._flush()
        if kind is not None:  # what there is stays, but nobody shall take it for all
            return
        self._write_facts(is_finished=True)

    def _check_same(self) -> None:
        path = self.folder / FACTS
        if not path.exists():
            if list(self.folder.glob("part-*.npz")):
                raise ValueError(f"{self.folder} holds parts without {FACTS}; give another folder or remove it")
            return
        stored = json.loads(path.read_text())["facts"]
        changed = sorted(name for name in stored.keys() | self.facts.keys() if stored.get(name) != self.facts.get(name))
        if changed:
            raise ValueError(
                f"{self.folder} holds answers made otherwise ({', '.join(changed)}); give another folder or remove it"
            )

    def _write_facts(self, *, is_finished: bool) -> None:
        record = {"facts": self.facts, "is_finished": is_finished, **self.notes}
        if is_finished:
            record["num_records"] = len(self.done) + self.num_records
        _replace_with(self.folder / FACTS, lambda file: file.write(json.dumps(record, indent=1).encode()))

    def _flush(self) -> None:
        if not self._pending:
            return
        records, self._pending = self._pending, []
        lengths = np.array([len(record.token_ids) for record in records], np.int64)
        sources = sorted({record.source for record in records})
        arrays = {
            "index": np.array([record.index for record in records], np.int64),
            "tokens": np.concatenate([np.asarray(record.token_ids, self._dtype) for record in records]),
            "offsets": np.concatenate([[0], np.cumsum(lengths)]),
            "prompt_len": np.array([record.prompt_len for record in records], np.int32),
            "source": np.array([sources.index(record.source) for record in records], np.int32),
            "source_names": np.array(sources),
            "temperature": np.array([record.temperature for record in records], np.float32),
            "is_complete": np.array([record.is_complete for record in records]),
        }
        path = self.folder / f"part-{self._num_parts:05}.npz"
        _replace_with(path, lambda file: np.savez_compressed(file, **arrays))
        self._num_parts += 1


def _replace_with(path: Path, write: Any) -> None:
    """Writes beside the final name, then renames: the name never holds half a file."""
    temporary = path.with_name(path.name + ".partial")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class AnswerSource:
    """Records as padded training rows, by index.

    Args:
        folder: what `AnswerWriter` wrote.
        max_len: tokens per row; longer records lose their end (the answer is cut, its mask with it).

    Raises:
        ValueError: no part in the folder.
    """

    def __init__(self, folder: Path, max_len: int):
        paths = sorted(Path(folder).glob("part-*.npz"))
        if not paths:
            raise ValueError(f"{folder} holds no part-*.npz; run `python -m train data` first")
        self.max_len = max_len
        parts = [dict(np.load(path)) for path in paths]
        self._tokens = np.concatenate([part["tokens"] for part in parts])
        starts = np.cumsum([0] + [len(part["tokens"]) for part in parts])
        pairs = [np.stack([p["offsets"][:-1], p["offsets"][1:]]) + s for p, s in zip(parts, starts, strict=False)]
        self._spans = np.concatenate(pairs, axis=1)
        self.prompt_lens = np.concatenate([part["prompt_len"] for part in parts])
        self.sources = np.concatenate([part["source_names"][part["source"]] for part in parts])
        self.temperatures = np.concatenate([part["temperature"] for part in parts])
        self.is_complete = np.concatenate([part["is_complete"] for part in parts])
        self._chosen = np.arange(self._spans.shape[1])

    def only(self, numbers: Iterable[int]) -> "AnswerSource":
        """The same records, these numbers of them; nothing is read again."""
        source = copy(self)
        source._chosen = np.asarray(list(numbers))
        return source

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Row `index`: tokens [S], answer_mask [S] (True at answer tokens), length, id (number of the record)."""
        number = int(self._chosen[index])
        token_ids = self.token_ids(number)[: self.max_len]
        length, prompt_len = len(token_ids), int(self.prompt_lens[number])
        tokens, mask = np.zeros(self.max_len, np.int32), np.zeros(self.max_len, bool)
        tokens[:length] = token_ids
        mask[prompt_len:length] = True
        return {"tokens": tokens, "answer_mask": mask, "length": length, "id": number}

    def token_ids(self, number: int) -> np.ndarray:
        """Prompt and answer of a record, uncut."""
        start, stop = self._spans[:, number]
        return self._tokens[start:stop].astype(np.int32)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each record, uncut."""
        return self._spans[1] - self._spans[0]
