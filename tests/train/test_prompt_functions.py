"""Generated programming problems: many, distinct, well-formed, with examples that hold."""

import ast
import random
import re

import pytest

from jetspec_jax.evaluation.public_schema import CODE_PROMPT
from train.prompts.functions import BUILDERS, function_prompts, tidy
from train.prompts.problems.rendering import draw_examples
from train.prompts.problems.stories import undo


def test_many_distinct_problems_that_fit():
    texts = [prompt.text for prompt in function_prompts(1500, 0, max_chars=800)]
    assert len(set(texts)) == 1500
    assert max(map(len, texts)) <= 800
    names = {name for text in texts for name in re.findall(r"^def (\w+)\(", text, re.MULTILINE)}
    assert len(names) > 800
    assert 0.4 < sum(text.startswith(CODE_PROMPT.split("{}")[0]) for text in texts) / len(texts) < 0.7


def test_seed_decides():
    one, same, other = (function_prompts(20, seed, max_chars=800) for seed in (0, 0, 1))
    assert one == same != other


def test_shown_code_parses_and_names_its_function():
    for prompt in function_prompts(400, 3, max_chars=800):
        block = re.search(r"```python\n(.*)\n```", prompt.text, re.DOTALL)
        if block is None:
            continue
        *_, function = ast.parse(block[1]).body
        assert isinstance(function, ast.FunctionDef)
        assert len(function.name) > 1
        assert function.name + "(" in ast.get_docstring(function) or "Output:" in ast.get_docstring(function)


def test_every_builder_makes_problems_whose_examples_hold():
    for build in BUILDERS:
        made = 0
        for seed in range(60):
            rng = random.Random(seed)
            try:
                problem = build(rng)
                examples = draw_examples(problem, rng)
            except ValueError:
                continue  # the parts do not fit together
            made += 1
            for example in examples:
                assert repr(problem.solve(*map(ast.literal_eval, example.arguments))) == example.result
            assert problem.given
            assert problem.task[0].islower()
        assert made > 15, build.__name__


def test_inverse_of_a_shown_helper():
    seen = set()
    for seed in range(40):
        rng = random.Random(seed)
        problem = undo(rng)
        namespace = {}
        exec(problem.helper, namespace)
        encode = namespace[problem.name.partition("_")[2]]
        encoded = problem.params[0].sample(rng)
        assert encode(problem.solve(encoded)) == encoded
        assert problem.solve(encode("planets")) == "planets"
        seen.add(problem.helper.splitlines()[2])
    assert len(seen) > 4


def test_tidy_names():
    assert tidy("entries_with_with__vowels_key") == "entries_with_vowels_key"
    assert tidy("count_of_with_2_digits") == "count_with_2_digits"


@pytest.mark.parametrize(("num", "max_chars"), [(-1, 800), (5, 100)])
def test_impossible_arguments(num, max_chars):
    with pytest.raises(ValueError, match=str(max_chars)):
        function_prompts(num, 0, max_chars=max_chars)
