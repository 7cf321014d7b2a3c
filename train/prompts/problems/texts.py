"""Problems on strings: characters, words of a sentence, changes of a text, parsing."""

# ruff: noqa: E501 (tables: one row a line)

import re
from collections import Counter
from collections.abc import Callable
from itertools import groupby, pairwise
from typing import Any

from train.prompts.problems.pieces import (
    CHARACTER_CONDITIONS,
    INTEGER_SUMMARIES,
    VOWELS,
    WORD_CHANGES,
    WORD_CONDITIONS,
    WORD_SUMMARIES,
)
from train.prompts.problems.problem import Param, Problem, Rng, split_arguments
from train.prompts.problems.samples import filled, integers, sentence, text, text_param


def characters(rng: Rng) -> Problem:
    """Characters that meet a condition: counted, kept, removed, replaced, located."""
    param = text_param(rng, text)
    condition = rng.choice(CHARACTER_CONDITIONS)(rng)
    sign = rng.choice("*#_-.")
    forms: tuple[tuple[str, str, str, Callable[[str, list[int]], Any]], ...] = (
        ("count the characters that {plural}", "count_{}", "int", lambda s, hits: len(hits)),
        ("return the string without the characters that {plural}", "remove_{}", "str", lambda s, hits: _without(s, hits)),
        ("return only the characters that {plural}, joined into one string", "extract_{}", "str", lambda s, hits: "".join(s[i] for i in hits)),
        ("replace all characters that {plural} by '" + sign + "'", "mask_{}", "str", lambda s, hits: "".join(sign if i in hits else c for i, c in enumerate(s))),
        ("double the characters that {plural} and keep the rest unchanged", "double_{}", "str", lambda s, hits: "".join(2 * c if i in hits else c for i, c in enumerate(s))),
        ("return the index of the first character for which it holds that it {single}, or -1", "first_index_of_{}", "int", lambda s, hits: hits[0] if hits else -1),
        ("return the list of positions of the characters that {plural}", "positions_of_{}", "List[int]", lambda s, hits: hits),
        ("reverse only the characters that {plural}; all others stay where they are", "reverse_{}", "str", lambda s, hits: _reverse_some(s, hits)),
        ("move the characters that {plural} to the end of the string, in their order", "{}_last", "str", lambda s, hits: _without(s, hits) + "".join(s[i] for i in hits)),
        ("return a dictionary with the number of times each character that {single} occurs", "histogram_of_{}", "Dict[str, int]", lambda s, hits: dict(Counter(s[i] for i in hits))),
        ("return the length of the longest substring in which all characters {plural}", "longest_run_of_{}", "int", lambda s, hits: max((len(list(g)) for ok, g in groupby(range(len(s)), lambda i: i in hits) if ok), default=0)),
        ("swap the case of the characters that {plural}", "swap_case_of_{}", "str", lambda s, hits: "".join(c.swapcase() if i in hits else c for i, c in enumerate(s))),
    )  # fmt: skip
    task, name, returns, answer = rng.choice(forms)
    return Problem(
        name=name.format(condition.name),
        params=(param, *condition.params),
        returns=returns,
        given=f"a string `{param.name}`",
        task=task.format(plural=condition.phrase, single=condition.singular),
        solve=lambda s, *rest: answer(s, [i for i, c in enumerate(s) if condition.apply(c, *rest)]),
    )


def sentence_words(rng: Rng) -> Problem:
    """Words of a sentence: selected, changed, summarised."""
    param = Param(rng.choice(("sentence", "text", "s", "phrase", "line")), "str", sentence)
    condition = rng.choice(WORD_CONDITIONS)(rng)
    form = rng.randrange(3)
    given = rng.choice(("a string `{}` of words separated by single spaces", "a sentence `{}`")).format(param.name)
    if form == 0:
        made = rng.choice(WORD_CHANGES)(rng)

        def change(value: str, *rest: Any) -> str:
            first, second = split_arguments(rest, condition, made)
            return " ".join(made.apply(w, *second) if condition.apply(w, *first) else w for w in value.split())

        return Problem(
            name=f"{made.name}_where_{condition.name}",
            params=(param, *condition.params, *made.params),
            returns="str",
            given=given,
            task=f"replace every word that {condition.singular} by {made.phrase} and return the new sentence",
            solve=change,
        )
    if form == 1:
        return Problem(
            name=f"words_{condition.name}",
            params=(param, *condition.params),
            returns="List[str]",
            given=given,
            task=f"return a list of the words that {condition.phrase}",
            solve=lambda value, *rest: [w for w in value.split() if condition.apply(w, *rest)],
        )
    make, empty, returns = rng.choice(WORD_SUMMARIES)
    summary = make(rng)
    return Problem(
        name=f"{summary.name}_of_words_{condition.name}",
        params=(param, *condition.params),
        returns=returns,
        given=given,
        task=f"return {summary.phrase} of the words that {condition.phrase}",
        solve=lambda value, *rest: summary.apply([w for w in value.split() if condition.apply(w, *rest)]),
        notes=(f"If there are no such words, return {empty}.",),
    )


# Each can follow another one: text to text.
STEPS: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("reverse the string", "reverse", lambda s: s[::-1]),
    ("reverse each word of the string but keep the order of the words", "reverse_words", lambda s: " ".join(w[::-1] for w in s.split(" "))),
    ("reverse the order of the words", "flip_word_order", lambda s: " ".join(s.split(" ")[::-1])),
    ("swap upper and lower case", "swap_case", str.swapcase),
    ("remove all vowels", "drop_vowels", lambda s: "".join(c for c in s if c.lower() not in VOWELS)),
    ("remove all spaces", "drop_spaces", lambda s: s.replace(" ", "")),
    ("remove all digits", "drop_digits", lambda s: "".join(c for c in s if not c.isdigit())),
    ("replace spaces by underscores", "underscore", lambda s: s.replace(" ", "_")),
    ("make every second character upper case, starting with the first", "alternate_case", lambda s: "".join(c.upper() if i % 2 == 0 else c.lower() for i, c in enumerate(s))),
    ("remove repeated characters, keeping the first of each", "unique_characters", lambda s: "".join(dict.fromkeys(s))),
    ("collapse runs of the same character into one", "squeeze", lambda s: "".join(c for c, _ in groupby(s))),
    ("replace each run of the same character by the character and the length of the run", "run_length", lambda s: "".join(f"{c}{len(list(g))}" for c, g in groupby(s))),
    ("sort the characters", "sort_characters", lambda s: "".join(sorted(s))),
    ("swap the first and the last character", "swap_ends", lambda s: s[-1] + s[1:-1] + s[0] if len(s) > 1 else s),
    ("swap the two halves (a middle character stays where it is)", "swap_halves", lambda s: s[-(len(s) // 2) :] + s[len(s) // 2 : len(s) - len(s) // 2] + s[: len(s) // 2] if len(s) > 1 else s),
    ("shift each letter to the next one in the alphabet (z becomes a)", "next_letters", lambda s: _shift(s, 1)),
    ("capitalize each word", "title_words", lambda s: " ".join(w.capitalize() for w in s.split(" "))),
    ("sort the words alphabetically", "sort_words", lambda s: " ".join(sorted(s.split(" ")))),
    ("remove the first and the last character", "strip_ends", lambda s: s[1:-1]),
    ("append the reverse of the string to it", "mirror", lambda s: s + s[::-1]),
    ("keep only the characters at even positions (0, 2, 4, ...)", "even_positions", lambda s: s[::2]),
    ("write the number of characters after the string, separated by a colon", "append_length", lambda s: f"{s}:{len(s)}"),
    ("insert a dash between neighbouring characters", "dashes", lambda s: "-".join(s)),
)  # fmt: skip


def steps(rng: Rng) -> Problem:
    """Two changes of a whole text, one after the other. (One alone would often be a published problem.)"""
    param = text_param(rng, sentence if rng.random() < 0.6 else text)
    chosen = rng.sample(STEPS, 2)
    task = f"{chosen[0][0]}, then {chosen[1][0]}, and return the result"

    def solve(value: str) -> str:
        for _, _, step in chosen:
            value = step(value)
        return value

    return Problem(
        name="_and_".join(name for _, name, _ in chosen),
        params=(param,),
        returns="str",
        given=f"a string `{param.name}`",
        task=task,
        solve=solve,
    )


PROPERTIES: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = (
    ("check whether the string has the same number of vowels and consonants", "is_balanced_in_vowels", "bool", lambda s: sum(c.lower() in VOWELS for c in s) * 2 == sum(map(str.isalpha, s))),
    ("check whether all characters of the string are different", "all_different", "bool", lambda s: len(set(s)) == len(s)),
    ("check whether the string is a palindrome, ignoring case and everything but letters", "is_loose_palindrome", "bool", lambda s: (t := [c.lower() for c in s if c.isalpha()]) == t[::-1]),
    ("return the most frequent character, the alphabetically first one on ties, or None for an empty string", "top_character", "Optional[str]", lambda s: min(s, key=lambda c: (-s.count(c), c), default=None)),
    ("return the first character that occurs only once, or None", "first_unique_character", "Optional[str]", lambda s: next((c for c in s if s.count(c) == 1), None)),
    ("return the number of words", "word_count", "int", lambda s: len(s.split())),
    ("return the longest word, the first one on ties, or an empty string", "longest_word_in", "str", lambda s: max(s.split(), key=len, default="")),
    ("return a dictionary from each word to the number of times it occurs", "word_histogram", "Dict[str, int]", lambda s: dict(Counter(s.split()))),
    ("return a dictionary from word length to the list of words of that length, in order", "words_by_length", "Dict[int, List[str]]", lambda s: {n: [w for w in s.split() if len(w) == n] for n in dict.fromkeys(map(len, s.split()))}),
    ("return a dictionary from first letter to the number of words that start with it", "initial_counts", "Dict[str, int]", lambda s: dict(Counter(w[0] for w in s.split()))),
    ("return all prefixes of even length, from short to long", "even_prefixes", "List[str]", lambda s: [s[:n] for n in range(2, len(s) + 1, 2)]),
    ("return all suffixes, from long to short", "suffixes", "List[str]", lambda s: [s[i:] for i in range(len(s))]),
    ("return the list of pairs of neighbouring characters", "bigrams", "List[str]", lambda s: [a + b for a, b in pairwise(s)]),
    ("return the sum of all digits in the string", "sum_of_digits_in", "int", lambda s: sum(int(c) for c in s if c.isdigit())),
    ("return the sum of the whole numbers written in the string (digits next to each other form one number)", "sum_of_numbers_in", "int", lambda s: sum(map(int, re.findall(r"[0-9]+", s)))),
    ("return the positions of the capital letters", "capital_positions", "List[int]", lambda s: [i for i, c in enumerate(s) if c.isupper()]),
    ("return the number of positions at which the character equals its left neighbour", "count_repeats", "int", lambda s: sum(a == b for a, b in pairwise(s))),
    ("return the length of the longest run of one character", "longest_same_run", "int", lambda s: max((len(list(g)) for _, g in groupby(s)), default=0)),
)  # fmt: skip


def properties(rng: Rng) -> Problem:
    """A property or a count of a text."""
    task, name, returns, solve = rng.choice(PROPERTIES)
    param = text_param(rng, sentence if "word" in task else text)
    return Problem(
        name=name, params=(param,), returns=returns, given=f"a string `{param.name}`", task=task, solve=solve
    )


def parse_numbers(rng: Rng) -> Problem:
    """Numbers written in a string with a separator."""
    separator, called = rng.choice(
        ((",", "commas"), (";", "semicolons"), (" ", "spaces"), ("|", "bars"), ("/", "slashes"), ("-", "dashes"))
    )
    make, empty = rng.choice(INTEGER_SUMMARIES)
    summary = make(rng)
    param = text_param(rng, lambda draw: separator.join(str(abs(n)) for n in filled(integers)(draw)))
    returns = "float" if summary.name in ("mean", "median") else "Optional[int]" if empty == "None" else "int"
    return Problem(
        name=rng.choice(("parse_{}", "{}_from_string", "{}_of_listed_numbers")).format(summary.name),
        params=(param,),
        returns=returns,
        given=f"a string `{param.name}` of non-negative integers separated by {called}",
        task=f"return {summary.phrase} of the numbers",
        solve=lambda value: summary.apply([int(part) for part in value.split(separator)]),
    )


def parse_pairs(rng: Rng) -> Problem:
    """key=value pairs in a string."""
    outer, inner = rng.choice(((";", "="), (",", ":"), ("&", "="), (" ", ":"), ("|", "=")))
    keys = ("a", "b", "x", "y", "pear", "fig", "tea", "red")
    param = text_param(
        rng,
        lambda draw: outer.join(f"{key}{inner}{draw.randint(0, 20)}" for key in draw.sample(keys, draw.randint(1, 4))),
    )
    forms: tuple[tuple[str, str, str, Callable[[dict[str, int]], Any]], ...] = (
        ("return them as a dictionary with integer values", "parse_pairs", "Dict[str, int]", lambda d: d),
        ("return the key with the largest value (the first one on ties)", "key_of_largest", "str", lambda d: max(d, key=d.get)),
        ("return the keys in alphabetical order", "sorted_keys", "List[str]", sorted),
        ("return the sum of the values", "sum_of_values", "int", lambda d: sum(d.values())),
        ("return the keys whose value is even, in the order in which they appear", "keys_with_even_value", "List[str]", lambda d: [k for k, v in d.items() if v % 2 == 0]),
        ("return the list of (key, value) tuples sorted by value, and by key on ties", "pairs_by_value", "List[Tuple[str, int]]", lambda d: sorted(d.items(), key=lambda item: (item[1], item[0]))),
    )  # fmt: skip
    task, name, returns, answer = rng.choice(forms)
    return Problem(
        name=name,
        params=(param,),
        returns=returns,
        given=f"a string `{param.name}` of pairs like 'key{inner}3', separated by '{outer}', where the values are integers",
        task=task,
        solve=lambda value: answer({k: int(v) for k, v in (pair.split(inner) for pair in value.split(outer))}),
    )


def _without(value: str, positions: list[int]) -> str:
    return "".join(character for index, character in enumerate(value) if index not in positions)


def _reverse_some(value: str, positions: list[int]) -> str:
    result = list(value)
    for index, character in zip(positions, [value[i] for i in reversed(positions)], strict=True):
        result[index] = character
    return "".join(result)


def _shift(value: str, by: int) -> str:
    def one(character: str) -> str:
        if not (character.isascii() and character.isalpha()):
            return character
        base = ord("a") if character.islower() else ord("A")
        return chr((ord(character) - base + by) % 26 + base)

    return "".join(map(one, value))
