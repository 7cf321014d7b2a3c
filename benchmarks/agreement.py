"""How often adapter and decoder agree with the target on the likeliest token, on answers held out from training.

    python -m benchmarks.agreement --answers runs/mine/answers --drafter weights/smollm2-135m --out record.json

Blocks are teacher-forced on the target's own answers: all 16 rows count, whether decoding would reach them or not.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jetspec_jax.checkpoints.drafter_files import load_drafter
from jetspec_jax.checkpoints.loading import load_target
from jetspec_jax.checkpoints.resolve import resolve
from jetspec_jax.evaluation.record import environment
from jetspec_jax.models.functional import split
from train.adapter_objective import AdapterObjective, adapter_loss
from train.answers import AnswerSource
from train.batch import Batch
from train.blocks import BlockConfig
from train.folders import split_records
from train.presets import preset

NAMES = ("top1", "kl", "run")
BATCH, MAX_LEN, ANCHORS = 8, 448, 16


def main() -> None:
    """Measures and prints a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="smollm2-135m")
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--num-answers", type=int, default=48, help="of each temperature, a multiple of 8")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chosen = preset(arguments.preset)
    target = load_target(resolve(chosen.target), dtype=jnp.float32, taps=chosen.taps)
    adapter = load_drafter(arguments.drafter, target.config, dtype=jnp.float32).adapter
    source = AnswerSource(arguments.answers, MAX_LEN)
    held_out, _ = split_records(len(source), chosen.held_out)
    (target_definition, frozen), (definition, params) = split(target), split(adapter)
    blocks = BlockConfig(num_anchors=ANCHORS)
    objective = AdapterObjective(blocks=blocks, num_chunks=4, compute_dtype="float32")

    @jax.jit
    def measure(params, batch, key):
        return adapter_loss(objective, target_definition, definition, params, frozen, batch, key)[1]

    found = {}
    for temperature in np.unique(source.temperatures):
        numbers = [number for number in held_out if source.temperatures[number] == temperature][: arguments.num_answers]
        parts = []
        for first in range(0, len(numbers) - BATCH + 1, BATCH):
            rows = [source[int(number)] for number in numbers[first : first + BATCH]]
            columns = {name: np.stack([row[name] for row in rows]) for name in ("tokens", "answer_mask")}
            lengths, ids = (np.array([row[name] for row in rows], np.int32) for name in ("length", "id"))
            batch = Batch(**columns, length=lengths, ids=ids)
            parts.append(jax.device_get(measure(params, batch, jax.random.key(first))))
        weights = np.array([part["weight"] for part in parts])
        means = {name: float(np.average([part[name] for part in parts], weights=weights)) for name in NAMES}
        found[f"T={temperature:g}"] = means | {"rows": int(weights.sum()), "answers": BATCH * len(parts)}
    record = environment() | {"agreement": found}
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
