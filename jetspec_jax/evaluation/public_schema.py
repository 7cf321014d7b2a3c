"""The seven benchmarks of the paper in their public schemas (handbook 8.1): rows of a local file or of a hub data set.

Local files are JSON (an array of objects) or JSON lines, plain or gzipped. Nothing else is read; hub data sets need the
package `datasets`.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MATHS_SUFFIX = "\nPlease reason step by step, and put your final answer within \\boxed{}."
CODE_PROMPT = "Write a Python solution for the following problem that passes its tests.\n\n```python\n{}\n```"

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Schema:
    """How one benchmark is published.

    Attributes:
        hf_id: a hub data set in this schema.
        config: its configuration, if it has several.
        split: the part that is evaluated.
        prompt: user message of a row; `KeyError` if the row lacks a field.
    """

    hf_id: str
    split: str
    prompt: Callable[[Row], str]
    config: str | None = None


def _mbpp(row: Row) -> str:
    if "prompt" in row:  # the sanitized configuration
        return row["prompt"]
    return f"{row['text']}\nThe code has to pass these tests:\n\n" + "\n".join(row["test_list"])


def _live_code_bench(row: Row) -> str:
    if row["starter_code"]:
        return f"{row['question_content']}\n\nStart from this code:\n```python\n{row['starter_code']}\n```"
    return f"{row['question_content']}\n\nWrite a Python program that reads standard input and writes standard output."


SCHEMAS = {
    "aime25": Schema(hf_id="MathArena/aime_2025", split="train", prompt=lambda row: row["problem"] + MATHS_SUFFIX),
    "gsm8k": Schema(
        hf_id="openai/gsm8k", config="main", split="test", prompt=lambda row: row["question"] + MATHS_SUFFIX
    ),
    "humaneval": Schema(
        hf_id="openai/openai_humaneval", split="test", prompt=lambda row: CODE_PROMPT.format(row["prompt"].strip("\n"))
    ),
    "livecodebench": Schema(hf_id="livecodebench/code_generation_lite", split="test", prompt=_live_code_bench),
    "math-500": Schema(hf_id="HuggingFaceH4/MATH-500", split="test", prompt=lambda row: row["problem"] + MATHS_SUFFIX),
    "mbpp": Schema(hf_id="google-research-datasets/mbpp", config="sanitized", split="test", prompt=_mbpp),
    "mt-bench": Schema(
        hf_id="HuggingFaceH4/mt_bench_prompts",
        split="train",
        # The hub calls the turns "prompt", the original file "turns".
        prompt=lambda row: (row["turns"] if "turns" in row else row["prompt"])[0],
    ),
}


def read_prompts(name: str, path: str) -> list[str]:
    """User messages of benchmark `name` from `path`, a local file or a Hugging Face id, in its order.

    Raises:
        FileNotFoundError: `path` is neither an existing file nor looks like a hub id.
        ValueError: a row lacks a field of the schema, or there is no row.
        ModuleNotFoundError: a hub id without the package `datasets`.
    """
    schema = SCHEMAS[name]
    prompts = []
    for index, row in enumerate(_rows(schema, path)):
        try:
            prompts.append(schema.prompt(row))
        except KeyError as error:
            raise ValueError(f"{path}: row {index} has no field {error} of {name!r}; fields: {sorted(row)}") from error
    if not prompts:
        raise ValueError(f"{path} has no rows")
    return prompts


def _rows(schema: Schema, path: str) -> Iterable[Row]:
    file = Path(path)
    if file.is_file():
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
        if text.lstrip().startswith("["):
            return json.loads(text)
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", path) or path.endswith((".json", ".jsonl", ".gz")):
        raise FileNotFoundError(f"{path!r} is neither a file nor a Hugging Face id ('org/name')")
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{path!r} is no local file, and hub data sets need: pip install datasets") from error
    return datasets.load_dataset(path, schema.config, split=schema.split)
