"""Evaluation prompts: the installed sets, the public schemas, the held-out split."""

import gzip
import json
import sys

import pytest

from jetspec_jax.evaluation.benchmarks import BENCHMARKS, EVALUATION_SEEDS, Benchmark, load_benchmark
from jetspec_jax.evaluation.public_schema import MATHS_SUFFIX, SCHEMAS
from jetspec_jax.evaluation.sharegpt import clean, conversations, entries, is_english, is_held_out

ROWS = {
    "aime25": ({"problem": "Find x."}, "Find x." + MATHS_SUFFIX),
    "gsm8k": ({"question": "How many?", "answer": "#### 3"}, "How many?" + MATHS_SUFFIX),
    "math-500": ({"problem": "Compute 1+1."}, "Compute 1+1." + MATHS_SUFFIX),
    "mbpp": ({"prompt": "Write a function.", "test_list": ["assert f()"]}, "Write a function."),
    "mt-bench": ({"turns": ["first", "second"]}, "first"),
}


def human(text):
    return {"from": "human", "value": text}


def share(path, entry_list, *, tail="]"):
    path.write_text("[" + ",\n".join(map(json.dumps, entry_list)) + tail)
    return path


def ids(*, held_out, count):
    found = (f"c{number}" for number in range(10_000))
    return [each for each in found if is_held_out(each) == held_out][:count]


class TestInstalledSets:
    def test_humaneval_has_164_fenced_problems(self):
        benchmark = load_benchmark("humaneval")
        assert isinstance(benchmark, Benchmark)
        assert len(set(benchmark.prompts)) == 164
        assert all(prompt.count("```") == 2 and "\n```python\n" in prompt for prompt in benchmark.prompts)
        assert "def has_close_elements(numbers: List[float]" in benchmark.prompts[0]

    def test_mt_bench_has_80_first_turns(self):
        prompts = load_benchmark("mt-bench").prompts
        assert len(set(prompts)) == 80
        assert prompts[0].startswith("Compose an engaging travel blog post")

    def test_sharegpt_first_turns_fit_and_are_english(self):
        prompts = load_benchmark("sharegpt", num_prompts=128).prompts
        assert len(set(prompts)) == 128
        assert all(20 <= len(prompt) <= 800 and is_english(prompt) for prompt in prompts)

    def test_gsm_symbolic_ends_with_the_suffix_and_depends_on_the_seed(self):
        first, again, other = (load_benchmark("gsm-symbolic", num_prompts=8, seed=s).prompts for s in (0, 0, 1))
        assert first == again
        assert not set(first) & set(other)
        assert all(prompt.endswith(MATHS_SUFFIX) for prompt in first)


class TestArguments:
    def test_unknown_name_lists_the_known_ones(self):
        with pytest.raises(ValueError, match=r"unknown benchmark 'gsm9k'; known: .*gsm8k.*sharegpt"):
            load_benchmark("gsm9k")

    @pytest.mark.parametrize("count", [0, -1])
    def test_num_prompts_must_be_positive(self, count):
        with pytest.raises(ValueError, match=f"positive, got {count}"):
            load_benchmark("humaneval", num_prompts=count)

    def test_more_prompts_than_there_are(self):
        with pytest.raises(ValueError, match="has 80 prompts, asked for 81"):
            load_benchmark("mt-bench", num_prompts=81)

    def test_endless_set_needs_a_number(self):
        with pytest.raises(ValueError, match="give num_prompts"):
            load_benchmark("gsm-symbolic")

    @pytest.mark.parametrize("seed", [-1, 100])
    def test_seed_outside_the_evaluation_range(self, seed):
        assert range(1_000_000) == EVALUATION_SEEDS
        with pytest.raises(ValueError, match=rf"\[0, 100\), got {seed}"):
            load_benchmark("gsm-symbolic", num_prompts=1, seed=seed)

    def test_a_set_without_a_package_needs_a_path(self):
        with pytest.raises(ValueError, match="openai/gsm8k"):
            load_benchmark("gsm8k")

    def test_sub_sample_is_fixed_by_the_seed(self):
        one, same, other = (load_benchmark("mt-bench", num_prompts=10, seed=seed).prompts for seed in (0, 0, 1))
        assert one == same != other
        assert one != load_benchmark("mt-bench").prompts[:10]


class TestPublicSchemas:
    @pytest.mark.parametrize("name", ROWS)
    def test_reads_json_lines(self, name, tmp_path):
        row, expected = ROWS[name]
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row) + "\n\n" + json.dumps(row) + "\n")
        assert load_benchmark(name, path=str(path)).prompts == (expected, expected)

    def test_reads_gzipped_json_arrays(self, tmp_path):
        row, expected = ROWS["gsm8k"]
        path = tmp_path / "rows.json.gz"
        path.write_bytes(gzip.compress(json.dumps([row]).encode()))
        assert load_benchmark("gsm8k", path=str(path)).prompts == (expected,)

    def test_full_mbpp_shows_its_tests(self):
        prompt = SCHEMAS["mbpp"].prompt({"text": "Add two numbers.", "test_list": ["assert add(1, 2) == 3"]})
        assert prompt.startswith("Add two numbers.\n")
        assert prompt.endswith("assert add(1, 2) == 3")

    @pytest.mark.parametrize(("starter", "expected"), [("class S:\n    pass", "class S"), ("", "standard input")])
    def test_live_code_bench_with_and_without_starter_code(self, starter, expected):
        assert expected in SCHEMAS["livecodebench"].prompt({"question_content": "Q", "starter_code": starter})

    def test_hub_schema_of_mt_bench(self):
        assert SCHEMAS["mt-bench"].prompt({"prompt": ["one", "two"]}) == "one"

    def test_missing_field_names_row_and_fields(self, tmp_path):
        path = tmp_path / "rows.jsonl"
        path.write_text('{"query": "?"}')
        with pytest.raises(ValueError, match=r"row 0 has no field 'question' of 'gsm8k'; fields: \['query'\]"):
            load_benchmark("gsm8k", path=str(path))

    def test_empty_file(self, tmp_path):
        (tmp_path / "rows.jsonl").write_text("")
        with pytest.raises(ValueError, match="no rows"):
            load_benchmark("gsm8k", path=str(tmp_path / "rows.jsonl"))

    @pytest.mark.parametrize("path", ["nowhere.jsonl", "folder/nowhere.jsonl", "a/b/c"])
    def test_missing_file(self, path):
        with pytest.raises(FileNotFoundError, match="neither a file nor a Hugging Face id"):
            load_benchmark("gsm8k", path=path)

    def test_hub_id_without_datasets(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(ModuleNotFoundError, match="pip install datasets"):
            load_benchmark("gsm8k", path="openai/gsm8k")

    def test_every_benchmark_of_the_paper_is_known(self):
        assert {"gsm8k", "math-500", "aime25", "humaneval", "mbpp", "livecodebench", "mt-bench"} <= set(BENCHMARKS)


class TestShareGpt:
    def test_all_parts_of_a_conversation_are_on_one_side(self):
        for stem in (*ids(held_out=True, count=5), *ids(held_out=False, count=5)):
            assert len({is_held_out(f"{stem}_{part}") for part in range(50)} | {is_held_out(stem)}) == 1

    def test_about_one_in_twenty_is_held_out(self):
        assert 0.04 < sum(is_held_out(f"id{number}_0") for number in range(5000)) / 5000 < 0.06

    @pytest.mark.parametrize("read_chars", [1, 7, 64, 1 << 20])
    def test_reading_stops_at_the_tear(self, tmp_path, read_chars):
        whole = [{"id": str(n), "conversations": [human("x" * 40)]} for n in range(3)]
        path = share(tmp_path / "torn.json", whole, tail=',\n{"id": "3", "conversations": [{"from": "human", "val')
        assert [entry["id"] for entry in entries(path, read_chars=read_chars)] == ["0", "1", "2"]

    def test_whole_and_empty_arrays(self, tmp_path):
        assert [entry["id"] for entry in entries(share(tmp_path / "a.json", [{"id": "0"}]))] == ["0"]
        assert list(entries(share(tmp_path / "b.json", []))) == []

    def test_other_files_are_refused(self, tmp_path):
        (tmp_path / "x.json").write_text('{"id": 1}')
        with pytest.raises(ValueError, match="no JSON array"):
            list(entries(tmp_path / "x.json"))

    def test_only_first_turns_of_held_out_conversations(self, tmp_path):
        (held, other_held), (trained,) = ids(held_out=True, count=2), ids(held_out=False, count=1)
        first, later = human("How do I bake a cake at home?"), human("And what about a large pie?")
        path = share(
            tmp_path / "s.json",
            [
                {"id": f"{held}_0", "conversations": [first, {"from": "gpt", "value": "So."}, later]},
                {"id": f"{held}_7", "conversations": [later]},
                {"id": f"{other_held}_0", "conversations": [{"from": "gpt", "value": "So."}, later]},
                {"id": f"{trained}_0", "conversations": [human("What is the weather like today?")]},
            ],
        )
        assert load_benchmark("sharegpt", path=str(path)).prompts == (first["value"],)

    def test_length_filters(self, tmp_path):
        texts = ["what is it", "what is it " * 5, "what is it " * 50]
        held = ids(held_out=True, count=3)
        path = share(
            tmp_path / "s.json",
            [{"id": each, "conversations": [human(text)]} for each, text in zip(held, texts, strict=True)],
        )
        assert load_benchmark("sharegpt", path=str(path), max_chars=100).prompts == (texts[1].strip(),)
        assert len(load_benchmark("sharegpt", path=str(path), min_chars=1).prompts) == 3

    def test_conversation_without_human_turn(self, tmp_path):
        path = share(tmp_path / "s.json", [{"id": "a_0", "conversations": []}])
        (conversation,) = conversations(path)
        assert (conversation.human_turns, conversation.starts) == ((), False)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("How do I sort a list?", True),
            ("sort list", True),
            ("Écris une chanson à propos d'été", False),
            ("escribe una carta para mi madre", False),
            ("写一个函数", False),
            ("", False),
        ],
    )
    def test_english(self, text, expected):
        assert is_english(text) is expected

    def test_extension_artefacts_are_removed(self):
        assert clean(" What is a cat?\nAnswer in English.지금 번역하기 ") == "What is a cat?"
