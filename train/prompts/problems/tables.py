"""Problems on dictionaries, pairs and matrices."""

# ruff: noqa: E501 (tables: one row a line)

from collections.abc import Callable
from typing import Any

from train.prompts.problems.pieces import (
    INTEGER_CHANGES,
    INTEGER_CONDITIONS,
    INTEGER_SUMMARIES,
    WORD_CONDITIONS,
    WORD_NUMBERS,
)
from train.prompts.problems.problem import Param, Problem, Rng
from train.prompts.problems.samples import KEYS, numbers_param, words_param

MAPPINGS = ("d", "prices", "stock", "scores", "ages", "mapping", "inventory", "counts", "table")
MATRICES = ("matrix", "grid", "rows", "table", "board")


def mapping(rng: Rng) -> Problem:
    """A dictionary from strings to integers: select, summarise, invert, order."""
    param = Param(rng.choice(MAPPINGS), "Dict[str, int]", _mapping)
    of_key = rng.random() < 0.35
    condition = rng.choice(WORD_CONDITIONS if of_key else INTEGER_CONDITIONS)(rng)
    part = "keys" if of_key else "values"
    forms: tuple[tuple[str, str, str, Callable[[dict[str, int], dict[str, int]], Any]], ...] = (
        ("return a new dictionary with only the entries whose {part} {phrase}", "entries_with_{}", "Dict[str, int]", lambda hit, d: hit),
        ("remove the entries whose {part} {phrase} and return the rest as a new dictionary", "drop_entries_with_{}", "Dict[str, int]", lambda hit, d: {k: v for k, v in d.items() if k not in hit}),
        ("return the keys of the entries whose {part} {phrase}, sorted alphabetically", "keys_with_{}", "List[str]", lambda hit, d: sorted(hit)),
        ("return the sum of the values of the entries whose {part} {phrase}", "total_with_{}", "int", lambda hit, d: sum(hit.values())),
        ("return the number of entries whose {part} {phrase}", "count_with_{}", "int", lambda hit, d: len(hit)),
        ("among the entries whose {part} {phrase}, return the key with the largest value (alphabetically first on ties), or None if there is no entry", "best_key_with_{}", "Optional[str]", lambda hit, d: min(hit, key=lambda k: (-hit[k], k), default=None)),
    )  # fmt: skip
    task, name, returns, answer = rng.choice(forms)

    def solve(d: dict[str, int], *rest: Any) -> Any:
        return answer({k: v for k, v in d.items() if condition.apply(k if of_key else v, *rest)}, d)

    return Problem(
        name=name.format(condition.name + ("_key" if of_key else "_value")),
        params=(param, *condition.params),
        returns=returns,
        given=f"a dictionary `{param.name}` from strings to integers",
        task=task.format(part=part, phrase=condition.phrase),
        solve=solve,
    )


def group(rng: Rng) -> Problem:
    """A dictionary from a key of the elements to their list, number, sum or extreme."""
    is_words = rng.random() < 0.5
    param = words_param(rng) if is_words else numbers_param(rng)
    key = rng.choice(WORD_NUMBERS if is_words else INTEGER_CHANGES)(rng)
    element, noun = ("str", "words") if is_words else ("int", "numbers")
    forms: tuple[tuple[str, str, str, Callable[[list], Any]], ...] = (
        ("the list of the {noun} with it, in order", "group_by_{}", f"List[{element}]", list),
        ("the number of {noun} with it", "count_by_{}", "int", len),
        ("the first of the {noun} with it", "first_by_{}", element, lambda v: v[0]),
        ("the largest of the {noun} with it" if not is_words else "the alphabetically last of the {noun} with it", "largest_by_{}", element, max),
        ("the sorted list of the distinct {noun} with it", "distinct_by_{}", f"List[{element}]", lambda v: sorted(set(v))),
    )  # fmt: skip
    phrase, name, returns, answer = rng.choice(forms)

    def solve(values: list, *rest: Any) -> dict:
        groups: dict[int, list] = {}
        for value in values:
            groups.setdefault(key.apply(value, *rest), []).append(value)
        return {each: answer(members) for each, members in groups.items()}

    return Problem(
        name=name.format(key.name),
        params=(param, *key.params),
        returns=f"Dict[int, {returns}]",
        given=f"a list of {'strings' if is_words else 'integers'} `{param.name}`",
        task=f"return a dictionary that maps {key.phrase} of each element to {phrase.format(noun=noun)}",
        solve=solve,
    )


def pairs(rng: Rng) -> Problem:
    """A list of (name, number) tuples."""
    param = Param(rng.choice(("pairs", "records", "entries", "results", "items")), "List[Tuple[str, int]]", _pairs)
    condition = rng.choice(INTEGER_CONDITIONS)(rng)
    forms: tuple[tuple[str, str, str, Callable[[list[tuple[str, int]]], Any]], ...] = (
        ("return the names whose numbers {phrase}, in order", "names_with_{}", "List[str]", lambda v: [name for name, _ in v]),
        ("for each name, add up its numbers that {phrase} and return the sums as a dictionary", "totals_of_{}", "Dict[str, int]", lambda v: _totals(v)),
        ("return the tuples whose numbers {phrase}, sorted by number and then by name", "sorted_{}_pairs", "List[Tuple[str, int]]", lambda v: sorted(v, key=lambda pair: (pair[1], pair[0]))),
        ("swap name and number in the tuples whose numbers {phrase}, and return those tuples", "swapped_{}_pairs", "List[Tuple[int, str]]", lambda v: [(number, name) for name, number in v]),
        ("return the name with the largest number among the tuples whose numbers {phrase} (the first one on ties), or None", "winner_among_{}", "Optional[str]", lambda v: max(v, key=lambda pair: pair[1], default=(None,))[0]),
    )  # fmt: skip
    task, name, returns, answer = rng.choice(forms)
    return Problem(
        name=name.format(condition.name),
        params=(param, *condition.params),
        returns=returns,
        given=f"a list `{param.name}` of tuples (name, number)",
        task=task.format(phrase=condition.phrase),
        solve=lambda values, *rest: answer([pair for pair in values if condition.apply(pair[1], *rest)]),
    )


def matrix(rng: Rng) -> Problem:
    """A matrix: rows, columns or diagonal, selected and summarised; or the matrix in another shape."""
    param = Param(rng.choice(MATRICES), "List[List[int]]", _square if rng.random() < 0.4 else _matrix)
    given = f"a matrix `{param.name}` as a list of rows of equal length"
    if rng.random() < 0.3:
        task, name, returns, solve = rng.choice(MATRIX_TASKS)
        return Problem(name=name, params=(param,), returns=returns, given=given, task=task, solve=solve)
    make, _ = rng.choice(INTEGER_SUMMARIES[:5] + INTEGER_SUMMARIES[5:7] + INTEGER_SUMMARIES[10:11])
    summary, condition = make(rng), rng.choice(INTEGER_CONDITIONS)(rng)
    part, lines = rng.choice(
        (
            ("row", lambda m: m),
            ("column", lambda m: [list(column) for column in zip(*m, strict=True)]),
        )
    )
    form = rng.randrange(3)
    if form == 0:
        task = f"return a list with {summary.phrase} of the elements of each {part}"
        name, params = f"{part}_{summary.name}", (param,)

        def solve(m: list[list[int]], *rest: Any) -> Any:
            return [summary.apply(line) for line in lines(m)]

    elif form == 1:
        task = f"for each {part}, count the elements that {condition.phrase}, and return the counts as a list"
        name, params = f"{condition.name}_per_{part}", (param, *condition.params)

        def solve(m: list[list[int]], *rest: Any) -> Any:
            return [sum(condition.apply(value, *rest) for value in line) for line in lines(m)]

    else:
        task = f"return the indices of the {part}s in which all elements {condition.phrase}"
        name, params = f"{part}s_all_{condition.name}", (param, *condition.params)

        def solve(m: list[list[int]], *rest: Any) -> Any:
            return [i for i, line in enumerate(lines(m)) if all(condition.apply(value, *rest) for value in line)]

    returns = "List[float]" if summary.name == "mean" and form == 0 else "List[int]"
    return Problem(name=name, params=params, returns=returns, given=given, task=task, solve=solve)


MATRIX_TASKS: tuple[tuple[str, str, str, Callable[[list[list[int]]], Any]], ...] = (
    ("return its transpose", "transpose", "List[List[int]]", lambda m: [list(c) for c in zip(*m, strict=True)]),
    ("rotate it by 90 degrees clockwise", "rotate_clockwise", "List[List[int]]", lambda m: [list(c)[::-1] for c in zip(*m, strict=True)]),
    ("mirror it left to right", "mirror_rows", "List[List[int]]", lambda m: [row[::-1] for row in m]),
    ("return all elements in one list, reading every second row from right to left", "snake_order", "List[int]", lambda m: [x for i, row in enumerate(m) for x in (row if i % 2 == 0 else row[::-1])]),
    ("return the sum of the elements on its border", "border_sum", "int", lambda m: sum(x for i, row in enumerate(m) for j, x in enumerate(row) if i in (0, len(m) - 1) or j in (0, len(row) - 1))),
    ("return the position (row, column) of the largest element, the first one in reading order on ties", "position_of_largest", "Tuple[int, int]", lambda m: max(((i, j) for i, row in enumerate(m) for j in range(len(row))), key=lambda p: (m[p[0]][p[1]], -p[0], -p[1]))),
    ("return the rows sorted by their sum, smaller sums first", "rows_by_sum", "List[List[int]]", lambda m: sorted(m, key=sum)),
    ("return the elements that are the largest of their row and of their column", "row_and_column_maxima", "List[int]", lambda m: [x for row in m for j, x in enumerate(row) if x == max(row) and x == max(other[j] for other in m)]),
)  # fmt: skip


def _mapping(draw: Rng) -> dict[str, int]:
    return {key: draw.randint(-5, 30) for key in draw.sample(KEYS, draw.randint(0, 4))}


def _pairs(draw: Rng) -> list[tuple[str, int]]:
    names = draw.sample(("Ann", "Bob", "Cy", "Dora", "Eve", "Finn"), 3)
    return [(draw.choice(names), draw.randint(-3, 20)) for _ in range(draw.randint(1, 4))]


def _totals(values: list[tuple[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name, number in values:
        totals[name] = totals.get(name, 0) + number
    return totals


def _matrix(draw: Rng) -> list[list[int]]:
    width = draw.randint(1, 4)
    return [[draw.randint(-3, 12) for _ in range(width)] for _ in range(draw.randint(1, 3))]


def _square(draw: Rng) -> list[list[int]]:
    size = draw.randint(2, 3)
    return [[draw.randint(0, 9) for _ in range(size)] for _ in range(size)]
