"""Keeps evaluation prompts out of training: equal texts, shared runs of 13 words, functions of the same name.

Generated word problems need their own rule: training and evaluation use the same sentence templates with different
names and numbers (seeds), so a shared run of words says nothing there; equal texts are dropped.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from jetspec_jax.evaluation.benchmarks import Benchmark
from jetspec_jax.evaluation.public_schema import CODE_PROMPT, MATHS_SUFFIX
from train.prompts.prompt import Prompt

RUN_WORDS = 13
_DEFINED = re.compile(r"^def (\w+)\(", re.MULTILINE)
GENERATED = ("gsm-symbolic", "maths/gsm_symbolic")  # evaluation set and training source made from the same templates
# Instructions around a prompt are no sign that two prompts are the same.
INSTRUCTIONS = (
    MATHS_SUFFIX.strip(),
    "Give the result as your final answer. Do not include units.",
    CODE_PROMPT.split("{}")[0].split("\n")[0],
)


def normalised_words(text: str) -> list[str]:
    """Lower-case words and numbers of a prompt, without the instructions that wrap it."""
    for instruction in INSTRUCTIONS:
        text = text.replace(instruction, " ")
    return re.findall(r"[a-z0-9]+", text.lower())


def runs(words: Sequence[str]) -> set[tuple[str, ...]]:
    """Every run of `RUN_WORDS` words that holds at least one word of letters (1, 2, 3, ... is in many examples)."""
    found = (tuple(words[start : start + RUN_WORDS]) for start in range(len(words) - RUN_WORDS + 1))
    return {run for run in found if any(map(str.isalpha, run))}


def drop_evaluation_prompts(
    prompts: Iterable[Prompt], benchmarks: Iterable[Benchmark]
) -> tuple[list[Prompt], Counter[str]]:
    """Training prompts that are not, and do not contain part of, an evaluation prompt; each text once.

    Returns:
        What is kept, in order, and how many were dropped by reason: "repeated", "equal to <set>", "like <set>",
        "function of <set>".
    """
    equal: dict[tuple[str, ...], str] = {}
    like: dict[tuple[str, ...], str] = {}
    asked: dict[str, str] = {}  # name of a function to write -> set
    for benchmark in benchmarks:
        for text in benchmark.prompts:
            words = normalised_words(text)
            equal[tuple(words)] = benchmark.name
            like.update(dict.fromkeys(runs(words), benchmark.name))
            asked.update(dict.fromkeys(_DEFINED.findall(text)[-1:], benchmark.name))
    kept, dropped, seen = [], Counter(), set()
    for prompt in prompts:
        words = tuple(normalised_words(prompt.text))
        reason = None
        if prompt.text in seen:
            reason = "repeated"
        elif words in equal:
            reason = f"equal to {equal[words]}"
        elif names := asked.keys() & _DEFINED.findall(prompt.text):
            reason = f"function of {asked[sorted(names)[0]]}"
        else:
            shared = {like[run] for run in runs(words) if run in like}
            if prompt.source == GENERATED[1]:
                shared.discard(GENERATED[0])
            if shared:
                reason = f"like {sorted(shared)[0]}"
        if reason is None:
            seen.add(prompt.text)
            kept.append(prompt)
        else:
            dropped[reason] += 1
    return kept, dropped
