"""All training prompts of a run: every source, evaluation prompts taken out, shuffled.

prompts = collect_prompts(PromptsConfig(num_sharegpt=70_000, num_maths=40_000, ...))
"""

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jetspec_jax.evaluation.benchmarks import Benchmark, load_benchmark
from jetspec_jax.evaluation.sharegpt import installed_file
from train.prompts.dedupe import drop_evaluation_prompts
from train.prompts.docstrings import docstring_prompts
from train.prompts.functions import function_prompts
from train.prompts.prompt import Prompt
from train.prompts.reasoning import code_tasks, other_maths, word_problems
from train.prompts.sharegpt import sharegpt_prompts

EVALUATED_GENERATED = 1_000  # GSM-symbolic evaluation prompts that training is checked against


@dataclass(frozen=True, kw_only=True)
class PromptsConfig:
    """How many prompts of which source. The counts hold before evaluation prompts are taken out.

    Attributes:
        num_sharegpt: human turns of training conversations; fewer if there are fewer (about 45k fit).
        num_maths: GSM-symbolic word problems (any number).
        num_other_maths: other generated maths; fewer where the small sets run dry.
        num_code_tasks: prompts from stored code tasks; fewer if there are fewer (about 5.5k fit).
        num_docstrings: prompts from installed packages; fewer if there are fewer (56k in the development environment).
        num_functions: generated programming problems (any number).
        seed: of every choice and of the shuffle.
        min_chars: shorter ShareGPT turns are left out.
        max_chars: longer prompts are left out.
        sharegpt_path: a ShareGPT file; None takes the installed package.
    """

    num_sharegpt: int
    num_maths: int
    num_other_maths: int
    num_code_tasks: int
    num_docstrings: int
    num_functions: int
    seed: int = 0
    min_chars: int = 12
    max_chars: int = 800
    sharegpt_path: Path | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.startswith("num_") and value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        if not 0 < self.min_chars < self.max_chars:
            raise ValueError(f"0 < min_chars < max_chars must hold, got {self.min_chars} and {self.max_chars}")


def collect_prompts(config: PromptsConfig) -> list[Prompt]:
    """Training prompts, shuffled; none equals or nearly equals an evaluation prompt."""
    return collect_with_report(config)[0]


def collect_with_report(config: PromptsConfig) -> tuple[list[Prompt], dict[str, Any]]:
    """The same, and counts: {"found": by source, "dropped": by reason, "kept": by source}."""
    found = _found(config)
    kept, dropped = drop_evaluation_prompts(found, evaluation_sets(config.sharegpt_path))
    random.Random(config.seed).shuffle(kept)
    return kept, {"found": by_group(found), "dropped": dict(dropped), "kept": by_group(kept)}


def evaluation_sets(sharegpt_path: Path | None = None) -> list[Benchmark]:
    """Whole evaluation sets: everything that `load_benchmark` could return, except for endless GSM-symbolic."""
    path = None if sharegpt_path is None else str(sharegpt_path)
    return [
        load_benchmark("humaneval"),
        load_benchmark("mt-bench"),
        load_benchmark("sharegpt", path=path, min_chars=1, max_chars=10_000),
        load_benchmark("gsm-symbolic", num_prompts=EVALUATED_GENERATED),
    ]


def by_group(prompts: list[Prompt]) -> dict[str, int]:
    """Number of prompts per source group ("maths/gcd" counts as "maths", "maths/gsm_symbolic" as itself)."""
    return dict(Counter(p.source if p.source.endswith("gsm_symbolic") else p.source.split("/")[0] for p in prompts))


def _found(config: PromptsConfig) -> list[Prompt]:
    seed, limit = config.seed, config.max_chars
    prompts: list[Prompt] = []
    if config.num_sharegpt:
        path = installed_file() if config.sharegpt_path is None else config.sharegpt_path
        turns = sharegpt_prompts(path, min_chars=config.min_chars, max_chars=limit)
        prompts += random.Random(seed).sample(turns, min(config.num_sharegpt, len(turns)))
    if config.num_maths:
        prompts += word_problems(config.num_maths, seed)
    if config.num_other_maths:
        prompts += other_maths(config.num_other_maths, seed)
    if config.num_code_tasks:
        prompts += code_tasks(config.num_code_tasks, seed, max_chars=limit)
    if config.num_docstrings:
        prompts += docstring_prompts(config.num_docstrings, seed, max_chars=limit)
    if config.num_functions:
        prompts += function_prompts(config.num_functions, seed, max_chars=limit)
    return [prompt for prompt in prompts if len(prompt.text) <= limit]
