"""Pieces about integers, words and characters: conditions, changes and summaries."""

# ruff: noqa: E501 (tables: one row a line)

import math
from collections import Counter
from collections.abc import Callable
from functools import reduce
from itertools import groupby, pairwise

from train.prompts.problems.problem import Param, Piece, Rng, fixed, with_number

VOWELS = "aeiou"


def is_prime(number: int) -> bool:
    """Whether a number is prime."""
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def digits(number: int) -> list[int]:
    """Decimal digits of the absolute value."""
    return [int(digit) for digit in str(abs(number))]


def divisors(number: int) -> list[int]:
    """Positive divisors of a positive number."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def vowels(text: str) -> int:
    """How many vowels a text has."""
    return sum(character.lower() in VOWELS for character in text)


def longest_run(values: list) -> int:
    """Length of the longest run of equal neighbours."""
    return max((len(list(run)) for _, run in groupby(values)), default=0)


INTEGER_CONDITIONS = (
    fixed("are even", "even", lambda n: n % 2 == 0),
    fixed("are odd", "odd", lambda n: n % 2 == 1),
    fixed("are negative", "negative", lambda n: n < 0),
    fixed("are strictly positive", "positive", lambda n: n > 0),
    fixed("are not zero", "nonzero", lambda n: n != 0),
    fixed("are prime", "prime", is_prime),
    fixed("are perfect squares", "perfect_square", lambda n: n >= 0 and math.isqrt(n) ** 2 == n),
    fixed("are powers of two", "power_of_two", lambda n: n > 0 and n & (n - 1) == 0),
    fixed("are palindromes in base ten", "palindromic", lambda n: str(abs(n)) == str(abs(n))[::-1]),
    fixed("have an even digit sum", "even_digit_sum", lambda n: sum(digits(n)) % 2 == 0),
    fixed("have an odd digit sum", "odd_digit_sum", lambda n: sum(digits(n)) % 2 == 1),
    fixed("have only odd digits", "odd_digits_only", lambda n: all(d % 2 for d in digits(n))),
    fixed("have only distinct digits", "distinct_digits", lambda n: len(set(digits(n))) == len(digits(n))),
    fixed("have an odd number of ones in binary", "odd_bit_count", lambda n: bin(abs(n)).count("1") % 2 == 1),
    with_number("are divisible by {}", "divisible_by_{}", lambda n, k: n % k == 0, 2, 9),
    with_number("are not divisible by {}", "not_divisible_by_{}", lambda n, k: n % k != 0, 2, 7),
    with_number("are greater than {}", "greater_than_{}", lambda n, k: n > k, -5, 30, "limit"),
    with_number("are smaller than {}", "smaller_than_{}", lambda n, k: n < k, 0, 40, "limit"),
    with_number("are at least {}", "at_least_{}", lambda n, k: n >= k, -5, 30, "lower"),
    with_number("are at most {}", "at_most_{}", lambda n, k: n <= k, 0, 30, "upper"),
    with_number("are at a distance of at most {} from zero", "near_zero_{}", lambda n, k: abs(n) <= k, 3, 20, "radius"),
    with_number("leave remainder 1 when divided by {}", "remainder_one_mod_{}", lambda n, k: n % k == 1, 3, 7),
    with_number("have more than {} divisors", "many_divisors_{}", lambda n, k: len(divisors(abs(n))) > k, 2, 5),
    with_number("contain the digit {}", "containing_digit_{}", lambda n, k: k in digits(n), 1, 9, "digit"),
    with_number("end with the digit {}", "ending_with_digit_{}", lambda n, k: digits(n)[-1] == k, 0, 9, "digit"),
    with_number("do not contain the digit {}", "without_digit_{}", lambda n, k: k not in digits(n), 0, 9, "digit"),
    with_number("have a digit sum above {}", "digit_sum_above_{}", lambda n, k: sum(digits(n)) > k, 4, 9, "limit"),
    with_number("have exactly {} digits", "with_{}_digits", lambda n, k: len(digits(n)) == k, 1, 2, "size"),
)
INTEGER_CHANGES = (
    fixed("the square", "squares", lambda n: n * n),
    fixed("the cube", "cubes", lambda n: n**3),
    fixed("the double", "doubles", lambda n: 2 * n),
    fixed("the absolute value", "absolute_values", abs),
    fixed("the sum of the digits", "digit_sums", lambda n: sum(digits(n))),
    fixed("the product of the digits", "digit_products", lambda n: math.prod(digits(n))),
    fixed("the largest digit", "largest_digits", lambda n: max(digits(n))),
    fixed("the last digit", "last_digits", lambda n: digits(n)[-1]),
    fixed("the number of digits", "digit_counts", lambda n: len(digits(n))),
    fixed("the number of ones in the binary representation", "bit_counts", lambda n: bin(abs(n)).count("1")),
    fixed("the negation", "negations", lambda n: -n),
    fixed("half of it, rounded down,", "halves", lambda n: n // 2),
    with_number("the sum with {}", "plus_{}", lambda n, k: n + k, 1, 12, "offset"),
    with_number("the product with {}", "times_{}", lambda n, k: n * k, 2, 9, "factor"),
    with_number("the remainder modulo {}", "modulo_{}", lambda n, k: n % k, 2, 11, "modulus"),
    with_number("the distance to {}", "distances_to_{}", lambda n, k: abs(n - k), 0, 20, "target"),
    with_number("the larger of it and {}", "raised_to_{}", max, 0, 10, "floor"),
    with_number("the smaller of it and {}", "capped_at_{}", min, 5, 20, "cap"),
    with_number("the power with exponent {}", "powers_{}", lambda n, k: n**k, 2, 4, "exponent"),
)
# (piece, value for an empty list; None: the empty list is an error that the notes rule out)
INTEGER_SUMMARIES = (
    (fixed("the sum", "sum", sum), "0"),
    (fixed("the product", "product", math.prod), "1"),
    (fixed("the number", "count", len), "0"),
    (fixed("the number of distinct values", "distinct_count", lambda v: len(set(v))), "0"),
    (fixed("the sum of the squares", "square_sum", lambda v: sum(n * n for n in v)), "0"),
    (fixed("the largest", "largest", lambda v: max(v, default=None)), "None"),
    (fixed("the smallest", "smallest", lambda v: min(v, default=None)), "None"),
    (fixed("the last", "last", lambda v: v[-1] if v else None), "None"),
    (fixed("the first", "first", lambda v: v[0] if v else None), "None"),
    (fixed("the one closest to zero", "closest_to_zero", lambda v: min(v, key=abs, default=None)), "None"),
    (fixed("the difference between the largest and the smallest", "spread", lambda v: max(v) - min(v) if v else 0), "0"),
    (fixed("the average", "mean", lambda v: round(sum(v) / len(v), 2) if v else 0.0), "0.0"),
    (fixed("the median", "median", lambda v: _median(v)), "None"),
    (fixed("the greatest common divisor", "gcd", lambda v: math.gcd(*v)), "0"),
    (fixed("the alternating sum (first minus second plus third and so on)", "alternating_sum", lambda v: sum(v[::2]) - sum(v[1::2])), "0"),
    (fixed("the bitwise xor", "xor", lambda v: reduce(lambda a, b: a ^ b, v, 0)), "0"),
    (fixed("the second largest distinct value", "second_largest", lambda v: sorted(set(v))[-2] if len(set(v)) > 1 else None), "None"),
    (fixed("the most frequent value (the smallest one on ties)", "most_frequent", lambda v: min(set(v), key=lambda n: (-v.count(n), n), default=None)), "None"),
    (fixed("the length of the longest run of equal neighbours", "longest_equal_run", longest_run), "0"),
    (fixed("the largest sum of two neighbours", "largest_neighbour_sum", lambda v: max((a + b for a, b in pairwise(v)), default=None)), "None"),
    (fixed("the number of times the value goes up from one to the next", "rises", lambda v: sum(a < b for a, b in pairwise(v))), "0"),
)  # fmt: skip


def _median(values: list[int]) -> float | int | None:
    ordered, middle = sorted(values), len(values) // 2
    if not ordered:
        return None
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def letter(rng: Rng) -> str:
    """A letter that is common in English words."""
    return rng.choice("aeioustrnlpmcbdg")


def with_letter(phrase: str, name: str, apply: Callable[[str, str], bool]) -> Callable[[Rng], Piece]:
    """A piece with a letter in it ({}), as a constant or as a further argument."""

    def make(rng: Rng) -> Piece:
        if rng.random() < 0.35:
            param = Param("letter", "str", letter)
            return Piece(phrase.format("`letter`"), name.format(""), apply, (param,))
        value = letter(rng)
        return Piece(phrase.format(f"'{value}'"), name.format(value), lambda word: apply(word, value))

    return make


WORD_CONDITIONS = (
    fixed("start with a vowel", "starting_with_vowel", lambda w: w[:1].lower() in tuple(VOWELS)),
    fixed("end with a vowel", "ending_with_vowel", lambda w: w[-1:].lower() in tuple(VOWELS)),
    fixed("start with a capital letter", "capitalized", lambda w: w[:1].isupper()),
    fixed("have an even number of letters", "even_length", lambda w: len(w) % 2 == 0),
    fixed("have an odd number of letters", "odd_length", lambda w: len(w) % 2 == 1),
    fixed("are palindromes", "palindromic", lambda w: w.lower() == w.lower()[::-1]),
    fixed("have no repeated letter", "without_repeats", lambda w: len(set(w.lower())) == len(w)),
    fixed("have a double letter", "with_double_letter", lambda w: longest_run(list(w)) > 1),
    fixed("start and end with the same letter", "same_ends", lambda w: w[:1].lower() == w[-1:].lower()),
    fixed("have more consonants than vowels", "mostly_consonants", lambda w: 2 * vowels(w) < len(w)),
    fixed("have their letters in alphabetical order", "alphabetical", lambda w: list(w.lower()) == sorted(w.lower())),
    with_letter("start with {}", "starting_with_{}", lambda w, c: w.startswith(c)),
    with_letter("end with {}", "ending_with_{}", lambda w, c: w.endswith(c)),
    with_letter("contain {}", "containing_{}", lambda w, c: c in w),
    with_letter("do not contain {}", "without_{}", lambda w, c: c not in w),
    with_number("are longer than {} characters", "longer_than_{}", lambda w, k: len(w) > k, 2, 6, "limit"),
    with_number("are shorter than {} characters", "shorter_than_{}", lambda w, k: len(w) < k, 4, 7, "limit"),
    with_number("have exactly {} characters", "of_length_{}", lambda w, k: len(w) == k, 3, 6, "size"),
    with_number("have at least {} vowels", "with_{}_vowels", lambda w, k: vowels(w) >= k, 1, 3, "k"),
    with_number("have exactly {} consonants", "with_{}_consonants", lambda w, k: len(w) - vowels(w) == k, 2, 5, "k"),
)
WORD_CHANGES = (
    fixed("its reverse", "reversed_words", lambda w: w[::-1]),
    fixed("its upper-case form", "uppercased_words", str.upper),
    fixed("its capitalized form", "capitalized_words", str.capitalize),
    fixed("its first letter", "initials", lambda w: w[:1]),
    fixed("its last letter", "last_letters", lambda w: w[-1:]),
    fixed("its letters in alphabetical order", "sorted_letters", lambda w: "".join(sorted(w))),
    fixed("the word without its vowels", "words_without_vowels", lambda w: "".join(c for c in w if c.lower() not in VOWELS)),
    fixed("the word with its first letter moved to the end", "rotated_words", lambda w: w[1:] + w[:1]),
    fixed("the word followed by its length", "words_with_length", lambda w: f"{w}{len(w)}"),
    fixed("every second letter of it, starting with the first", "every_second_letter", lambda w: w[::2]),
    fixed("the word with its case swapped", "swapped_case", str.swapcase),
    fixed("the word with each letter doubled", "doubled_letters", lambda w: "".join(2 * c for c in w)),
    with_number("its first {} characters", "first_{}_characters", lambda w, k: w[:k], 1, 4, "size"),
    with_number("the word repeated {} times", "repeated_{}_times", lambda w, k: w * k, 2, 3, "times"),
)  # fmt: skip
WORD_NUMBERS = (
    fixed("the length", "length", len),
    fixed("the number of vowels", "vowel_count", vowels),
    fixed("the number of consonants", "consonant_count", lambda w: len(w) - vowels(w)),
    fixed("the number of distinct letters", "distinct_letters", lambda w: len(set(w.lower()))),
    fixed("the position of the first letter in the alphabet (a is 1)", "first_letter_position", lambda w: ord(w[0].lower()) - 96),
    fixed("the highest number of times one letter occurs", "max_letter_count", lambda w: max(Counter(w.lower()).values())),
)  # fmt: skip
WORD_SUMMARIES = (
    (fixed("the number", "count", len), "0", "int"),
    (fixed("the longest (the first one on ties)", "longest", lambda v: max(v, key=len, default=None)), "None", "Optional[str]"),
    (fixed("the shortest (the first one on ties)", "shortest", lambda v: min(v, key=len, default=None)), "None", "Optional[str]"),
    (fixed("the alphabetically first", "alphabetically_first", lambda v: min(v, default=None)), "None", "Optional[str]"),
    (fixed("the last", "last", lambda v: v[-1] if v else None), "None", "Optional[str]"),
    (fixed("the total number of characters", "total_length", lambda v: sum(map(len, v))), "0", "int"),
    (fixed("the total number of vowels", "total_vowels", lambda v: sum(map(vowels, v))), "0", "int"),
    (fixed("the average length", "average_length", lambda v: round(sum(map(len, v)) / len(v), 2) if v else 0.0), "0.0", "float"),
    (fixed("the concatenation", "joined", "".join), "an empty string", "str"),
    (fixed("the concatenation of the first letters", "acronym", lambda v: "".join(w[:1] for w in v)), "an empty string", "str"),
    (fixed("the number of distinct lengths", "distinct_lengths", lambda v: len(set(map(len, v)))), "0", "int"),
)  # fmt: skip
CHARACTER_CONDITIONS = (
    fixed("are vowels", "vowels", lambda c: c.lower() in VOWELS),
    fixed("are consonants", "consonants", lambda c: c.isalpha() and c.lower() not in VOWELS),
    fixed("are digits", "digits", str.isdigit),
    fixed("are upper-case letters", "uppercase", str.isupper),
    fixed("are lower-case letters", "lowercase", str.islower),
    fixed("are letters", "letters", str.isalpha),
    fixed("are neither letters nor digits", "symbols", lambda c: not c.isalnum()),
    fixed("are not spaces", "nonspaces", lambda c: c != " "),
    with_letter("are equal to {}", "equal_to_{}", lambda c, k: c == k),
    with_letter("come after {} in the alphabet", "after_{}", lambda c, k: c.isalpha() and c.lower() > k),
    with_letter("come before {} in the alphabet", "before_{}", lambda c, k: c.isalpha() and c.lower() < k),
)
