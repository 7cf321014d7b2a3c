"""Problems on one or two lists: select, change, summarise, search, sort, rearrange."""

# ruff: noqa: E501 (tables: one row a line)

from collections.abc import Callable
from itertools import accumulate, groupby, pairwise
from typing import Any

from train.prompts.problems.pieces import (
    INTEGER_CHANGES,
    INTEGER_CONDITIONS,
    INTEGER_SUMMARIES,
    WORD_CHANGES,
    WORD_CONDITIONS,
    WORD_NUMBERS,
    WORD_SUMMARIES,
)
from train.prompts.problems.problem import Param, Piece, Problem, Rng, split_arguments
from train.prompts.problems.samples import numbers_param, words_param

IN_ORDER = ("", "", ", in the order in which they appear", ", keeping their order")


class Kind:
    """Lists of integers or of words: what their elements are called and which pieces fit."""

    def __init__(self, rng: Rng) -> None:
        self.is_words = rng.random() < 0.4
        self.param = words_param(rng) if self.is_words else numbers_param(rng)
        self.noun = rng.choice(("words", "strings")) if self.is_words else rng.choice(("numbers", "integers", "values"))
        self.given = f"a list of {'strings' if self.is_words else 'integers'} `{self.param.name}`"
        self.one = "word" if self.is_words else "number"
        self.element = "str" if self.is_words else "int"
        self.condition = rng.choice(WORD_CONDITIONS if self.is_words else INTEGER_CONDITIONS)(rng)
        self.change = rng.choice(WORD_CHANGES if self.is_words else INTEGER_CHANGES)(rng)
        make, self.empty, *returns = rng.choice(WORD_SUMMARIES if self.is_words else INTEGER_SUMMARIES)
        self.summary: Piece = make(rng)
        self.summary_returns = returns[0] if returns else ("Optional[int]" if self.empty == "None" else "int")
        if self.summary.name in ("mean", "median"):
            self.summary_returns = "float"


def select(rng: Rng) -> Problem:
    """The elements that meet a condition."""
    kind = Kind(rng)
    if kind.condition.name == "positive":
        raise ValueError("a published problem asks for exactly this")
    keep = rng.random() < 0.75
    verb = rng.choice(("return a list of", "return only", "find all", "keep only")) if keep else "remove"
    task = f"{verb} the {kind.noun} that {kind.condition.phrase}"
    task += rng.choice(IN_ORDER) if keep else " and return the rest"
    name = rng.choice(("filter_{}", "select_{}", "get_{}", "{}_only", "keep_{}")) if keep else "remove_{}"
    return Problem(
        name=name.format(kind.condition.name),
        params=(kind.param, *kind.condition.params),
        returns=f"List[{kind.element}]",
        given=kind.given,
        task=task,
        solve=lambda values, *rest: [value for value in values if kind.condition.apply(value, *rest) == keep],
    )


def change_all(rng: Rng) -> Problem:
    """A change of every element."""
    kind = Kind(rng)
    made = kind.change
    task = f"return a list that holds {made.phrase} of each {kind.one}"
    if kind.is_words:
        task = f"replace each {kind.one} by {made.phrase} and return the new list"
    return Problem(
        name=rng.choice(("list_of_{}", "compute_{}", "{}", "map_to_{}")).format(made.name),
        params=(kind.param, *made.params),
        returns=f"List[{kind.element}]",
        given=kind.given,
        task=task,
        solve=lambda values, *rest: [made.apply(value, *rest) for value in values],
    )


def change_some(rng: Rng) -> Problem:
    """A change of the elements that meet a condition; the others are left out or stay."""
    kind = Kind(rng)
    condition, made = kind.condition, kind.change
    of = made.phrase if kind.is_words else f"{made.phrase} of it"
    drop_others = rng.random() < 0.5
    if drop_others:
        task = f"for each {kind.one} that {condition.singular} take {of} and return the results as a list"
        notes = (f"The other {kind.noun} are left out.",) if rng.random() < 0.4 else ()
    else:
        task = f"replace each {kind.one} that {condition.singular} by {of} and leave the other {kind.noun} as they are"
        notes = ()

    def solve(values: list, *rest: Any) -> list:
        first, second = split_arguments(rest, condition, made)
        if drop_others:
            return [made.apply(value, *second) for value in values if condition.apply(value, *first)]
        return [made.apply(value, *second) if condition.apply(value, *first) else value for value in values]

    return Problem(
        name=f"{made.name}_{'of' if drop_others else 'where'}_{condition.name}",
        params=(kind.param, *condition.params, *made.params),
        returns=f"List[{kind.element}]",
        given=kind.given,
        task=task,
        solve=solve,
        notes=notes,
    )


def summarise(rng: Rng) -> Problem:
    """A summary of all elements or of those that meet a condition, sometimes after a change."""
    kind = Kind(rng)
    condition, summary = kind.condition, kind.summary
    made = rng.choice(INTEGER_CHANGES)(rng) if not kind.is_words and rng.random() < 0.3 else None
    pieces = [condition] + ([made] if made else [])

    def solve(values: list, *rest: Any) -> Any:
        parts = split_arguments(rest, *pieces)
        chosen = [value for value in values if condition.apply(value, *parts[0])]
        return summary.apply([made.apply(value, *parts[1]) for value in chosen] if made else chosen)

    those = f"the {kind.noun} in `{kind.param.name}` that {condition.phrase}"
    if summary.name == "count" and not made:
        task = f"count {those}"
    elif made:
        task = f"take {made.phrase} of each of {those} and return {summary.phrase} of the results"
    else:
        task = f"{rng.choice(('return', 'compute', 'find'))} {summary.phrase} of {those}"
    note = f"If there {rng.choice(('is no such value', 'are none'))}, return {kind.empty}."
    middle = f"{made.name}_of_" if made else ""
    return Problem(
        name=rng.choice((f"{summary.name}_{middle}{condition.name}", f"{summary.name}_of_{middle}{condition.name}")),
        params=(kind.param, *(param for piece in pieces for param in piece.params)),
        returns=kind.summary_returns,
        given=kind.given,
        task=task,
        solve=solve,
        notes=(note,) if kind.empty == "None" or rng.random() < 0.3 else (),
    )


def search(rng: Rng) -> Problem:
    """Whether, where, or which is the first or last element that meets a condition."""
    kind = Kind(rng)
    condition = kind.condition
    forms: tuple[tuple[str, str, str, str, Callable[[list[int], list], Any]], ...] = (
        ("check whether all {noun} {plural}", "all_{}", "bool", "", lambda hits, v: len(hits) == len(v)),
        ("check if any {one} in the list {single}", "any_{}", "bool", "", lambda hits, v: bool(hits)),
        ("return True if no {one} {single}, and False otherwise", "none_{}", "bool", "", lambda hits, v: not hits),
        ("return the index of the first {one} that {single}", "index_of_first_{}", "int", "Return -1 if there is none.", lambda hits, v: hits[0] if hits else -1),
        ("return the index of the last {one} that {single}", "index_of_last_{}", "int", "If no such {one} exists, return -1.", lambda hits, v: hits[-1] if hits else -1),
        ("find the first {one} that {single}", "first_{}", "Optional[{element}]", "Return None if there is none.", lambda hits, v: v[hits[0]] if hits else None),
        ("return the positions of the {noun} that {plural}", "positions_of_{}", "List[int]", "", lambda hits, v: hits),
        ("check whether more than half of the {noun} {plural}", "majority_{}", "bool", "", lambda hits, v: 2 * len(hits) > len(v)),
        ("return the part of the list before the first {one} that {single}", "before_first_{}", "List[{element}]", "If there is none, return the whole list.", lambda hits, v: v[: hits[0]] if hits else v),
        ("return the part of the list after the last {one} that {single}", "after_last_{}", "List[{element}]", "If there is none, return an empty list.", lambda hits, v: v[hits[-1] + 1 :] if hits else []),
        ("return the length of the longest run of consecutive {noun} that {plural}", "longest_run_of_{}", "int", "", lambda hits, v: _longest_consecutive(hits)),
        ("split the list into two lists, the {noun} that {plural} and the others, and return both", "partition_{}", "Tuple[List[{element}], List[{element}]]", "", lambda hits, v: ([v[i] for i in hits], [x for i, x in enumerate(v) if i not in hits])),
        ("move the {noun} that {plural} to the front, keeping the order within both groups", "{}_first", "List[{element}]", "", lambda hits, v: [v[i] for i in hits] + [x for i, x in enumerate(v) if i not in hits]),
    )  # fmt: skip
    task, name, returns, note, answer = rng.choice(forms)
    fields = {"noun": kind.noun, "one": kind.one, "plural": condition.phrase, "single": condition.singular}

    def solve(values: list, *rest: Any) -> Any:
        return answer([i for i, value in enumerate(values) if condition.apply(value, *rest)], values)

    return Problem(
        name=name.format(condition.name),
        params=(kind.param, *condition.params),
        returns=returns.format(element=kind.element),
        given=kind.given,
        task=task.format(**fields),
        solve=solve,
        notes=(note.format(**fields),) if note else (),
    )


def _longest_consecutive(indices: list[int]) -> int:
    longest = length = 0
    previous = None
    for index in indices:
        length = length + 1 if previous is not None and index == previous + 1 else 1
        longest, previous = max(longest, length), index
    return longest


def sort(rng: Rng) -> Problem:
    """Sorting by one key, with a rule for ties."""
    kind = Kind(rng)
    key = rng.choice(WORD_NUMBERS if kind.is_words else INTEGER_CHANGES)(rng)
    down = rng.random() < 0.4
    stable = rng.random() < 0.5
    order = rng.choice(("descending", "decreasing")) if down else rng.choice(("ascending", "increasing"))
    ties = "keep their original order" if stable else ("are in alphabetical order" if kind.is_words else "are ordered by value, smaller first")  # fmt: skip

    def solve(values: list, *rest: Any) -> list:
        start = list(values) if stable else sorted(values)
        return sorted(start, key=lambda value: key.apply(value, *rest), reverse=down)

    return Problem(
        name=rng.choice(("sort_by_{}", "order_by_{}", "sorted_by_{}")).format(key.name)
        + ("_descending" if down and rng.random() < 0.5 else ""),
        params=(kind.param, *key.params),
        returns=f"List[{kind.element}]",
        given=kind.given,
        task=f"sort the {kind.noun} in {order} order by {key.phrase} of each {kind.one}",
        solve=solve,
        notes=(f"{kind.noun.capitalize()} with equal keys {ties}.",),
    )


REARRANGEMENTS: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    ("return the list in reverse order", "reverse_list", "List[int]", lambda v: v[::-1]),
    ("return the list without its first and last element", "trim_ends", "List[int]", lambda v: v[1:-1]),
    ("remove repeated values, keeping the first occurrence of each", "unique_values", "List[int]", lambda v: list(dict.fromkeys(v))),
    ("remove repeated values, keeping the last occurrence of each", "unique_from_the_right", "List[int]", lambda v: list(dict.fromkeys(v[::-1]))[::-1]),
    ("return the values that occur more than once, each once, in increasing order", "repeated_values", "List[int]", lambda v: sorted({x for x in v if v.count(x) > 1})),
    ("return the values that occur exactly once, in their original order", "lonely_values", "List[int]", lambda v: [x for x in v if v.count(x) == 1]),
    ("return the differences between neighbours (second minus first)", "neighbour_differences", "List[int]", lambda v: [b - a for a, b in pairwise(v)]),
    ("return the sums of neighbours", "neighbour_sums", "List[int]", lambda v: [a + b for a, b in pairwise(v)]),
    ("return the running sums", "running_sums", "List[int]", lambda v: list(accumulate(v))),
    ("return the running minimum at each position", "running_minimum", "List[int]", lambda v: list(accumulate(v, min))),
    ("swap each element at an even index with its right neighbour, if it has one", "swap_pairs", "List[int]", lambda v: [x for i in range(0, len(v), 2) for x in v[i : i + 2][::-1]]),
    ("move all zeros to the end without changing the order of the rest", "zeros_last", "List[int]", lambda v: [x for x in v if x] + [x for x in v if not x]),
    ("return the elements at odd indices followed by those at even indices", "odd_then_even_indices", "List[int]", lambda v: v[1::2] + v[::2]),
    ("take turns between the smallest and the largest remaining value until none is left", "outside_in", "List[int]", lambda v: _outside_in(v)),
    ("collapse each run of equal neighbours into one element", "collapse_runs", "List[int]", lambda v: [x for i, x in enumerate(v) if i == 0 or v[i - 1] != x]),
    ("return a list of pairs (value, length) for each run of equal neighbours", "run_lengths", "List[Tuple[int, int]]", lambda v: _runs(v)),
    ("replace each element by the number of smaller elements in the list", "count_smaller", "List[int]", lambda v: [sum(y < x for y in v) for x in v]),
    ("replace each element by the number of later elements that are smaller", "smaller_to_the_right", "List[int]", lambda v: [sum(y < x for y in v[i + 1 :]) for i, x in enumerate(v)]),
    ("replace each element by the largest element after it, and the last one by -1", "greatest_after", "List[int]", lambda v: [max(v[i + 1 :], default=-1) for i in range(len(v))]),
    ("replace each element by the sum of all other elements", "sum_of_others", "List[int]", lambda v: [sum(v) - x for x in v]),
    ("return the elements that are larger than everything before them", "record_highs", "List[int]", lambda v: [x for i, x in enumerate(v) if all(x > y for y in v[:i])]),
    ("return the indices of the elements that are larger than both neighbours", "peak_indices", "List[int]", lambda v: [i for i in range(1, len(v) - 1) if v[i - 1] < v[i] > v[i + 1]]),
    ("return the index that splits the list into two parts of equal sum, or -1 if there is none", "balance_index", "int", lambda v: next((i for i in range(1, len(v)) if sum(v[:i]) == sum(v[i:])), -1)),
    ("check whether the list reads the same from both ends", "is_symmetric", "bool", lambda v: v == v[::-1]),
    ("check whether the values strictly increase", "is_strictly_increasing", "bool", lambda v: all(a < b for a, b in pairwise(v))),
    ("check whether the values first rise and then fall, both strictly", "is_mountain", "bool", lambda v: _mountain(v)),
    ("check whether neighbours always have different signs", "signs_alternate", "bool", lambda v: all(a * b < 0 for a, b in pairwise(v))),
    ("return the longest prefix that is in increasing order", "increasing_prefix", "List[int]", lambda v: v[: next((i for i in range(1, len(v)) if v[i] < v[i - 1]), len(v))]),
    ("return the smallest non-negative integer that is not in the list", "smallest_missing", "int", lambda v: next(i for i in range(len(v) + 1) if i not in v)),
    ("return the smallest absolute difference between two elements, or None if there are fewer than two", "closest_gap", "Optional[int]", lambda v: min((b - a for a, b in pairwise(sorted(v))), default=None)),
)  # fmt: skip
SIZED_REARRANGEMENTS: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    ("rotate the list by `{k}` places to the right", "rotate_right", "List[int]", lambda v, k: v[-k % len(v) :] + v[: -k % len(v)] if v else []),
    ("rotate the list by `{k}` places to the left", "rotate_left", "List[int]", lambda v, k: v[k % len(v) :] + v[: k % len(v)] if v else []),
    ("split the list into pieces of length `{k}`; the last one may be shorter", "chunks", "List[List[int]]", lambda v, k: [v[i : i + k] for i in range(0, len(v), k)]),
    ("return every `{k}`-th element, starting with the first", "every_kth", "List[int]", lambda v, k: v[::k]),
    ("return the `{k}` largest values in decreasing order", "top_values", "List[int]", lambda v, k: sorted(v, reverse=True)[:k]),
    ("return the `{k}` smallest values in the order in which they appear", "lowest_in_order", "List[int]", lambda v, k: _lowest(v, k)),
    ("return the sums of all windows of `{k}` consecutive elements", "window_sums", "List[int]", lambda v, k: [sum(v[i : i + k]) for i in range(len(v) - k + 1)]),
    ("return the largest value of each window of `{k}` consecutive elements", "window_maxima", "List[int]", lambda v, k: [max(v[i : i + k]) for i in range(len(v) - k + 1)]),
    ("reverse the first `{k}` elements and leave the rest as it is", "reverse_prefix", "List[int]", lambda v, k: v[:k][::-1] + v[k:]),
    ("repeat each element `{k}` times", "repeat_each", "List[int]", lambda v, k: [x for x in v for _ in range(k)]),
    ("insert a 0 after every `{k}` elements", "insert_zeros", "List[int]", lambda v, k: [y for i, x in enumerate(v, 1) for y in ((x, 0) if i % k == 0 else (x,))]),
    ("drop every `{k}`-th element, counting from one", "drop_every", "List[int]", lambda v, k: [x for i, x in enumerate(v, 1) if i % k]),
    ("count the pairs of positions i < j whose values add up to `{k}`", "pairs_with_sum", "int", lambda v, k: sum(v[i] + v[j] == k for i in range(len(v)) for j in range(i + 1, len(v)))),
    ("check whether two neighbours differ by more than `{k}`", "has_big_jump", "bool", lambda v, k: any(abs(a - b) > k for a, b in pairwise(v))),
    ("return the values that occur at least `{k}` times, each once, in increasing order", "frequent_values", "List[int]", lambda v, k: sorted({x for x in v if v.count(x) >= k})),
)  # fmt: skip


def rearrange(rng: Rng) -> Problem:
    """A list in another order or shape, or a property of its order."""
    param = numbers_param(rng)
    if rng.random() < 0.6:
        task, name, returns, solve = rng.choice(REARRANGEMENTS)
        params: tuple[Param, ...] = (param,)
    else:
        task, name, returns, solve = rng.choice(SIZED_REARRANGEMENTS)
        count = Param(rng.choice(("k", "n", "size", "step", "amount")), "int", lambda draw: draw.randint(1, 4))
        task, params = task.format(k=count.name), (param, count)
    given = f"a list of integers `{param.name}`" + (f" and an integer `{params[1].name}`" if len(params) > 1 else "")
    return Problem(name=name, params=params, returns=returns, given=given, task=task, solve=solve)


def _outside_in(values: list[int]) -> list[int]:
    ordered, result = sorted(values), []
    while ordered:
        result.append(ordered.pop(0 if len(result) % 2 == 0 else -1))
    return result


def _runs(values: list[int]) -> list[tuple[int, int]]:
    return [(value, len(list(run))) for value, run in groupby(values)]


def _mountain(values: list[int]) -> bool:
    if len(values) < 3:
        return False
    peak = values.index(max(values))
    rises = all(a < b for a, b in pairwise(values[: peak + 1]))
    return 0 < peak < len(values) - 1 and rises and all(a > b for a, b in pairwise(values[peak:]))


def _lowest(values: list[int], count: int) -> list[int]:
    chosen = sorted(sorted(range(len(values)), key=lambda index: values[index])[:count])
    return [values[index] for index in chosen]
