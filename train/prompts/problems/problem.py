"""A small programming problem with its solution, and the pieces (conditions, changes, summaries) it is made of."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Rng = random.Random
PLURAL_NOUNS = {
    "perfect squares": "a perfect square",
    "powers of two": "a power of two",
    "palindromes": "a palindrome",
    "neither letters nor digits": "neither a letter nor a digit",
    "letters": "a letter",
    "digits": "a digit",
    "vowels": "a vowel",
    "consonants": "a consonant",
    "upper-case letters": "an upper-case letter",
    "lower-case letters": "a lower-case letter",
    "not spaces": "not a space",
    "their letters": "its letters",
}


@dataclass(frozen=True)
class Param:
    """One argument of a problem's function.

    Attributes:
        name: of the argument.
        annotation: its type, in the spelling of `typing` ("List[int]").
        sample: draws a value for an example.
    """

    name: str
    annotation: str
    sample: Callable[[Rng], Any]


@dataclass(frozen=True)
class Piece:
    """A condition, change or summary of one value.

    Attributes:
        phrase: how a sentence says it; conditions as a plural clause ("are even"), the rest as a noun ("the square").
        name: its part of a function's name.
        apply: the Python that does it: value, then the values of `params`.
        params: further arguments of the function that the phrase mentions.
    """

    phrase: str
    name: str
    apply: Callable[..., Any]
    params: tuple[Param, ...] = ()

    @property
    def singular(self) -> str:
        """The clause of a condition for one thing: "are even" -> "is even"."""
        verb, _, rest = self.phrase.partition(" ")
        verb = {"are": "is", "have": "has", "do": "does"}.get(verb, verb + "s")
        for plural, one in PLURAL_NOUNS.items():
            if rest.startswith(plural):
                rest = one + rest.removeprefix(plural)
        return f"{verb} {rest}"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A function to write.

    Attributes:
        name: of the function.
        params: its arguments, in order.
        returns: annotation of the result.
        given: what the function gets, as a noun phrase: "a list of integers `numbers`".
        task: what it does, starting with a plain verb: "return the sum of ...".
        solve: the solution.
        notes: further sentences (what happens with empty input, ...).
        helper: source of a function that stands before it.
        examples: arguments of examples that must be shown; the rest are drawn.
    """

    name: str
    params: tuple[Param, ...]
    returns: str
    given: str
    task: str
    solve: Callable[..., Any]
    notes: tuple[str, ...] = ()
    helper: str = ""
    examples: Sequence[tuple[Any, ...]] = field(default=())


def fixed(phrase: str, name: str, apply: Callable[..., Any]) -> Callable[[Rng], Piece]:
    """A piece that is always the same."""
    return lambda rng: Piece(phrase, name, apply)


def with_number(
    phrase: str, name: str, apply: Callable[[Any, int], Any], low: int, high: int, argument: str = "k"
) -> Callable[[Rng], Piece]:
    """A piece with a number in it ({}), sometimes a constant and sometimes a further argument of the function."""

    def make(rng: Rng) -> Piece:
        if rng.random() < 0.35:
            param = Param(argument, "int", lambda draw: draw.randint(low, high))
            return Piece(phrase.format(f"`{argument}`"), name.format(""), apply, (param,))
        value = rng.randint(low, high)
        return Piece(phrase.format(value), name.format(value).replace("-", "minus_"), lambda thing: apply(thing, value))

    return make


def split_arguments(rest: Sequence[Any], *pieces: Piece) -> list[tuple[Any, ...]]:
    """Values of the further arguments, piece by piece."""
    parts, start = [], 0
    for piece in pieces:
        parts.append(tuple(rest[start : start + len(piece.params)]))
        start += len(piece.params)
    return parts
