"""One training prompt: a user message and where it is from."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Prompt:
    """A user message that the target will answer.

    Attributes:
        source: for example "sharegpt" or "maths/gsm_symbolic"; what stands before "/" is the group of the counts.
        text: the message, not empty.
    """

    source: str
    text: str

    def __post_init__(self) -> None:
        if not self.source or not self.text.strip():
            raise ValueError(f"a prompt needs a source and a text, got {self!r}")


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSON-lines file, one object with `source` and `text` a line.

    Raises:
        ValueError: a line that is something else, by its number; or no line at all.
    """
    prompts = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompts.append(Prompt(row["source"], row["text"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: expected an object with source and text ({error!r})") from error
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    return prompts
