"""The whole recipe from nothing, one command per stage, as users run it."""

import json
import socket
import subprocess
import sys
import time

import jax
import pytest

import jetspec_jax
from jetspec_jax.drafting_config import DraftingConfig
from train.cli import main

MAX_SECONDS = 180  # to a draft, on two cores; about 20 where nothing else runs


@pytest.fixture
def quick_compilation():
    """For programs that run for a moment each; call the value when they begin."""
    yield lambda: jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_disable_most_optimizations", False)


def test_tiny_recipe_from_nothing_drafts_well(tmp_path, capsys, quick_compilation):
    began = time.monotonic()
    run, out = tmp_path / "run", tmp_path / "tau.json"
    decoding = ["--num-prompts", "12", "--max-new-tokens", "32", "--batch-size", "12"]

    def stage(name, *options):
        main([name, "--preset", "tiny", "--folder", str(run), *options])

    stage("data")
    stage("draft")
    seconds = time.monotonic() - began
    quick_compilation()
    stage("adapter")
    stage("calibrate", "--points", "J1-R1 B=2", *decoding)
    stage("evaluate", "--points", "J0", "--sets", "held-out", "--out", str(out), *decoding)
    printed = capsys.readouterr().out
    assert "512 answers" in printed
    assert "supervised part in [[ ]]" in printed
    assert "τ: tokens a round" in printed

    record = json.loads(out.read_text())
    assert record["configurations"]["J0"]["held-out"]["tau"] > 1.5
    assert record["points"]["J0"]["prompts"] == {"held-out": 12}
    evaluations = [json.loads(line) for line in (run / "adapter" / "evaluations.jsonl").read_text().splitlines()]
    assert evaluations[-1]["tau"] > 2
    (entry,) = json.loads((run / "drafter" / "calibration.json").read_text())["entries"]
    assert (entry["refine"], entry["num_outcomes"], entry["temperature"]) == ("J1-R1", 2, 0.0)

    # A second training of the draft, on predicted states; the adapter stays.
    again = ["--name", "settled", "--start-from", str(run / "drafter"), "--set", "draft.schedule.num_steps=4"]
    calibration = (run / "drafter" / "calibration.json").read_bytes()
    stage("draft", *again, "--set", "draft.objective.predicted_share=0.5")
    assert (run / "drafter" / "adapter").is_dir()
    assert not (run / "drafter" / "calibration.json").exists()  # it was fitted to the first draft
    (run / "drafter" / "calibration.json").write_bytes(calibration)

    model = jetspec_jax.load(
        run / "target", drafter=run / "drafter", drafting=DraftingConfig(num_drafts=7), progress=False
    )
    assert model.drafter.drafting.outcome_rule == "calibrated"
    output = model.generate("stone runs", max_new_tokens=40)
    plain = model.with_drafter("autoregressive").generate("stone runs", max_new_tokens=40)
    assert output.token_ids == plain.token_ids
    assert output.stats.hit_rate > 0
    assert seconds < MAX_SECONDS


@pytest.mark.slow
def test_two_processes_train_and_measure_together(tmp_path):
    """Each measures on a device of its own: the first device of all belongs to process 0."""
    run = tmp_path / "run"
    main(["data", "--preset", "tiny", "--folder", str(run)])
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    steps = ["--set", "draft.schedule.num_steps=6", "--set", "draft.schedule.eval_every=6"]
    command = [sys.executable, "-m", "train", "draft", "--preset", "tiny", "--folder", str(run), *steps]
    joining = ["--coordinator", f"localhost:{port}", "--num-processes", "2", "--process-id"]
    processes = [subprocess.Popen([*command, *joining, str(i)], stdout=subprocess.PIPE, text=True) for i in range(2)]
    results = [json.loads(p.communicate(timeout=300)[0].strip().splitlines()[-1]) for p in processes]
    assert results[0] == results[1]
    assert results[0]["evaluation/tau"] >= 1
    assert (run / "drafter" / "draft" / "config.json").exists()
