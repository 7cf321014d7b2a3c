"""A record by processes on the tiny shape, what is left of one that is stopped, and turns."""

import json
import subprocess
import sys
import time

import jax.numpy as jnp
import pytest

from benchmarks import round_record
from benchmarks.headlines import with_headlines
from benchmarks.round_task import Task
from benchmarks.turn import Turn
from jetspec_jax.decoding.executables import Executables

PART = {"ms": 2.0, "host_ms": 0.1, "floor_ms": 9.0, "of_floor": 4.5, "bytes": 10**9}
EMPTY = {"read_bandwidth_tb_s": 4.0, "parts": {}} | {name: {} for name in round_record.MAPS}
TRY = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("{}", flush=True)
time.sleep(60)
"""


def is_free(path) -> bool:
    """Whether another process could take the turn now."""
    return subprocess.run([sys.executable, "-c", TRY, str(path)], capture_output=True, check=False).returncode == 0


def run_to_end(task: Task) -> None:
    task.start({})
    task._process.wait(timeout=20)


def shell(name: str, text: str, folder) -> Task:
    return Task(name, ["sh", "-c", text], folder, has_record=False)


def test_only_one_process_has_the_turn_and_a_pause_lets_others_in(tmp_path):
    path = tmp_path / "turn"
    with Turn(path) as turn:
        assert not is_free(path)
        with turn.paused():
            assert is_free(path)
        assert not is_free(path)
    assert is_free(path)
    with turn.paused():
        pass
    assert is_free(path)  # what was not held is not taken


def test_programs_are_traced_while_others_may_work(tmp_path, monkeypatch):
    monkeypatch.setattr(Executables, "jit", Executables.jit)
    path, was_free = tmp_path / "turn", []

    def program(x):
        was_free.append(is_free(path))
        return x + 1

    with Turn(path) as turn:
        turn.pause_compilation()
        x = jnp.zeros(2)
        y = Executables().run("add", (), program, (x,), donated=(), device=x.device)
        assert not is_free(path)
    assert was_free == [True]
    assert y.tolist() == [1, 1]


def test_without_a_file_everybody_has_the_turn(monkeypatch):
    monkeypatch.setattr(Executables, "jit", jit := Executables.jit)
    with Turn(None) as turn, turn.paused():
        turn.pause_compilation()
    assert Executables.jit is jit


def test_floors_of_a_merged_record_have_one_bandwidth():
    base = EMPTY | {"parts": {"verify 17": PART}, "ar_tokens_per_s": 100.0, "refused": {"swiglu": ["a"]}}
    other = EMPTY | {"read_bandwidth_tb_s": 1.0, "parts": {"foresight J1-R1/B4": PART}, "round_ms": {"J1-R1/B4": 3.0}}
    other |= {"tokens_per_s": {"J1-R1/B4": 300.0}, "refused": {"swiglu": ["b"]}}
    record = round_record.merged(base, [other], 16)
    assert record["parts"]["foresight J1-R1/B4"]["floor_ms"] == pytest.approx(0.25)  # 1 GB at 4 TB/s
    assert record["exposed_ms"] == {"J1-R1/B4": 1.0}
    assert record["speedup_over_ar"] == 3
    assert record["refused"] == {"swiglu": ["a", "b"]}
    assert base["refused"] == {"swiglu": ["a"]}


def test_headlines_are_those_there_are():
    assert with_headlines(EMPTY, 16) == EMPTY
    record = EMPTY | {"tokens_per_s": {"J0/B4": 5.0, "J3-R3/B4": 7.0}}
    assert with_headlines(record, 16)["tokens_per_s_replayed"] == 7
    record["tokens_per_s"] |= {"J1-R1/B4": 6.0}
    assert with_headlines(record, 16)["tokens_per_s_replayed"] == 6


def test_a_task_that_fails_says_why_and_keeps_what_it_has(tmp_path):
    task = shell("peer x/y", 'echo \'{"a": 1}\'; echo "a.SomeError: why" >&2; echo "---" >&2; exit 3', tmp_path)
    assert (task.record(), task.problem(), task.news()) == (None, None, [])
    run_to_end(task)
    assert task.problem() == "exit 3: a.SomeError: why"
    assert task.record() == {"a": 1}
    assert (task.news(), task.news()) == ([{"a": 1}], [])


def test_a_task_that_is_stopped_ends_with_all_it_started(tmp_path):
    path = tmp_path / "turn"
    task = Task(
        "x", ["sh", "-c", '"$0" -c "$1" "$2"; true', sys.executable, HOLD, str(path)], tmp_path, has_record=False
    )
    task.start({})
    while not task.news():
        assert task.is_running
        time.sleep(0.05)
    assert not is_free(path)
    task.stop()
    assert is_free(path)
    assert task.problem() == "stopped: no time was left"


def test_when_time_is_up_the_record_says_what_it_lacks(tmp_path, capsys):
    path = tmp_path / "record.json"
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\necho '{"compiled": {"1": 2.0, "17": null}}'\n""")
    python.chmod(0o755)
    limits = ["--max-seconds", "4", "--tasks", "foresight,peer", "--configs", "J0/B4"]
    round_record.main(["--shape", "tiny", *limits, "--peer", "--peer-python", str(python), "--out", str(path)])
    record = json.loads(path.read_text())
    assert record == json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["peer_ms"] == {"compiled": {"1": 2.0, "17": None}}
    assert record["missing"] == ["foresight J0/B4"]
    assert record["failed"] == {"foresight J0/B4": "stopped: no time was left"}


def test_unknown_tasks_and_options_start_nothing(tmp_path):
    for wrong in (["--tasks", "party"], ["--shape", "large"]):
        with pytest.raises(SystemExit):
            round_record.main([*wrong, "--out", str(tmp_path / "record.json")])
    assert not any(path.suffix == ".out" for path in tmp_path.rglob("*"))


def test_a_record_by_processes_is_whole(tmp_path):
    path = tmp_path / "record.json"
    command = [sys.executable, "-m", "benchmarks.round", "--processes", "--shape", "tiny", "--configs", "J1-R1/B4"]
    command += ["--context", "64", "--rounds", "20", "--ar-tokens", "20", "--repeats", "3", "--blocks", "4"]
    command += ["--bandwidth-bytes", "1000000", "--out", str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280).stdout.splitlines()
    record = json.loads(path.read_text())
    assert record == json.loads(printed[-1])
    assert (record["missing"], record["failed"]) == ([], {})
    passes = ("draft", "adapter", "decoder")
    parts = {"verify 17", "verify 1", "verify 16", "foresight J1-R1/B4", *(f"{name} x4" for name in passes)}
    assert set(record["parts"]) == parts
    headlines = {"floor_ms", "ar_floor_ms", "ar_ms", "verify17_ms", *(f"{name}_ms" for name in passes)}
    assert headlines | {"tokens_per_s_replayed", "speedup_over_ar", "how", "refused", "versions"} <= set(record)
    assert list(record["exposed_ms"]) == list(record["host_ms"]) == ["J1-R1/B4"]
    assert record["tau"]["J1-R1/B4"] == pytest.approx(8.94, rel=0.1)
    assert record["hit_rate"]["J1-R1/B4"] == 1
    floors = {part["floor_ms"] / part["bytes"] for part in record["parts"].values()}
    assert max(floors) == pytest.approx(min(floors))  # one bandwidth
    assert {json.loads(line)["task"] for line in printed[:-1]} >= {"parts", "rounds J1-R1/B4"}
