"""Problems on single integers: counting and finding numbers with a property, digits, sequences, formulas."""

# ruff: noqa: E501 (tables: one row a line)

import math
from collections.abc import Callable
from itertools import islice
from typing import Any

from train.prompts.problems.pieces import INTEGER_CHANGES, INTEGER_CONDITIONS, INTEGER_SUMMARIES, digits, divisors
from train.prompts.problems.problem import Param, Problem, Rng

SEARCH_END = 5000
NAMES = ("n", "number", "num", "x", "value")


def count_up_to(rng: Rng) -> Problem:
    """Numbers from 1 to n that meet one or two conditions."""
    first = rng.choice(INTEGER_CONDITIONS)(rng)
    second = rng.choice(INTEGER_CONDITIONS)(rng)
    two = rng.random() < 0.5 and not (first.params or second.params)
    both = rng.random() < 0.6
    word = "and" if both else "or"
    phrase = f"{first.phrase} {word} {second.phrase}" if two else first.phrase
    top = Param(
        rng.choice(("n", "limit", "upper", "stop")) if not first.params else "n", "int", lambda d: d.randint(1, 60)
    )

    def holds(number: int, rest: tuple[Any, ...]) -> bool:
        if not two:
            return first.apply(number, *rest)
        hits = (first.apply(number), second.apply(number))
        return all(hits) if both else any(hits)

    forms: tuple[tuple[str, str, str, Callable[[list[int]], Any]], ...] = (
        ("count the integers from 1 to `{n}` (inclusive) that {phrase}", "count_{}", "int", len),
        ("return the sum of all integers from 1 to `{n}` that {phrase}", "sum_{}_up_to", "int", sum),
        ("return a list of all positive integers up to and including `{n}` that {phrase}", "list_{}_up_to", "List[int]", list),
        ("return the largest integer from 1 to `{n}` that has this property: such numbers {phrase}; return None if there is none", "largest_{}_up_to", "Optional[int]", lambda v: max(v, default=None)),
    )  # fmt: skip
    task, name, returns, answer = rng.choice(forms)
    joined = f"{first.name}_{word}_{second.name}" if two else first.name
    return Problem(
        name=name.format(joined),
        params=(top, *first.params),
        returns=returns,
        given=f"a positive integer `{top.name}`",
        task=task.format(n=top.name, phrase=phrase),
        solve=lambda n, *rest: answer([number for number in range(1, n + 1) if holds(number, rest)]),
    )


def nth(rng: Rng) -> Problem:
    """The n-th, next or previous number with a property."""
    condition = rng.choice(INTEGER_CONDITIONS)(rng)
    if condition.params:
        raise ValueError("a property with an argument reads badly here")
    param = Param(rng.choice(NAMES), "int", lambda d: d.randint(1, 30))
    form = rng.randrange(3)

    def numbers(start: int, count: int) -> list[int]:
        found = (number for number in range(start, start + SEARCH_END) if condition.apply(number))
        values = list(islice(found, count))
        if len(values) < count:
            raise ValueError(f"fewer than {count} numbers from {start} on {condition.phrase}")
        return values

    forms: tuple[tuple[str, str, str, Callable[[int], Any]], ...] = (
        (f"return the `{param.name}`-th positive integer for which it holds that it {condition.singular}", "nth_{}", "int", lambda n: numbers(1, n)[-1]),
        (f"return the first `{param.name}` positive integers that {condition.phrase}", "first_{}_numbers", "List[int]", lambda n: numbers(1, n)),
        (f"return the smallest integer greater than `{param.name}` that {condition.singular}", "next_{}", "int", lambda n: numbers(n + 1, 1)[0]),
    )  # fmt: skip
    task, name, returns, solve = forms[form]
    return Problem(
        name=name.format(condition.name),
        params=(param,),
        returns=returns,
        given=f"a positive integer `{param.name}`",
        task=task,
        solve=solve,
    )


def parts_of_number(rng: Rng) -> Problem:
    """Digits or divisors of a number: those that meet a condition, summarised."""
    of_digits = rng.random() < 0.6
    condition = rng.choice(INTEGER_CONDITIONS[:8])(rng)
    make, empty = rng.choice(INTEGER_SUMMARIES[:7])
    summary = make(rng)
    param = Param(rng.choice(NAMES), "int", lambda d: d.randint(1, 99999) if of_digits else d.randint(1, 120))
    parts = digits if of_digits else divisors
    noun = "digits" if of_digits else "divisors"
    counted = f"count the {noun} of `{param.name}` that {condition.phrase}"
    task = (
        counted
        if summary.name == "count"
        else f"return {summary.phrase} of the {noun} of `{param.name}` that {condition.phrase}"
    )
    return Problem(
        name=f"{summary.name}_of_{condition.name}_{noun}",
        params=(param,),
        returns="Optional[int]" if empty == "None" else "int",
        given=f"a positive integer `{param.name}`",
        task=task,
        solve=lambda n: summary.apply([part for part in parts(n) if condition.apply(part)]),
        notes=(f"Return {empty} if there are none.",),
    )


FACTS: tuple[tuple[str, str, str, Callable[[int], Any]], ...] = (
    ("return the number of trailing zeros of its factorial", "trailing_zeros_of_factorial", "int", lambda n: _trailing(math.factorial(n))),
    ("return its binary representation as a string without the prefix '0b'", "to_binary", "str", lambda n: bin(n)[2:]),
    ("return its representation in base 3 as a string", "to_base_three", "str", lambda n: _base(n, 3)),
    ("return the number of steps of the rule 'halve if even, else triple and add one' until 1 is reached", "steps_to_one", "int", lambda n: len(_halving(n)) - 1),
    ("return the list of its digits from the last one to the first", "digits_from_the_right", "List[int]", lambda n: digits(n)[::-1]),
    ("return the integer with the digits in reverse order", "reverse_digits", "int", lambda n: int(str(n)[::-1])),
    ("return the largest integer that can be made by rearranging its digits", "largest_rearrangement", "int", lambda n: int("".join(sorted(str(n), reverse=True)))),
    ("add up its digits again and again until one digit is left, and return it", "digital_root", "int", lambda n: 1 + (n - 1) % 9),
    ("check whether it is equal to the sum of its proper divisors", "is_perfect_number", "bool", lambda n: sum(divisors(n)[:-1]) == n),
    ("check whether it is the sum of two perfect squares", "is_sum_of_two_squares", "bool", lambda n: any(math.isqrt(n - a * a) ** 2 == n - a * a for a in range(math.isqrt(n) + 1))),
    ("check whether its digits never decrease from left to right", "digits_never_decrease", "bool", lambda n: digits(n) == sorted(digits(n))),
    ("return the number of ways to write it as the sum of two positive integers where the order does not matter", "two_part_sums", "int", lambda n: n // 2),
    ("return the list of its proper divisors in increasing order", "proper_divisors", "List[int]", lambda n: divisors(n)[:-1]),
    ("return its distinct prime factors in increasing order", "distinct_prime_factors", "List[int]", lambda n: [d for d in divisors(n) if d > 1 and len(divisors(d)) == 2]),
    ("return the list [1, 3, 6, 10, ...] of its first triangular numbers (as many as the number says)", "triangular_numbers", "List[int]", lambda n: [k * (k + 1) // 2 for k in range(1, n + 1)]),
    ("return the row with that index (counted from 0) of Pascal's triangle", "pascal_row", "List[int]", lambda n: [math.comb(n, k) for k in range(n + 1)]),
    ("return a string of all numbers from it down to 1, separated by spaces", "countdown_string", "str", lambda n: " ".join(map(str, range(n, 0, -1)))),
    ("return the difference between the square of the sum and the sum of the squares of 1 up to it", "square_of_sum_difference", "int", lambda n: sum(range(n + 1)) ** 2 - sum(k * k for k in range(n + 1))),
)  # fmt: skip


def fact(rng: Rng) -> Problem:
    """A property of one positive integer."""
    task, name, returns, solve = rng.choice(FACTS)
    large = any(word in task for word in ("digits", "binary", "base"))
    param = Param(rng.choice(NAMES), "int", lambda d: d.randint(1, 9999) if large else d.randint(1, 28))
    given = f"a positive integer `{param.name}`"
    return Problem(name=name, params=(param,), returns=returns, given=given, task=task, solve=solve)


def recurrence(rng: Rng) -> Problem:
    """A sequence in which each element follows from the one or two before it."""
    name = rng.choice(("ladder", "ripple", "cascade", "spiral", "seq", "growth", "chain", "wave", "echo", "steps"))
    starts = [rng.randint(0, 3) for _ in range(rng.choice((2, 2, 3)))]
    if not any(starts):
        starts[0] = 1
    weights = [rng.choice((1, 1, 2, 0, -1, 3)) for _ in starts]
    weights[0] = weights[0] or 1
    extra = rng.choice((0, 0, 1, 2, -1))
    terms = [_term(weight, f"{name}(n-{back})", back == 1) for back, weight in enumerate(weights, 1) if weight]
    rule = "".join(terms) + (f" {'+' if extra > 0 else '-'} {abs(extra)}" if extra else "")
    rows = [f"{name}({index}) = {start}" for index, start in enumerate(starts)]

    def solve(n: int) -> int:
        values = list(starts)
        while len(values) <= n:
            values.append(sum(weight * values[-back] for back, weight in enumerate(weights, 1)) + extra)
        return values[n]

    param = Param("n", "int", lambda draw: draw.randint(0, 10))
    lines = ", ".join(rows)
    form = rng.randrange(2)
    if form == 0:
        task = f"return the n-th element of the sequence with {lines} and {name}(n) = {rule} for larger n"
        return Problem(
            name=name, params=(param,), returns="int", given="an integer `n` >= 0", task=task, solve=solve,
            notes=rng.choice(((), ("Please compute it without recursion.",), ("Use an efficient method.",))),
        )  # fmt: skip
    task = (
        f"return a list of the elements {name}(0), ..., {name}(n) of the sequence with {lines} and {name}(n) = {rule}"
    )
    return Problem(
        name=f"{name}_sequence", params=(param,), returns="List[int]", given="an integer `n` >= 0", task=task,
        solve=lambda n: [solve(index) for index in range(n + 1)],
    )  # fmt: skip


def changed_number(rng: Rng) -> Problem:
    """A rule with two cases, applied once or several times."""
    condition, first, second = (
        rng.choice(INTEGER_CONDITIONS)(rng),
        rng.choice(INTEGER_CHANGES)(rng),
        rng.choice(INTEGER_CHANGES)(rng),
    )
    if condition.params or first.params or second.params or first.name == second.name:
        raise ValueError("a rule with arguments reads badly here")
    param = Param(rng.choice(NAMES), "int", lambda draw: draw.randint(0, 60))
    given = f"an integer `{param.name}`"
    task = (
        f"return {first.phrase} of `{param.name}` if it {condition.singular}, "
        f"and otherwise {second.phrase} of `{param.name}`"
    )

    def solve(n: int) -> int:
        return first.apply(n) if condition.apply(n) else second.apply(n)

    name = rng.choice(("transform_if_{}", "change_if_{}", "apply_rule_{}", "choose_by_{}")).format(condition.name)
    return Problem(name=name, params=(param,), returns="int", given=given, task=task, solve=solve)


def _term(weight: int, what: str, first: bool) -> str:
    sign = ("-" if weight < 0 else "") if first else (" - " if weight < 0 else " + ")
    return sign + (f"{abs(weight)} * " if abs(weight) > 1 else "") + what


def _trailing(number: int) -> int:
    text = str(number)
    return len(text) - len(text.rstrip("0"))


def _base(number: int, base: int) -> str:
    found = ""
    while number:
        number, digit = divmod(number, base)
        found = str(digit) + found
    return found or "0"


def _halving(number: int) -> list[int]:
    path = [number]
    while path[-1] != 1:
        path.append(path[-1] // 2 if path[-1] % 2 == 0 else 3 * path[-1] + 1)
    return path
