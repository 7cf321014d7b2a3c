"""The command on a machine without a GPU: kernels are refused, the rest is measured."""

import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import kernels
from benchmarks.cases import Case
from benchmarks.chains import Inputs

QUICK = ["--repeats", "1", "--bandwidth-bytes", "1048576"]


def run(capsys, *arguments: str) -> list[dict]:
    kernels.main([*QUICK, *arguments])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_measures_what_runs_here_and_says_why_the_rest_does_not(capsys, tmp_path):
    path = tmp_path / "record.json"
    lines = run(capsys, "--ops", "residual_norm,swiglu", "--shapes", "smollm2-135m,none", "--out", str(path))
    record = lines[-1]
    assert [(entry["op"], entry["shape"]) for entry in record["measurements"]] == [
        ("residual_norm", "smollm2-135m-verify"),
        ("swiglu", "smollm2-135m-verify"),
    ]
    assert lines[1:-1] == record["measurements"]
    for entry in record["measurements"]:
        assert "cpu" in entry["kernel"]["refused"]
        assert entry["xla"]["of_largest"] < 0.02
        assert entry["reference"]["max_error"] == 0
        floor = entry["bytes"] / (1e9 * record["read_bandwidth_tb_s"])
        assert entry["floor_ms"] == pytest.approx(floor)
        assert entry["xla"]["of_floor"] == pytest.approx(floor / entry["xla"]["ms"])
    assert record["stopped"] is None
    assert record["versions"]["jax"] == jax.__version__
    assert json.loads(path.read_text()) == record


def test_a_sweep_needs_the_kernel(capsys):
    record = run(capsys, "--ops", "swiglu", "--shapes", "smollm2", "--sweep")[-1]
    assert record["measurements"] == []
    assert "cpu" in record["sweeps"][0]["refused"]


def test_stops_when_time_is_up_and_prints_the_record(capsys):
    record = run(capsys, "--ops", "swiglu", "--max-seconds", "0")[-1]
    assert record["measurements"] == []
    assert record["stopped"] == "time was up before swiglu qwen3-8b-step"


@pytest.mark.parametrize(("option", "value"), [("--ops", "swiglu,conv"), ("--forms", "kernel,triton")])
def test_unknown_names_are_refused(option, value, capsys):
    with pytest.raises(SystemExit):
        kernels.main([option, value])
    assert value.split(",")[1] in capsys.readouterr().err


def doubling(kernel) -> Case:
    """Twice x, by any kernel."""
    plain = lambda x: (2 * x, ())  # noqa: E731
    make = lambda key: Inputs((jax.random.normal(key, (8,)),))  # noqa: E731
    configs = lambda: ["quick", "wrong", "refused", "broken"]  # noqa: E731
    return Case(name="double", kernel=kernel, xla=plain, reference=plain, make=make, num_bytes=64, configs=configs)


def bench_on_a_gpu() -> kernels.Bench:
    bench = kernels.Bench(1e9, 1, kernels.Deadline(1000, lambda _: None))
    bench.refusal = None
    return bench


def test_a_sweep_finds_the_best_and_lists_what_fails():
    def kernel(x, config=None):
        if config == "refused":
            raise NotImplementedError("2 is odd")
        if config == "broken":
            raise RuntimeError("ptxas\nand more")
        if config is None:  # slower
            x = jax.lax.fori_loop(0, 2000, lambda _, y: jnp.sin(y), x) * 0 + x
        return x if config == "wrong" else 2 * x, ()

    said = []
    entry = bench_on_a_gpu().sweep("op", doubling(kernel), said.append)
    assert entry["best"]["config"] == "'quick'"
    assert [result["config"] for result in entry["timed"]] == ["'quick'", "default"]
    wrong, *others = entry["failed"]
    assert (wrong["config"], wrong["of_largest"]) == ("'wrong'", 0.5)
    assert others == [
        {"config": "'refused'", "refused": "2 is odd"},
        {"config": "'broken'", "failed": "RuntimeError: ptxas"},
    ]
    assert len(said) == 5


@pytest.mark.parametrize(
    ("result", "usable"),
    [
        pytest.param({"ms": 1.0, "of_largest": 0.01}, True, id="right"),
        pytest.param({"ms": 1.0, "of_largest": 0.5}, False, id="wrong"),
        pytest.param({"ms": 1.0, "of_largest": "not finite"}, False, id="nan"),
        pytest.param({"refused": "cpu"}, False, id="refused"),
        pytest.param({}, False, id="not-run"),
    ],
)
def test_only_what_is_right_is_compared(result, usable):
    assert kernels.is_usable(result) == usable


def test_kernels_are_compared_with_xla_and_summed_up():
    bench = bench_on_a_gpu()
    bench.forms = ("kernel", "xla")
    entry = bench.compare("op", doubling(lambda x, config=None: (x + x, ())))
    assert "reference" not in entry
    assert entry["kernel"]["max_error"] == 0
    assert entry["speedup_over_xla"] == pytest.approx(entry["xla"]["ms"] / entry["kernel"]["ms"])
    entries = [{"op": "op", "shape": name, "speedup_over_xla": x} for name, x in (("a", 4.0), ("b", 0.25))]
    assert kernels.summary([*entries, {"op": "other"}]) == {
        "op": {"speedup_over_xla": pytest.approx(1), "slower": ["b"]}
    }


def test_an_error_that_breaks_everything_ends_the_run_with_the_record(capsys, monkeypatch):
    def broken(*args):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(kernels.Bench, "compare", broken)
    record = run(capsys, "--ops", "swiglu")[-1]
    assert record["stopped"] == "swiglu qwen3-8b-step: RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS"


def test_a_hang_is_noticed_and_named(monkeypatch):
    ended, said = [], []
    monkeypatch.setattr(kernels, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(kernels.os, "_exit", ended.append)
    kernels.Deadline(0.01, said.append).doing = "op shape"
    until = time.monotonic() + 10
    while not ended and time.monotonic() < until:
        time.sleep(0.01)
    assert ended == [1]
    assert said == ["hung: op shape"]


def test_the_record_is_printed_once(capsys):
    record = kernels.Record({"device": "x"}, None)
    record.finish("first")
    record.finish(None)
    assert [json.loads(line)["stopped"] for line in capsys.readouterr().out.splitlines()] == ["first"]


def test_errors_are_relative_to_their_array_and_nan_is_not_small():
    wanted = (jnp.array([100.0, 1.0]), jnp.array([1.0]), jnp.array([3, 4]))
    got = (jnp.array([101.0, 1.0]), jnp.array([1.5]), jnp.array([3, 5]))
    assert kernels.error_of(got, wanted) == {"max_error": 1.0, "of_largest": 0.5, "unequal": 1}
    got = (jnp.array([np.nan, 1.0]), *wanted[1:])
    assert kernels.error_of(got, wanted)["max_error"] == "not finite"


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(capsys, "--ops", "swiglu", "--max-seconds", "0")
    assert not list(Path().iterdir())
