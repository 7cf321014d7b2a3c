"""Human turns of the ShareGPT conversations that are not held out for evaluation, later turns as well as first ones."""

import re
from pathlib import Path

from jetspec_jax.evaluation.sharegpt import conversations, is_english
from train.prompts.prompt import Prompt

SOURCE = "sharegpt"
# Turns that only mean something after an answer that the target will not see.
_GO_ON = re.compile(
    r"(please |pls |can you |could you |yes,? |ok,? )*"
    r"(continue|go on|keep going|proceed|more|next|elaborate|go ahead|carry on|try again|again|rewrite|expand|"
    r"thanks?( you)?|hello|hi|hey|yes|no|ok(ay)?|test(ing)?)\b.{0,24}",
    re.DOTALL,
)


def sharegpt_prompts(path: Path, *, min_chars: int, max_chars: int) -> list[Prompt]:
    """Every usable human turn of the training conversations in file order, each text once.

    Args:
        path: the ShareGPT file (it may be torn).
        min_chars: shorter turns are left out.
        max_chars: longer turns are left out.
    """
    texts: dict[str, str] = {}
    for conversation in conversations(path):
        if conversation.is_held_out:
            continue
        for text in conversation.human_turns:
            if min_chars <= len(text) <= max_chars and not is_junk(text) and is_english(text):
                texts.setdefault(" ".join(text.lower().split()), text)
    return [Prompt(SOURCE, text) for text in texts.values()]


def is_junk(text: str) -> bool:
    """Whether a turn asks for nothing by itself: "continue", "thanks", only digits or punctuation."""
    lowered = text.strip().lower()
    return _GO_ON.fullmatch(lowered) is not None or sum(map(str.isalpha, lowered)) < 0.4 * len(lowered)
