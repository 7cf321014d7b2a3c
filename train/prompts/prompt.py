"""One training prompt: a user message and where it is from."""

from dataclasses import dataclass


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
