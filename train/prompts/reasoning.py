"""Maths and code tasks of the package reasoning-gym: grade-school word problems, other generated maths, code.

Generated problem i of a set depends on `seed + i` only (plus, for the word problems, on the set's seed), so ranges of
seeds decide what is new. Evaluation owns `EVALUATION_SEEDS`; everything here starts above them.
"""

import gzip
import json
import random
import re
from collections.abc import Iterator
from typing import Any

from jetspec_jax.evaluation.benchmarks import EVALUATION_SEEDS, GENERATED_PER_SEED, generator, gsm_symbolic
from jetspec_jax.evaluation.public_schema import MATHS_SUFFIX
from jetspec_jax.evaluation.sharegpt import package_file
from train.prompts.prompt import Prompt

WORD_PROBLEMS = "gsm_symbolic"
# Set -> share among the other maths. Every set here makes more than 100 problems a second.
OTHER_MATHS = {
    "basic_arithmetic": 3, "chain_sum": 2, "products": 2, "decimal_arithmetic": 1, "decimal_chain_sum": 1,
    "fraction_simplification": 2, "gcd": 2, "lcm": 2, "leg_counting": 2, "power_function": 1, "prime_factorization": 2,
    "time_intervals": 2, "calendar_arithmetic": 2, "dice": 1, "simple_equations": 3, "polynomial_multiplication": 1,
    "simple_integration": 1, "complex_arithmetic": 1, "simple_geometry": 3, "number_sequence": 2, "coin_flip": 1,
    "count_primes": 1, "base_conversion": 1, "number_sorting": 1, "letter_counting": 1, "family_relationships": 1,
    "bitwise_arithmetic": 1, "count_bits": 1, "propositional_logic": 1, "advanced_geometry": 1,
}  # fmt: skip
SUFFIX_SHARE = 0.6  # of the other maths; the rest is asked as it is
# "Give the result as ..." contradicts a request for steps in front of the answer.
_ANSWER_ONLY = re.compile(
    r"\s*(Give only|Only reply|Reply only|Respond only|Respond with only|Return only|Your output should be only)"
    r"[^.\n]*\.?"
)
SPEC_LINES = re.compile(r"\n\s*\n+")
CODE_TASK_FORMS = (
    "{task}\n\n{spec}\n\nWrite a Python function `{signature}` that solves this.",
    "Write a Python function for the following task.\n\n{task}\n\n{spec}\n\n```python\ndef {signature}:\n```",
    "Task: {task}\n{spec}\n\nSolve it in Python and explain your code briefly.",
    '```python\ndef {signature}:\n    """{task}\n\n{indented_spec}\n    """\n```\nComplete this function.',
    "Explain step by step what this Python code does.\n\n```python\n{code}\n```",
    "Find possible bugs in this code and suggest improvements.\n\n```python\n{code}\n```",
    "Write unit tests for this code.\n\n```python\n{code}\n```",
)


def word_problems(num: int, seed: int) -> list[Prompt]:
    """`num` distinct GSM-symbolic problems with the maths suffix, from seeds that evaluation never uses."""
    texts: dict[str, None] = {}
    first = training_seed(seed)
    while len(texts) < num:
        for text in gsm_symbolic(first):
            texts[text] = None
            if len(texts) == num:
                break
        first += GENERATED_PER_SEED
    return [Prompt(f"maths/{WORD_PROBLEMS}", text) for text in texts]


def other_maths(num: int, seed: int) -> list[Prompt]:
    """`num` problems mixed from `OTHER_MATHS` by their shares; small sets repeat themselves, repeats are left out."""
    maths = generator()
    rng = random.Random(seed)
    total = sum(OTHER_MATHS.values())
    prompts: dict[str, Prompt] = {}
    for name, share in OTHER_MATHS.items():
        wanted = -(-num * share // total)
        # Twice as many tries as problems: some sets have few different ones.
        problems = maths.create_dataset(name, seed=training_seed(seed), size=2 * wanted)
        found = 0
        for index in range(2 * wanted):
            text = _posed(problems[index]["question"], rng)
            if text not in prompts:
                prompts[text] = Prompt(f"maths/{name}", text)
                found += 1
            if found == wanted:
                break
    mixed = list(prompts.values())
    rng.shuffle(mixed)
    return mixed[:num]


def training_seed(seed: int) -> int:
    """First seed of the generated problems of training run `seed`; runs are far apart."""
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return EVALUATION_SEEDS.stop * (1 + seed)


def _posed(question: str, rng: random.Random) -> str:
    if rng.random() < SUFFIX_SHARE:
        return _ANSWER_ONLY.sub("", question).strip() + MATHS_SUFFIX
    return question.strip()


def code_tasks(num: int, seed: int, *, max_chars: int) -> list[Prompt]:
    """Up to `num` prompts made from the package's code tasks in several forms; none longer than `max_chars`.

    The stored code is only shown, never run.
    """
    rng = random.Random(seed)
    prompts = []
    for task in _stored_tasks():
        signature = re.search(r"def (main_solution\([^)]*\))", task["code_sample"])
        if signature is None:
            continue
        spec = SPEC_LINES.sub("\n", task["input_output_spec"].strip())
        fields = {
            "task": task["task_description"].strip(),
            "spec": spec,
            "indented_spec": "\n".join("    " + line for line in spec.splitlines()),
            "signature": signature[1],
            "code": task["code_sample"].strip(),
        }
        texts = [form.format(**fields) for form in CODE_TASK_FORMS]
        fitting = [text for text in texts if len(text) <= max_chars]
        prompts += [Prompt("code-tasks", text) for text in rng.sample(fitting, min(3, len(fitting)))]
    rng.shuffle(prompts)
    return prompts[:num]


def _stored_tasks() -> Iterator[dict[str, Any]]:
    path = package_file("reasoning_gym", "data/codeio.jsonl.gz", distribution="reasoning-gym")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
