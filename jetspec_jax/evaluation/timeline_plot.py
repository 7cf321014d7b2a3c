"""A timeline as a picture: a lane per device, a bar per program, the target's waits hatched."""

from itertools import pairwise
from pathlib import Path

from jetspec_jax.evaluation.timeline import Span, Timeline

# Six rounds from the middle of the run: the first ones fill the pipeline, while the host still catches up.
NUM_ROUNDS = 6
COLOURS = {
    "verify": "#1f4e79",
    "foresee": "#c55a11",
    "select": "#548235",
    "round": "#1f4e79",
    "plain round": "#7f7f7f",
}
# Width of a character of a bar's label, as a share of the plot's.
_CHAR_WIDTH = 0.0075


def check_plotting() -> None:
    """Refuses to plot without matplotlib, before anything has been computed for it.

    Raises:
        ValueError: it is missing.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError("plotting needs matplotlib: install jetspec_jax with the extra 'notebooks'") from error


def plot_timeline(timeline: Timeline, path: str | Path) -> None:
    """Draws some rounds into a file, in the format that its ending names.

    Raises:
        ValueError: matplotlib is missing, or there is no round.
    """
    check_plotting()
    from matplotlib.figure import Figure

    spans = shown(timeline)
    zero, end = min(span.start_ms for span in spans), max(span.end_ms for span in spans)
    lanes = {device: -lane for lane, device in enumerate(timeline.devices)}
    figure = Figure(figsize=(13, 1.4 + 0.8 * len(lanes)), layout="constrained")
    axes = figure.subplots()
    for span in spans:
        left, width, lane = span.start_ms - zero, span.duration_ms, lanes[span.device]
        axes.barh(lane, width, left=left, height=0.6, color=COLOURS[span.name], edgecolor="white")
        text = _fitting(span, width / (end - zero))
        axes.text(left + width / 2, lane, text, ha="center", va="center", fontsize=7, color="white", clip_on=True)
    verifications = [span for span in spans if span.name == "verify"]
    for before, after in pairwise(verifications):
        left, width = before.end_ms - zero, after.start_ms - before.end_ms
        axes.barh(lanes[before.device], width, left=left, height=0.6, **_WAITING)
    axes.set_yticks(list(lanes.values()), [timeline.lane_name(device).replace(": ", "\n") for device in lanes])
    axes.set_ylim(-len(lanes) + 0.5, 0.5)
    axes.set_xlim(0, end - zero)
    axes.set_xlabel("ms (ends measured, starts derived)")
    axes.set_title(timeline.summary, fontsize=9, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _add_legend(figure, spans)
    figure.savefig(path, dpi=150)


def shown(timeline: Timeline) -> list[Span]:
    """Spans of the rounds that are drawn.

    Raises:
        ValueError: there is none.
    """
    spans = [span for span in timeline.spans if span.name in COLOURS]
    if not spans:
        raise ValueError("no round was recorded, so there is nothing to plot")
    last = max(span.round for span in spans)
    first = max(1, (last - NUM_ROUNDS) // 2 + 1)
    return [span for span in spans if first <= span.round < first + NUM_ROUNDS]


_WAITING = {"facecolor": "none", "edgecolor": "red", "hatch": "////"}


def _add_legend(figure, spans: list[Span]) -> None:
    from matplotlib.patches import Patch

    names = {span.name for span in spans}
    patches = [Patch(color=colour, label=name) for name, colour in COLOURS.items() if name in names]
    if "verify" in names:
        patches.append(Patch(**_WAITING, label="the target waits"))
    figure.legend(handles=patches, loc="outside lower right", ncols=len(patches), fontsize=8, frameon=False)


def _fitting(span: Span, share: float) -> str:
    """The span's label, shortened to its bar's share of the plot's width; empty if nothing fits."""
    number = span.label.rsplit(" ", 1)[-1]
    candidates = (span.label, f"{span.name} {number}", number)
    return next((text for text in candidates if _CHAR_WIDTH * len(text) < share), "")
