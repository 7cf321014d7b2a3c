"""Training prompts: every source, the split from evaluation, what is taken out."""

import json
from collections import Counter

import pytest

from jetspec_jax.evaluation.benchmarks import EVALUATION_SEEDS, GENERATED_PER_SEED, Benchmark, load_benchmark
from jetspec_jax.evaluation.public_schema import CODE_PROMPT, MATHS_SUFFIX
from jetspec_jax.evaluation.sharegpt import is_held_out
from train.prompts import reasoning
from train.prompts.collect import PromptsConfig, collect_with_report
from train.prompts.dedupe import drop_evaluation_prompts
from train.prompts.docstrings import docstring_prompts
from train.prompts.prompt import Prompt
from train.prompts.sharegpt import is_junk, sharegpt_prompts

MODULE = '''
def clip(values: list[int], low: int = 0) -> list[int]:
    """Return the values, each raised to at least the lower limit.

    >>> clip([-1, 2])
    [0, 2]
    """
    return [max(value, low) for value in values]

def _private(value):
    """Nobody should ask about this one, it is private."""
    return value

class Box:
    def width(self):
        """Width of the box in metres, measured at the bottom."""
        return self.right - self.left
'''


@pytest.fixture
def sharegpt_file(tmp_path):
    """Ten conversations of both sides, each with three human turns."""
    numbers = [n for n in range(10_000) if is_held_out(f"c{n}")][:4] + [
        n for n in range(40) if not is_held_out(f"c{n}")
    ][:6]
    data = [
        {
            "id": f"c{n}_0",
            "conversations": [
                {"from": "human", "value": f"How do I plant a tree number {n} in the garden?"},
                {"from": "gpt", "value": "Dig."},
                {"from": "human", "value": "please continue"},
                {"from": "human", "value": f"And what about the flowers of bed {n}?"},
            ],
        }
        for n in numbers
    ]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def code_folder(tmp_path):
    """A folder with a module, a copy of it, a broken file and folders that must be skipped."""
    root = tmp_path / "code"
    for folder in ("", "human_eval/", "package/tests/"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "module.py").write_text(MODULE.replace("clip", "hidden") if folder else MODULE)
    (root / "copy.py").write_text(MODULE)
    (root / "broken.py").write_text("def broken(:\n")
    return root


class TestShareGpt:
    def test_all_turns_of_training_conversations_and_no_others(self, sharegpt_file):
        prompts = sharegpt_prompts(sharegpt_file, min_chars=12, max_chars=200)
        assert Counter(prompt.text.split()[0] for prompt in prompts) == {"How": 6, "And": 6}
        held_out = set(load_benchmark("sharegpt", path=str(sharegpt_file)).prompts)
        assert len(held_out) == 4
        assert not held_out & {prompt.text for prompt in prompts}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("continue", True),
            ("Please continue.", True),
            ("thank you!", True),
            ("1 2 3 4 5 6 7 8", True),
            ("continue the story with a dragon that cannot fly", False),
            ("next week I travel to Rome, what should I see?", False),
        ],
    )
    def test_junk(self, text, expected):
        assert is_junk(text) is expected

    def test_repeated_turns_count_once(self, tmp_path):
        stems = [f"c{n}" for n in range(40) if not is_held_out(f"c{n}")][:2]
        turns = ["What is a   cat doing?", "what is a cat doing?"]
        data = [{"id": s, "conversations": [{"from": "human", "value": t}]} for s, t in zip(stems, turns, strict=True)]
        (tmp_path / "s.json").write_text(json.dumps(data))
        assert len(sharegpt_prompts(tmp_path / "s.json", min_chars=5, max_chars=100)) == 1


class TestReasoning:
    def test_training_and_evaluation_seeds_are_disjoint(self):
        last_evaluated = EVALUATION_SEEDS.stop - 1
        assert reasoning.training_seed(0) > last_evaluated
        with pytest.raises(ValueError, match="-1"):
            reasoning.training_seed(-1)
        # The last block of evaluation ends before the first seed of training.
        assert (len(EVALUATION_SEEDS) // GENERATED_PER_SEED) * GENERATED_PER_SEED <= reasoning.training_seed(0)

    def test_word_problems_are_distinct_and_have_the_suffix(self):
        texts = [prompt.text for prompt in reasoning.word_problems(300, 0)]
        assert len(set(texts)) == 300
        assert all(text.endswith(MATHS_SUFFIX) for text in texts)
        # Other seeds may still meet the same numbers; those texts are dropped later.
        benchmark = load_benchmark("gsm-symbolic", num_prompts=300)
        kept, dropped = drop_evaluation_prompts([Prompt("maths/gsm_symbolic", text) for text in texts], [benchmark])
        assert not {prompt.text for prompt in kept} & set(benchmark.prompts)
        assert dropped.total() < 15

    def test_other_maths_mixes_its_sets(self):
        prompts = reasoning.other_maths(300, 0)
        assert {prompt.source for prompt in prompts} == {f"maths/{name}" for name in reasoning.OTHER_MATHS}
        assert 100 < sum(prompt.text.endswith(MATHS_SUFFIX) for prompt in prompts) < 250

    def test_code_tasks_fit(self):
        prompts = reasoning.code_tasks(500, 0, max_chars=700)
        assert len({prompt.text for prompt in prompts}) == 500
        assert all("main_solution" in prompt.text or "Python" in prompt.text for prompt in prompts)
        assert max(len(prompt.text) for prompt in prompts) <= 700


class TestDocstrings:
    def test_forms_of_a_function(self, code_folder):
        texts = {p.text for seed in range(20) for p in docstring_prompts(99, seed, max_chars=900, roots=[code_folder])}
        stub = MODULE[1 : MODULE.index("    return")].rstrip()
        assert any(text == CODE_PROMPT.replace("{}", stub) for text in texts)
        assert any(text.startswith("Write a Python function `clip(") for text in texts)
        assert any("max(value, low)" in text and '"""' not in text for text in texts)

    def test_private_skipped_and_broken_sources_are_left_out(self, code_folder):
        texts = "".join(
            p.text for seed in range(9) for p in docstring_prompts(99, seed, max_chars=900, roots=[code_folder])
        )
        assert "clip" in texts
        assert "_private" not in texts
        assert "hidden" not in texts
        assert "broken" not in texts

    def test_methods_are_only_asked_about_with_their_body(self, code_folder):
        texts = [p.text for s in range(9) for p in docstring_prompts(99, s, max_chars=900, roots=[code_folder])]
        methods = [text for text in texts if "width" in text]
        assert methods
        assert all("self.right - self.left" in text for text in methods)

    def test_copies_count_once_and_length_is_limited(self, code_folder):
        prompts = docstring_prompts(99, 0, max_chars=900, roots=[code_folder])
        assert len(prompts) <= 6  # two functions, three prompts each
        assert docstring_prompts(99, 0, max_chars=50, roots=[code_folder]) == []


class TestDedupe:
    LONG = "Name the three largest lakes of the country and say in one sentence each how deep they are"
    SETS = (
        Benchmark("mt-bench", (LONG,)),
        Benchmark("humaneval", (CODE_PROMPT.replace("{}", 'def add_up(a, b):\n    """Add two numbers."""'),)),
        Benchmark("gsm-symbolic", (f"Tom had {'big ' * 14} apples. How many?{MATHS_SUFFIX}",)),
    )

    @pytest.mark.parametrize(
        ("prompt", "reason"),
        [
            pytest.param(Prompt("sharegpt", LONG.upper() + "!"), "equal to mt-bench", id="case-and-punctuation"),
            pytest.param(Prompt("sharegpt", "Hey. " + LONG[:75] + "?"), "like mt-bench", id="13-words-shared"),
            pytest.param(Prompt("sharegpt", LONG[:50]), None, id="few-words-shared"),
            pytest.param(
                Prompt("docstrings", "```python\ndef add_up(x):\n```"), "function of humaneval", id="same-name"
            ),
            pytest.param(Prompt("functions", CODE_PROMPT.replace("{}", "def sum_up(a): ...")), None, id="instruction"),
            pytest.param(
                Prompt("maths/gsm_symbolic", f"Tom had {'big ' * 14} pears.{MATHS_SUFFIX}"), None, id="template"
            ),
            pytest.param(
                Prompt("maths/gsm_symbolic", f"Tom had {'big ' * 14} apples. How many?{MATHS_SUFFIX}"),
                "equal to gsm-symbolic",
                id="same-numbers",
            ),
            pytest.param(Prompt("sharegpt", f"Tom had {'big ' * 14} pears."), "like gsm-symbolic", id="other-source"),
        ],
    )
    def test_rules(self, prompt, reason):
        kept, dropped = drop_evaluation_prompts([prompt], self.SETS)
        assert kept == ([prompt] if reason is None else [])
        assert dict(dropped) == ({} if reason is None else {reason: 1})

    def test_repeated_prompts(self):
        prompts = [Prompt("a", "same text"), Prompt("b", "same text"), Prompt("a", "other text")]
        kept, dropped = drop_evaluation_prompts(prompts, self.SETS)
        assert [prompt.source for prompt in kept] == ["a", "a"]
        assert dict(dropped) == {"repeated": 1}

    def test_humaneval_itself_is_dropped_completely(self):
        humaneval = load_benchmark("humaneval")
        prompts = [Prompt("functions", "Solve this:\n" + text) for text in humaneval.prompts]
        kept, dropped = drop_evaluation_prompts(prompts, [humaneval])
        assert kept == []
        assert dropped.total() == 164


class TestCollect:
    def counts(self, **changes):
        zero = dict.fromkeys(
            ("num_sharegpt", "num_maths", "num_other_maths", "num_code_tasks", "num_docstrings", "num_functions"), 0
        )
        return PromptsConfig(**{**zero, **changes})

    def test_counts_sources_and_report(self, sharegpt_file):
        config = self.counts(num_sharegpt=8, num_maths=40, num_other_maths=40, num_code_tasks=30, num_functions=30)
        prompts, report = collect_with_report(
            PromptsConfig(**{**vars(config), "sharegpt_path": sharegpt_file, "max_chars": 700})
        )
        assert report["found"]["sharegpt"] == 8
        assert sum(report["kept"].values()) == len(prompts)
        assert sum(report["found"].values()) == len(prompts) + sum(report["dropped"].values())
        assert {"sharegpt", "maths/gsm_symbolic", "code-tasks", "functions"} <= report["kept"].keys()
        assert len({prompt.source for prompt in prompts[:20]}) > 3  # shuffled

    @pytest.mark.parametrize(
        ("changes", "message"),
        [({"num_maths": -1}, "num_maths must not be negative, got -1"), ({"min_chars": 900}, "900 and 800")],
    )
    def test_impossible_config(self, changes, message):
        with pytest.raises(ValueError, match=message):
            self.counts(**changes)

    @pytest.mark.parametrize(("source", "text"), [("", "text"), ("functions", "  ")])
    def test_empty_prompt(self, source, text):
        with pytest.raises(ValueError, match="needs a source and a text"):
            Prompt(source, text)
