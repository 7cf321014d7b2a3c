"""What predicted states are worth against true ones, over evaluation sets in one batch (`train/predicted_states.py`).

python -m benchmarks.predicted_states --drafter weights/smollm2-135m --refine J0,J1-R1,J3-R3
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from jetspec_jax.evaluation.record import environment
from train.assess import evaluation_prompts, load_trained, plain_model
from train.predicted_states import compare_states
from train.presets import preset
from train.stages import Recipe


def main() -> None:
    """Measures and prints a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="smollm2-135m")
    parser.add_argument("--folder", type=Path, default=Path("runs/train"), help="of the run, for the set held-out")
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--refine", default="J0,J1-R1,J3-R3")
    parser.add_argument("--sets", default="humaneval,mt-bench,sharegpt,gsm-symbolic")
    parser.add_argument("--num-prompts", type=int, default=64, help="of each set")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    arguments = parser.parse_args()
    recipe = Recipe(preset(arguments.preset), arguments.folder)
    _, drafter = load_trained(recipe, arguments.drafter)
    sets = evaluation_prompts(recipe, arguments.sets.split(","), num_prompts=arguments.num_prompts)
    prompts, model, found = [ids for group in sets.values() for ids in group], plain_model(recipe), {}
    for refine in arguments.refine.split(","):
        report = compare_states(model, drafter, prompts, refine, max_new_tokens=arguments.max_new_tokens)
        found[refine] = asdict(report) | {"ratio": report.ratio}
    print(json.dumps(environment(model) | {"predicted_states": found}))


if __name__ == "__main__":
    main()
