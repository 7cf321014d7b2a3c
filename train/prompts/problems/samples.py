"""Example values: lists of integers, words and sentences, and names for arguments."""

from collections.abc import Callable
from typing import Any

from train.prompts.problems.problem import Param, Rng

_WORDS = """apple river stone level window garden yellow monkey table music planet silver paper winter summer bottle
ocean tiger noon radar civic kayak candle forest bridge coffee orange island engine market pepper rabbit school spring
street summit temple tunnel valley violet walnut zebra eagle otter arena echo idea umbrella active alpha area eleven
unit book moon tree ball door fish lamp ship bird cat dog sun sky ice ant owl egg ink key map nut pan rug van box
Anna Bob Clara David Erik Hannah Otto Maria Peter Lucy Paris London Oslo Rome Berlin Tokyo banana butter letter summer
hello world python data code list tuple index value loop array string number queue stack graph node edge"""
WORDS = tuple(dict.fromkeys(_WORDS.split()))
KEYS = ("a", "b", "c", "d", "x", "y", "z", "red", "blue", "green", "pear", "plum", "fig", "tea", "milk", "rice")
NUMBER_LISTS = ("numbers", "nums", "values", "lst", "arr", "xs", "items", "scores", "data", "sequence", "readings", "l")
WORD_LISTS = ("words", "strings", "names", "items", "tokens", "lst", "labels", "tags")
TEXTS = ("text", "s", "string", "message", "line", "word", "txt", "phrase", "sentence")


def integers(rng: Rng) -> list[int]:
    """0 to 8 integers, mostly small; now and then with repeats or all positive."""
    size = rng.choice((0, 1, 3, 4, 5, 5, 6, 6, 7, 8))
    low, high = rng.choice(((-10, 10), (0, 9), (1, 30), (-20, 50), (1, 5), (0, 100)))
    return [rng.randint(low, high) for _ in range(size)]


def filled(sample: Callable[[Rng], Any]) -> Callable[[Rng], Any]:
    """The same sampler without empty values."""

    def draw(rng: Rng) -> Any:
        while not (value := sample(rng)):
            pass
        return value

    return draw


def words(rng: Rng) -> list[str]:
    """0 to 6 words."""
    return [rng.choice(WORDS) for _ in range(rng.choice((0, 1, 2, 3, 4, 4, 5, 6)))]


def sentence(rng: Rng) -> str:
    """1 to 6 words with single spaces, sometimes capitalised."""
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 6)))
    return text.capitalize() if rng.random() < 0.4 else text


def text(rng: Rng) -> str:
    """A word, a few words, or a mix of letters, digits and signs."""
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(WORDS)
    if kind < 0.7:
        return sentence(rng)
    return "".join(rng.choice("aabbccdeiouxyzABCE1234507-_! ") for _ in range(rng.randint(0, 10))).strip()


def numbers_param(rng: Rng, sample: Callable[[Rng], Any] = integers) -> Param:
    """A list of integers under one of the usual names."""
    return Param(rng.choice(NUMBER_LISTS), "List[int]", sample)


def words_param(rng: Rng, sample: Callable[[Rng], Any] = words) -> Param:
    """A list of words under one of the usual names."""
    return Param(rng.choice(WORD_LISTS), "List[str]", sample)


def text_param(rng: Rng, sample: Callable[[Rng], Any] = text) -> Param:
    """A string under one of the usual names."""
    return Param(rng.choice(TEXTS), "str", sample)
