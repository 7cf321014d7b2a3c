"""Problems told as small stories: processes with a state, rules for valid texts, codes to undo, formulas."""

# ruff: noqa: E501 (tables: one row a line)

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from train.prompts.problems.problem import Param, Problem, Rng

# (given, what the numbers are, unit of the state)
PROCESSES = (
    ("a lift that starts at floor {start}", "moves", "floor", "signed moves up (positive) and down (negative)"),
    ("a tank that holds {start} litres", "flows", "level", "litres that flow in (positive) or out (negative)"),
    ("a player with {start} points", "turns", "score", "points won (positive) or lost (negative) in each turn"),
    ("a shop with {start} boxes in stock", "deliveries", "stock", "boxes that come in (positive) or go out (negative)"),
    ("a thermometer that shows {start} degrees", "changes", "temperature", "changes of the temperature hour by hour"),
    ("a robot at position {start} of a line", "steps", "position", "steps to the right (positive) or left (negative)"),
    ("a battery charged to {start} percent", "usage", "charge", "changes of the charge, positive or negative"),
    ("a bus with {start} passengers", "stops", "passengers", "changes of the number of passengers at each stop"),
)


def process(rng: Rng) -> Problem:
    """A state that changes step by step; a question about its course."""
    who, argument, state, what = rng.choice(PROCESSES)
    start, limit = rng.randint(0, 10), rng.randint(8, 20)
    forms: tuple[tuple[str, str, str, Callable[[list[int]], Any]], ...] = (
        ("return the {state} at the end", "final_{state}", "int", lambda path: path[-1]),
        ("return the highest {state} that is ever reached, the start included", "highest_{state}", "int", max),
        ("return the lowest {state} that is ever reached, the start included", "lowest_{state}", "int", min),
        (f"return the number of the first step (counted from 1) after which the {{state}} is above {limit}, or -1", "first_above", "int", lambda path: next((i for i, x in enumerate(path) if i and x > limit), -1)),
        ("count how many times the {state} is lower than right before", "count_drops", "int", lambda path: sum(b < a for a, b in pairwise(path))),
        (f"check whether the {{state}} always stays between 0 and {limit}", "stays_in_bounds", "bool", lambda path: all(0 <= x <= limit for x in path)),
        ("return the list of all values of the {state}, the start included", "{state}_history", "List[int]", list),
        ("return how many different values the {state} has, the start included", "distinct_{state}_values", "int", lambda path: len(set(path))),
        ("check whether the {state} is back at its first value at the end", "returns_to_start", "bool", lambda path: path[0] == path[-1]),
    )  # fmt: skip
    task, name, returns, answer = rng.choice(forms)

    def solve(changes: list[int]) -> Any:
        path = [start]
        for each in changes:
            path.append(path[-1] + each)
        return answer(path)

    param = Param(argument, "List[int]", lambda draw: [draw.randint(-6, 8) for _ in range(draw.randint(0, 6))])
    return Problem(
        name=name.format(state=state),
        params=(param,),
        returns=returns,
        given=f"{who.format(start=start)} and a list `{argument}` of {what}",
        task=task.format(state=state),
        solve=solve,
    )


RULES: tuple[tuple[str, Callable[[str, int], bool]], ...] = (
    ("it has at least {k} characters", lambda s, k: len(s) >= k),
    ("it has at most {k} characters", lambda s, k: len(s) <= k + 4),
    ("it contains a digit", lambda s, k: any(map(str.isdigit, s))),
    ("it contains no digit", lambda s, k: not any(map(str.isdigit, s))),
    ("it contains an upper-case letter", lambda s, k: any(map(str.isupper, s))),
    ("it contains a lower-case letter", lambda s, k: any(map(str.islower, s))),
    ("it starts with a letter", lambda s, k: s[:1].isalpha()),
    ("it does not end with a digit", lambda s, k: not s[-1:].isdigit()),
    ("it contains no space", lambda s, k: " " not in s),
    ("it contains exactly one '-'", lambda s, k: s.count("-") == 1),
    ("it contains at least one of the signs '!', '?' and '_'", lambda s, k: any(c in s for c in "!?_")),
    ("no character occurs twice in a row", lambda s, k: all(a != b for a, b in pairwise(s))),
    ("it contains more letters than digits", lambda s, k: sum(map(str.isalpha, s)) > sum(map(str.isdigit, s))),
)
VALID_THINGS = ("password", "user name", "code", "file name", "label", "identifier", "ticket number", "licence plate")


def validity(rng: Rng) -> Problem:
    """Rules for a valid text: check them all, or say how many hold."""
    thing = rng.choice(VALID_THINGS)
    size = rng.randint(4, 8)
    chosen = rng.sample(range(len(RULES)), rng.choice((2, 2, 3, 3, 4)))
    texts = [RULES[i][0].format(k=size + 4 if "at most" in RULES[i][0] else size) for i in chosen]
    param = Param(rng.choice(("s", "text", thing.replace(" ", "_"), "value")), "str", _code)
    noun = thing.replace(" ", "_")
    article = "an" if thing[0] in "aeio" else "a"
    listed = "; ".join(texts)
    forms: tuple[tuple[str, str, str, Callable[[list[bool]], Any]], ...] = (
        (f"check whether it is a valid {thing}, which means that all of these rules hold: {listed}", f"is_valid_{noun}", "bool", all),
        (f"return 'Valid' if it follows all rules for {article} {thing} and 'Invalid' otherwise, with these rules: {listed}", f"check_{noun}", "str", lambda held: "Valid" if all(held) else "Invalid"),
        (f"return how many of these rules for {article} {thing} hold: {listed}", f"{noun}_strength", "int", sum),
        (f"return the list of the numbers (from 1) of the rules that are broken, with these rules for {article} {thing}: {listed}", f"broken_{noun}_rules", "List[int]", lambda held: [i for i, ok in enumerate(held, 1) if not ok]),
    )  # fmt: skip
    task, name, returns, answer = rng.choice(forms)
    return Problem(
        name=name,
        params=(param,),
        returns=returns,
        given=f"a string `{param.name}`",
        task=task,
        solve=lambda s: answer([RULES[i][1](s, size) for i in chosen]),
    )


def undo(rng: Rng) -> Problem:
    """A helper that encodes a string stands before the function; its inverse is to be written."""
    shift = rng.randint(1, 12)
    name = rng.choice(("encode", "scramble", "cipher", "mix", "convert"))
    tables = (
        (
            "swaps each character at an even position with its right neighbour, if it has one",
            "return ''.join(s[i:i + 2][::-1] for i in range(0, len(s), 2))",
            lambda s: _reverse_groups(s, 2),
            lambda s: _reverse_groups(s, 2),
        ),
        (
            f"moves the first {shift % 4 + 1} characters to the end",
            f"k = {shift % 4 + 1} % max(len(s), 1)\n    return s[k:] + s[:k]",
            lambda s: s[len(s) - _places(s, shift) :] + s[: len(s) - _places(s, shift)],
            lambda s: s[_places(s, shift) :] + s[: _places(s, shift)],
        ),
        (
            "writes the characters at even positions first and then those at odd positions",
            "return s[::2] + s[1::2]",
            lambda s: _interleave(s[: (len(s) + 1) // 2], s[(len(s) + 1) // 2 :]),
            lambda s: s[::2] + s[1::2],
        ),
        (
            f"reverses each group of {shift % 3 + 3} characters",
            f"size = {shift % 3 + 3}\n    return ''.join(s[i:i + size][::-1] for i in range(0, len(s), size))",
            lambda s: _reverse_groups(s, shift % 3 + 3),
            lambda s: _reverse_groups(s, shift % 3 + 3),
        ),
    )
    does, body, decode, encode = rng.choice(tables)
    helper = f'def {name}(s: str) -> str:\n    """\n    returns a new string; the function {does}.\n    """\n    {body}'
    param = Param(
        "s", "str", lambda draw: encode("".join(draw.choice("abcdeimnorstz") for _ in range(draw.randint(2, 9))))
    )
    prefix = rng.choice(("decode", "undo", "reverse"))
    return Problem(
        name=f"{prefix}_{name}",
        params=(param,),
        returns="str",
        given=f"a string `s` that was made with the function `{name}`",
        task="return the original string",
        solve=decode,
        helper=helper,
    )


FORMULAS: tuple[tuple[str, str, str, tuple[str, ...], Callable[..., Any]], ...] = (
    ("the length of the diagonal of a rectangle with these sides", "rectangle_diagonal", "float", ("width", "height"), lambda a, b: round(math.hypot(a, b), 2)),
    ("the volume of a box with these sides", "box_volume", "int", ("length", "width", "height"), lambda a, b, c: a * b * c),
    ("the surface of a box with these sides", "box_surface", "int", ("length", "width", "height"), lambda a, b, c: 2 * (a * b + b * c + a * c)),
    ("the area of a ring between two circles with these radii", "ring_area", "float", ("outer", "inner"), lambda a, b: round(abs(math.pi * (a * a - b * b)), 2)),
    ("the temperature in degrees Celsius of a temperature in Fahrenheit", "to_celsius", "float", ("fahrenheit",), lambda f: round((f - 32) * 5 / 9, 1)),
    ("the total price of some pieces at a price each, with 10 percent off from 10 pieces on", "order_price", "float", ("pieces", "price"), lambda n, p: round(n * p * (0.9 if n >= 10 else 1.0), 2)),
    ("the number of full boxes and the rest when these items are packed into boxes of this size", "pack_boxes", "Tuple[int, int]", ("items", "size"), lambda n, k: (n // k, n % k)),
    ("the time 'H:MM' that is this many minutes after midnight", "clock_time", "str", ("minutes",), lambda m: f"{m // 60 % 24}:{m % 60:02d}"),
    ("the smallest number of coins of 1, 2, 5 and 10 that make this amount", "fewest_coins", "int", ("amount",), lambda n: n // 10 + (n % 10) // 5 + ((n % 5) + 1) // 2),
    ("the distance on a grid (steps left, right, up, down) between the points (x1, y1) and (x2, y2)", "grid_distance", "int", ("x1", "y1", "x2", "y2"), lambda a, b, c, d: abs(a - c) + abs(b - d)),
    ("'right', 'acute' or 'obtuse', the kind of the triangle with these sides, which are sorted from short to long", "triangle_kind", "str", ("a", "b", "c"), lambda a, b, c: "right" if a * a + b * b == c * c else "acute" if a * a + b * b > c * c else "obtuse"),
    ("the number of days needed to save this sum when the savings grow by one more each day (1, 2, 3, ...)", "days_to_save", "int", ("target",), lambda t: next(n for n in range(t + 1) if n * (n + 1) // 2 >= t)),
    ("the median of the three numbers", "middle_of_three", "int", ("a", "b", "c"), lambda a, b, c: sorted((a, b, c))[1]),
    ("how many of the three numbers are equal to another one of them", "count_equal", "int", ("a", "b", "c"), lambda a, b, c: 3 - len({a, b, c}) + (len({a, b, c}) < 3)),
    ("True if exactly one of the two numbers is even", "exactly_one_even", "bool", ("a", "b"), lambda a, b: a % 2 != b % 2),
    ("a string of the numbers from the first to the second, counting down if the first is larger, joined by '->'", "count_between", "str", ("start", "stop"), lambda a, b: "->".join(map(str, range(a, b + 1) if a <= b else range(a, b - 1, -1)))),
)  # fmt: skip


def formula(rng: Rng) -> Problem:
    """A value computed from a few numbers."""
    what, name, returns, arguments, solve = rng.choice(FORMULAS)
    high = 600 if arguments == ("minutes",) else 12 if len(arguments) == 4 else 30
    params = tuple(Param(each, "int", lambda draw: draw.randint(1, high)) for each in arguments)
    listed = ", ".join(f"`{each}`" for each in arguments)
    given = f"{'an integer' if len(arguments) == 1 else 'the integers'} {listed}"
    return Problem(name=name, params=params, returns=returns, given=given, task=f"return {what}", solve=solve)


def _code(draw: Rng) -> str:
    alphabet = draw.choice(("abcDEF123", "abcdefgh", "aB3-_! ", "ABC-0123"))
    return "".join(draw.choice(alphabet) for _ in range(draw.randint(2, 10))).strip() or "a"


def _places(text: str, shift: int) -> int:
    return (shift % 4 + 1) % max(len(text), 1)


def _interleave(first: str, second: str) -> str:
    return "".join(a + b for a, b in zip(first, second + " ", strict=False))[: len(first) + len(second)]


def _reverse_groups(text: str, size: int) -> str:
    return "".join(text[i : i + size][::-1] for i in range(0, len(text), size))
