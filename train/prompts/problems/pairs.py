"""Problems on two lists."""

# ruff: noqa: E501 (tables: one row a line)

from collections.abc import Callable
from typing import Any

from train.prompts.problems.pieces import INTEGER_CONDITIONS, INTEGER_SUMMARIES
from train.prompts.problems.problem import Param, Problem, Rng, split_arguments
from train.prompts.problems.samples import integers

NAMES = (("a", "b"), ("first", "second"), ("xs", "ys"), ("left", "right"), ("list1", "list2"), ("nums1", "nums2"))
# (task, name, returns, needs equal lengths, solution)
COMBINATIONS: tuple[tuple[str, str, bool, Callable[[list[int], list[int]], list[int]]], ...] = (
    ("the sums of the elements at the same position", "elementwise_sums", True, lambda a, b: [x + y for x, y in zip(a, b, strict=True)]),
    ("the products of the elements at the same position", "elementwise_products", True, lambda a, b: [x * y for x, y in zip(a, b, strict=True)]),
    ("the larger of the two elements at each position", "elementwise_maxima", True, lambda a, b: [max(x, y) for x, y in zip(a, b, strict=True)]),
    ("the absolute differences of the elements at the same position", "elementwise_distances", True, lambda a, b: [abs(x - y) for x, y in zip(a, b, strict=True)]),
    ("the distinct values that are in both lists, in decreasing order", "shared_values", False, lambda a, b: sorted(set(a) & set(b), reverse=True)),
    ("the values of the first list that are not in the second, in their order", "missing_from_second", False, lambda a, b: [x for x in a if x not in b]),
    ("the distinct values that are in exactly one of the lists, in increasing order", "in_exactly_one", False, lambda a, b: sorted(set(a) ^ set(b))),
    ("the values of both lists merged into one sorted list", "merge_sorted", False, lambda a, b: sorted(a + b)),
    ("the values taken in turns from both lists, followed by the rest of the longer one", "take_turns", False, lambda a, b: _turns(a, b)),
    ("the positions at which the lists have the same value", "equal_positions", True, lambda a, b: [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x == y]),
    ("the values at which both lists agree, position by position", "agreeing_values", True, lambda a, b: [x for x, y in zip(a, b, strict=True) if x == y]),
    ("the first list followed by the second one reversed", "append_reversed", False, lambda a, b: a + b[::-1]),
)  # fmt: skip


def combine(rng: Rng) -> Problem:
    """Two lists become one, which is returned, or filtered, or summarised."""
    names = rng.choice(NAMES)
    phrase, name, equal, make = rng.choice(COMBINATIONS)
    size = rng.randrange(2, 6)

    def sample(draw: Rng) -> list[int]:
        low, high = rng_range
        return [draw.randint(low, high) for _ in range(size)] if equal else integers(draw)

    rng_range = rng.choice(((0, 9), (-5, 5), (1, 20)))
    params = tuple(Param(each, "List[int]", sample) for each in names)
    given = f"two lists of integers `{names[0]}` and `{names[1]}`" + (" of the same length" if equal else "")
    form = rng.randrange(3)
    if form == 0:
        return Problem(
            name=name, params=params, returns="List[int]", given=given, task=f"return {phrase}", solve=make
        )  # fmt: skip
    if form == 1:
        condition = rng.choice(INTEGER_CONDITIONS)(rng)
        return Problem(
            name=f"{name}_{condition.name}",
            params=(*params, *condition.params),
            returns="List[int]",
            given=given,
            task=f"find {phrase}, and return those that {condition.phrase}",
            solve=lambda a, b, *rest: [value for value in make(a, b) if condition.apply(value, *rest)],
        )
    piece, empty = rng.choice(INTEGER_SUMMARIES)
    summary = piece(rng)

    def solve(a: list[int], b: list[int], *rest: Any) -> Any:
        (arguments,) = split_arguments(rest, summary)
        return summary.apply(make(a, b), *arguments)

    return Problem(
        name=f"{summary.name}_of_{name}",
        params=params,
        returns="float" if summary.name in ("mean", "median") else "Optional[int]" if empty == "None" else "int",
        given=given,
        task=f"find {phrase}, and return {summary.phrase} of them",
        solve=solve,
        notes=(f"If there are none, return {empty}.",),
    )


def _turns(a: list[int], b: list[int]) -> list[int]:
    shared = min(len(a), len(b))
    return [value for pair in zip(a[:shared], b[:shared], strict=True) for value in pair] + a[shared:] + b[shared:]
