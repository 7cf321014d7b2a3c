"""The command line on a tiny checkpoint: what it prints, its exit status, and bad input in one line."""

import io
import json
import re

import jax
import pytest

from jetspec_jax.cli import _parser, main
from jetspec_jax.commands.arguments import draft_device_from, drafting_from
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.evaluation.phases import PhaseTimes
from jetspec_jax.evaluation.sample_prompts import SAMPLE_PROMPTS
from jetspec_jax.testing import write_tiny_checkpoint

QUICKLY = ("--repeats", "2", "--passes", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(autouse=True)
def cache_outside_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("JETSPEC_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    before = jax.config.jax_compilation_cache_dir  # of the session; the command line sets its own
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def run(capsys, *argv: str) -> tuple[int, str, str]:
    status = main(argv)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_generate_prints_text_and_a_table(capsys, folder):
    status, out, _ = run(capsys, "generate", "abc", "--model", folder, "--max-new-tokens", "8", "--compare")
    assert status == 0
    assert "speculative" in out
    assert "plain" in out


def test_generate_json_is_one_object_with_everything(capsys, folder):
    argv = ("generate", "abc", "--model", folder, "--max-new-tokens", "8", "--logprobs", "2", "--json")
    status, out, err = run(capsys, *argv)
    assert status == 0, err
    (output,) = json.loads(out)["outputs"]
    assert output["usage"]["completion_tokens"] == len(output["token_ids"]) == len(output["logprobs"])
    assert output["finish_reason"] in ("length", "stop")
    assert output["stats"]["rounds"] >= 1


def test_generate_raw_and_chat_differ_by_the_template(capsys, folder):
    outputs = {}
    for kind, extra in (("raw", ("--raw",)), ("chat", ("--system", "be brief"))):
        argv = ("generate", "abc", "--model", folder, "--max-new-tokens", "2", "--json", *extra)
        _, out, _ = run(capsys, *argv)
        outputs[kind] = json.loads(out)["outputs"][0]["usage"]["prompt_tokens"]
    assert outputs["raw"] == 3
    # <|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n
    assert outputs["chat"] == (1 + 7 + 8 + 1 + 1) + (1 + 5 + 3 + 1 + 1) + (1 + 10)


def test_show_blocks_prints_the_legend(capsys, folder):
    status, out, _ = run(capsys, "generate", "abcabcabc", "--model", folder, "--max-new-tokens", "8", "--show-blocks")
    assert status == 0
    assert "accepted drafts" in out


def test_prompts_come_from_a_file(capsys, folder, tmp_path):
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(["abc", "x\ny"]))
    argv = ("generate", "--prompt-file", str(path), "--model", folder, "--max-new-tokens", "2", "--json")
    status, out, _ = run(capsys, *argv)
    assert status == 0
    assert len(json.loads(out)["outputs"]) == 2


def test_bench_ends_with_json_and_a_verdict(capsys, folder):
    argv = ("bench", "abcabc", "--model", folder, "--max-new-tokens", "12", "--num-drafts", "2,3", *QUICKLY)
    status, out, err = run(capsys, *argv)
    assert status == 0, err
    record = json.loads(out.strip().splitlines()[-1])
    assert [row["num_drafts"] for row in record["runs"]] == [0, 2, 3]
    assert all(row["same_text_as_plain"] for row in record["runs"])
    assert "Speculation" in record["verdict"]
    assert record["versions"]["jax"] == jax.__version__
    assert record["recommended"]["drafter"] in ("autoregressive", "ngram")
    assert record["recommended"]["speedup"] >= 1
    assert "x plain" in out
    assert "by prompt" not in out


def test_bench_without_a_prompt_takes_samples(capsys, folder, monkeypatch):
    phases = PhaseTimes(8, 16, 3, ar_ms=2.0, verify_ms=3.0, draft_ms=1.0, repeats=1)
    monkeypatch.setattr("jetspec_jax.evaluation.compare.measure_phases", lambda *args, **options: phases)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    argv = ("bench", "--model", folder, "--max-new-tokens", "3", "--num-drafts", "2", "--ignore-eos", *QUICKLY)
    status, out, err = run(capsys, *argv)
    assert status == 0, err
    record = json.loads(out.strip().splitlines()[-1])
    assert record["prompts"] == len(SAMPLE_PROMPTS)
    assert [row["drafter"] for row in record["runs"]] == ["autoregressive", "ngram"]  # no weights are shipped for it
    assert len(record["runs"][1]["speedup_by_prompt"]) == len(SAMPLE_PROMPTS)
    assert "x plain decoding, by prompt" in out


def test_demo_measures_each_prompt_and_all_together(capsys, folder):
    status, out, err = run(capsys, "demo", "--model", folder, "--num-drafts", "2", "--max-new-tokens", "4")
    assert status == 0, err
    assert len(re.findall(r"speculation (?:wins|loses) on this prompt: \d+\.\d\d x plain", out)) == len(SAMPLE_PROMPTS)
    assert len(re.findall(r"speculation (?:wins|loses) on all prompts together: \d+\.\d\d x plain", out)) == 1
    assert "every token is the target's own" in out


def test_check_lossless_passes_on_fp32(capsys, folder):
    argv = ("check-lossless", "abcabc", "--model", folder, "--max-new-tokens", "12")
    status, out, _ = run(capsys, *argv)
    assert status == 0
    assert "lossless: all 12 tokens equal plain decoding" in out


def test_inspect_says_what_would_be_refused(capsys, folder, tmp_path):
    status, out, _ = run(capsys, "inspect", folder)
    assert status == 0
    assert "LlamaForCausalLM" in out
    broken = write_tiny_checkpoint(tmp_path / "broken")
    data = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(data[:-1])
    status, out, _ = run(capsys, "inspect", str(broken), "--json")
    assert status == 1
    assert json.loads(out)["problems"]


FORESEEING = ["generate", "a", "--drafter", "jetspec++"]
NGRAM = ["generate", "a", "--drafter", "ngram"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["generate", "a", "--model", "no/such/place/here"], "no/such/place/here", id="unknown-model"),
        pytest.param(["generate", "a", "--temperature", "-1"], "temperature must be in", id="C24-negative-temperature"),
        pytest.param(["generate", "a", "--stop", ""], "stop must hold non-empty strings", id="I01-empty-stop"),
        pytest.param(["generate", "  "], "no prompt", id="C37-blank-prompt"),
        pytest.param(["generate", "a", "--raw", "--system", "s"], "--raw uses no chat template", id="raw-and-system"),
        pytest.param(["generate", "a", "--template-arg", "x"], "is not KEY=JSON", id="bad-template-arg"),
        pytest.param(["bench", "a", "--num-drafts", "0"], "must be positive", id="bench-without-drafts"),
        pytest.param(["bench", "a", "--temperature", "1"], "give --seed", id="bench-unseeded"),
        pytest.param(["demo", "--max-new-tokens", "1"], "leaves nothing to measure", id="demo-of-one-token"),
        pytest.param(["check-lossless", "a", "--temperature", "1"], "needs --seed", id="check-unseeded"),
        pytest.param([*NGRAM, "--refine", "J1-R1"], "--refine is for --drafter jetspec++", id="refine-ngram"),
        pytest.param(
            ["check-lossless", "a", "--drafter", "parallel", "--outcomes", "0"],
            "--outcomes is for --drafter jetspec++, not parallel",
            id="outcomes-parallel",
        ),
        pytest.param([*NGRAM, "--miss-policy", "soft_miss"], "--miss-policy is for", id="miss-policy-ngram"),
        pytest.param([*NGRAM, "--outcome-rule", "uniform"], "--outcome-rule is for", id="outcome-rule-ngram"),
        pytest.param([*NGRAM, "--no-coupled-noise"], "--no-coupled-noise is for", id="noise-ngram"),
        pytest.param([*NGRAM, "--draft-device", "1"], "--draft-device is for", id="draft-device-ngram"),
        pytest.param([*NGRAM, "--trace"], "--trace shows how blocks are refined", id="trace-ngram"),
        pytest.param([*FORESEEING, "--refine", "J1R1"], "'J1R1' is not of the form", id="bad-refine"),
        pytest.param([*FORESEEING, "--refine", "J1-R2"], "need 0 <= refreshes <= passes", id="more-refreshes"),
        pytest.param([*FORESEEING, "--outcomes", "-1"], "num_outcomes=-1 must not be negative", id="negative-outcomes"),
        pytest.param([*FORESEEING, "--draft-device", "7"], "there are 2 cpu devices", id="no-such-device"),
        pytest.param([*FORESEEING, "--draft-device", "-1"], "there are 2 cpu devices", id="negative-device"),
        pytest.param(
            [*FORESEEING, "--draft-device", "1", "--outcomes", "0"], "prepares nothing ahead", id="device-for-nothing"
        ),
        pytest.param([*FORESEEING, "--trace", "--show-blocks"], "one of --trace and --show-blocks", id="trace-blocks"),
        pytest.param(
            ["bench", "a", "--drafter", "ngram", "--timeline", "t.json"],
            "it needs --drafter jetspec++",
            id="timeline-ngram",
        ),
        pytest.param(
            ["generate", "a", "--drafter", "ngramm"], "unknown drafter 'ngramm'; known:", id="unknown-drafter"
        ),
        pytest.param(
            ["bench", "a", "--drafter", "jetspec++", "--outcomes", "0", "--timeline", "t.json"],
            "with --outcomes 1 or more",
            id="timeline-critical-path",
        ),
        pytest.param(
            ["bench", "a", "--drafter", "jetspec++", "--timeline", "t.png"], "must end in .json", id="timeline-png"
        ),
        pytest.param(
            ["bench", "a", "--drafter", "jetspec++", "--timeline", "no/such/t.json"],
            "there is no folder no/such",
            id="timeline-folder",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, argv, message):
    status, _, err = run(capsys, *argv)
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_single_cpu_device_is_told_how_to_become_two(capsys, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
    status, _, err = run(capsys, *FORESEEING, "--draft-device", "1")
    assert status == 2
    assert "there is 1 cpu device, counted from 0" in err
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=2" in err


def test_drafting_options_reach_the_drafter():
    options = ["--refine", "J2-R1", "--outcomes", "3", "--miss-policy", "soft_miss", "--outcome-rule", "uniform"]
    args = _parser().parse_args([*FORESEEING, *options, "--no-coupled-noise", "--draft-device", "1"])
    assert drafting_from(args, keep_trace=True) == DraftingConfig(
        refine=RefineConfig(num_passes=2, num_refreshes=1),
        num_outcomes=3,
        miss_policy="soft_miss",
        outcome_rule="uniform",
        couple_noise=False,
        keep_trace=True,
    )
    assert draft_device_from(args) == jax.devices()[1]
    assert drafting_from(_parser().parse_args(FORESEEING)) == DraftingConfig()
    assert drafting_from(_parser().parse_args(["bench", "a"])) is None


def test_template_argument_that_the_template_ignores_is_refused(capsys, folder):
    argv = ("generate", "a", "--model", folder, "--template-arg", "enable_thinking=false")
    status, _, err = run(capsys, *argv)
    assert status == 2
    assert "enable_thinking" in err
