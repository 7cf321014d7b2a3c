"""Data parallelism: two processes of two devices each train as one process does."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from train.batch import Batch
from train.devices import data_mesh, initialize_distributed, local_copy, put_batch, replicate
from train.loop import run
from train.optimizer import OptimizerConfig
from train.run_config import RunConfig
from train.testing import ROW_LEN, ToySource, ToyTask

# Sums over four devices instead of two are taken in another order: a few units in the last place of fp32 each step.
RTOL = 1e-5
NUM_STEPS = 8

WORKER = """
import sys
from pathlib import Path
from train.devices import initialize_distributed
initialize_distributed(sys.argv[1], 2, int(sys.argv[2]))
import jax
assert (jax.process_count(), jax.device_count(), jax.local_device_count()) == (2, 4, 2)
sys.path.insert(0, sys.argv[3])
from test_devices import train
train(Path(sys.argv[4]), 6)
"""


def train(folder: Path, num_steps: int):
    config = RunConfig(
        folder=folder, num_steps=num_steps, global_batch=8, seed=5, eval_every=3, save_every=3, log_every=2
    )
    task = ToyTask(bad_ids=(7,))  # so that a step is skipped
    return run(task, ToySource(41), OptimizerConfig(peak_lr=0.1, total_steps=NUM_STEPS), config)


def lines(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_two_processes_of_two_devices_train_as_one_process(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    here, folder = str(Path(__file__).parent), tmp_path / "two"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, coordinator, str(process), here, str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    whole = train(tmp_path / "one", NUM_STEPS)  # meanwhile
    outputs = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(outputs)

    resumed = train(folder, NUM_STEPS)  # what four devices wrote goes on on two
    ours, theirs = lines(folder, "metrics"), lines(tmp_path / "one", "metrics")
    assert [(r["step"], r["ids_sum"], r["ids_order"]) for r in ours] == [
        (r["step"], r["ids_sum"], r["ids_order"]) for r in theirs
    ]
    for name in ("loss", "grad_norm", "lr"):
        np.testing.assert_allclose([r[name] for r in ours], [r[name] for r in theirs], rtol=RTOL)
    skipped = [[(r["step"], r["ids"]) for r in lines(run, "skipped_steps")] for run in (folder, tmp_path / "one")]
    assert skipped[0] == skipped[1] != []
    np.testing.assert_allclose(resumed.params["w"], whole.params["w"], rtol=RTOL)


def test_rows_are_spread_in_order_and_parameters_lie_everywhere():
    mesh = data_mesh()
    ids = np.arange(6, dtype=np.int32)
    rows = np.zeros((6, ROW_LEN), np.int32)
    batch = put_batch(Batch(tokens=rows, answer_mask=rows > 0, length=ids, ids=ids), mesh)
    assert [shard.data.tolist() for shard in batch.ids.addressable_shards] == [[0, 1, 2], [3, 4, 5]]
    params = replicate({"w": np.ones(3, np.float32)}, mesh, may_alias=False)
    assert params["w"].is_fully_replicated
    assert len(params["w"].sharding.device_set) == 2
    assert local_copy(params)["w"].sharding.device_set == {jax.devices()[0]}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("host:1", None, 0), "belong together, got 'host:1', None, 0"),
        ((None, 2, 0), "belong together"),
        (("host:1", 2, 2), r"process_id must be in \[0, 2\), got 2"),
        (("auto", 2, None), "'auto' finds num_processes"),
    ],
)
def test_refuses(flags, message):
    with pytest.raises(ValueError, match=message):
        initialize_distributed(*flags)


def test_one_process_needs_no_coordinator():
    initialize_distributed()
    assert jax.process_count() == 1
