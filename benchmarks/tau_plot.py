"""Draws `results/tau_smollm2.json`: tokens a round by configuration, and by the size of the outcome cache.

python -m benchmarks.tau_plot benchmarks/results/tau_smollm2.json docs/tau_smollm2.png
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

SETS = ("humaneval", "mt-bench", "sharegpt", "gsm-symbolic")
REFINEMENTS = ("J0", "J1-R1", "J3-R3")
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44")


def draw(record: dict[str, Any], path: Path) -> None:
    """Writes the picture; J1-R1's sweep and sampling were measured on other prompts, `first_prompts`."""
    found, first = record["configurations"], record["first_prompts"]["configurations"]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.8), gridspec_kw={"width_ratios": (3, 2, 2)})
    for number, name in enumerate(SETS):
        heights = [found[refinement][name]["tau"] for refinement in REFINEMENTS]
        left.bar([x + 0.19 * (number - 1.5) for x in range(3)], heights, 0.18, label=name, color=COLOURS[number])
    left.set_xticks(range(3), [f"{name}\nmean {found[name]['mean']:.2f}" for name in REFINEMENTS])
    left.set(ylabel="τ, tokens a round", title="Critical path, T = 0")
    left.legend(frameon=False, fontsize=8)
    sizes = (1, 2, 4, 8, 16)
    sweeps = (("J3-R3", found, "", COLOURS[2]), ("J1-R1", first, " (first prompts)", COLOURS[0]))
    for refinement, points, prompts, colour in sweeps:
        means = [points[f"{refinement} B={b}"]["mean"] for b in sizes]
        middle.plot(sizes, means, "o-", color=colour, label=f"{refinement}, ahead{prompts}")
        middle.axhline(points[refinement]["mean"], color=colour, linestyle=":", label="its critical path")
    # Texts differ between batch sizes, so a step of the curve is a step of B only where these are equal.
    for b in sizes:
        name = f"J3-R3 B={b}"
        above = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 7}
        middle.annotate(f"batch {record['batch_size'][name]}", (b, found[name]["mean"]), **above)
    middle.set_xscale("log", base=2)
    middle.set_xticks(sizes, [str(b) for b in sizes])
    middle.set(xlabel="outcomes prepared, B", title="Drafted ahead, T = 0", xlim=(0.75, 22), ylim=(2.9, 7.5))
    middle.legend(frameon=False, fontsize=8, loc="lower right")
    for offset, suffix, label in ((-0.18, "", "noise coupled"), (0.18, " plain", "not coupled")):
        heights = [first[f"J3-R3 T={temperature}{suffix}"]["mean"] for temperature in ("0.7", "1")]
        colour = COLOURS[2] if not suffix else "#bbbbbb"
        bars = right.bar([offset, 1 + offset], heights, 0.34, label=label, color=colour)
        right.bar_label(bars, fmt="%.2f", fontsize=8)
    right.set_xticks([0, 1], ["T = 0.7", "T = 1"])
    right.set(title="J3-R3 with sampling (first prompts)", ylim=(0, 5.5))
    right.legend(frameon=False, fontsize=8)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"SmolLM2-135M-Instruct, 15 drafts a round, 64 prompts a set, {record['device']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
