"""Generated programming problems: small self-contained functions on numbers, lists, strings, dictionaries, matrices.

Each problem is put together from parts (which values, which condition, which change, which summary, how it is told),
and the results in its examples are computed by the parts themselves. None is taken from a published set.
"""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from train.prompts.problems import integers, lists, pairs, rendering, stories, tables, texts
from train.prompts.problems.problem import Problem, Rng
from train.prompts.prompt import Prompt

SOURCE = "functions"
BUILDERS: dict[Callable[[Rng], Problem], int] = {
    lists.select: 6,
    lists.change_all: 3,
    lists.change_some: 6,
    lists.summarise: 10,
    lists.search: 9,
    lists.sort: 5,
    lists.rearrange: 8,
    pairs.combine: 5,
    texts.characters: 8,
    texts.sentence_words: 8,
    texts.steps: 6,
    texts.properties: 4,
    texts.parse_numbers: 2,
    texts.parse_pairs: 2,
    integers.count_up_to: 6,
    integers.nth: 3,
    integers.parts_of_number: 3,
    integers.fact: 4,
    integers.recurrence: 4,
    integers.changed_number: 3,
    tables.mapping: 5,
    tables.group: 4,
    tables.pairs: 3,
    tables.matrix: 5,
    stories.process: 4,
    stories.validity: 4,
    stories.undo: 2,
    stories.formula: 2,
}


def function_prompts(num: int, seed: int, *, max_chars: int) -> list[Prompt]:
    """`num` distinct generated problems, none longer than `max_chars`."""
    if num < 0 or max_chars < 200:
        raise ValueError(f"num must not be negative and max_chars at least 200, got {num} and {max_chars}")
    texts_seen: dict[str, None] = {}
    for text in _endless(random.Random(seed)):
        if len(texts_seen) == num:
            break
        if len(text) <= max_chars:
            texts_seen[text] = None
    return [Prompt(SOURCE, text) for text in texts_seen]


def tidy(name: str) -> str:
    """A function name without what joining its parts left: "with_with_2_digits", "with__vowels"."""
    name = re.sub(r"_+", "_", name).strip("_")
    return re.sub(r"(of|with)_(with)(out)?_", r"\2\3_", name)


def _endless(rng: Rng) -> Iterator[str]:
    builders, weights = list(BUILDERS), list(BUILDERS.values())
    while True:
        (build,) = rng.choices(builders, weights)
        try:
            problem = build(rng)
            names = [param.name for param in problem.params]
            if len(set(names)) < len(names):
                continue  # two pieces want an argument of the same name
            yield rendering.render(replace(problem, name=tidy(problem.name)), rng)
        except ValueError:
            continue  # the parts do not fit together
