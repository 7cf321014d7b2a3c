"""Timelines: derived starts and their arithmetic on hand-made events, and a real run on two devices."""

import json
import sys
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jetspec_jax.cli import main
from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.decoding.state import DraftReport
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.evaluation.compare import Comparison, Run, compare
from jetspec_jax.evaluation.phases import PhaseTimes
from jetspec_jax.evaluation.timeline import Event, Span, Timeline
from jetspec_jax.evaluation.timeline_plot import shown
from jetspec_jax.evaluation.timeline_recorder import TimelineRecorder, record_timeline
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import PeekingJetSpecPP, tiny_config, tiny_target

# Seconds. Everything is dispatched long before it can run; round 2's foresight outlasts the verification.
EVENTS = [
    Event("prefill", "gpu 0", 0, 0.000, 0.010),
    Event("first block", "gpu 1", 0, 0.001, 0.012, (0,)),
    Event("verify", "gpu 0", 1, 0.002, 0.020, (1,)),
    Event("foresee", "gpu 1", 1, 0.003, 0.018, (1,)),
    Event("select", "gpu 1", 1, 0.004, 0.021, (2, 3)),
    Event("verify", "gpu 0", 2, 0.013, 0.029, (4,)),
    Event("foresee", "gpu 1", 2, 0.014, 0.031, (4,)),
    Event("select", "gpu 1", 2, 0.015, 0.032, (5, 6)),
    Event("verify", "gpu 0", 3, 0.034, 0.042, (7,)),
]


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return Timeline.of_events(EVENTS)


def rounded(values) -> list[float]:
    return [round(value, 6) for value in values]


def test_start_is_the_latest_of_dispatch_device_and_needs(timeline):
    starts = rounded(span.start_ms for span in timeline.spans)
    # prefill: dispatched; first block: after prefill; verify and foresee 1: after the first block; select 1: after
    # verify 1; then after select 1; select 2: after foresee 2; verify 3: dispatched late.
    assert starts == [0, 10, 12, 12, 20, 21, 21, 31, 34]
    assert rounded(span.end_ms for span in timeline.spans) == [10, 12, 20, 18, 21, 29, 31, 32, 42]


def test_overlap_and_exposed_time(timeline):
    assert rounded(timeline.overlap_ms()) == [6, 8]
    assert timeline.overlap_share == pytest.approx(14 / 16)
    assert rounded(timeline.waits_ms()) == [1, 5]
    assert timeline.target_wait_ms == pytest.approx(3)
    assert timeline.verify_ms == pytest.approx(8)
    assert timeline.round_ms == pytest.approx((9 + 13) / 2)
    assert timeline.summary.startswith("88 % of the foresight ran beside a verification; medians of 3 rounds: round 11")


def test_end_that_was_noticed_late_is_not_after_its_successor():
    events = [
        Event("foresee", "gpu 1", 1, 0.0, 0.010),
        Event("select", "gpu 1", 1, 0.0, 0.025, (0,)),  # the watcher slept
        Event("verify", "gpu 0", 2, 0.0, 0.020, (1,)),
    ]
    spans = Timeline.of_events(events).spans
    assert rounded(span.end_ms for span in spans) == [10, 20, 20]
    assert rounded(span.start_ms for span in spans) == [0, 10, 20]


def test_program_that_ended_before_its_call_returned_has_no_length():
    assert Timeline.of_events([Event("verify", "cpu 0", 1, 0.005, 0.004)]).spans[0].duration_ms == 0


def test_labels_name_the_block():
    labels = [Span(name, "", 3, 0.0, 1.0).label for name in ("verify", "foresee", "select", "round", "prefill")]
    assert labels == ["verify block 3", "foresee block 4", "select block 4", "round 3", "prefill"]


def test_fused_rounds_overlap_nothing():
    fused = Timeline.of_events([Event("round", "gpu 0", n, 0.01 * n, 0.01 * n + 0.008) for n in (1, 2, 3)])
    assert fused.overlap_ms() == fused.waits_ms() == []
    assert fused.target_wait_ms is fused.overlap_share is None
    assert fused.round_ms == pytest.approx(10)
    assert "--draft-device" in fused.summary
    assert "too few" in Timeline(()).summary


def test_chrome_trace_is_valid(timeline):
    trace = json.loads(json.dumps(timeline.to_chrome_trace(), allow_nan=False))
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert names == {1: "target device: gpu 0", 2: "draft device: gpu 1"}
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == len(EVENTS)
    assert all({"name", "cat", "pid", "tid", "ts", "dur"} <= event.keys() for event in complete)
    assert [event["ts"] for event in complete] == sorted(event["ts"] for event in complete)
    (second,) = [event for event in complete if event["name"] == "verify block 2"]
    assert second["pid"] == 1
    assert (second["ts"], second["dur"]) == pytest.approx((21_000, 8_000))  # microseconds


def test_plot_is_a_picture(timeline, tmp_path):
    pytest.importorskip("matplotlib", reason="plots need the notebooks extra, which CI installs")
    timeline.plot(tmp_path / "timeline.png")
    data = (tmp_path / "timeline.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 5_000
    with pytest.raises(ValueError, match="nothing to plot"):
        Timeline.of_events(EVENTS[:2]).plot(tmp_path / "empty.png")


@pytest.mark.parametrize(
    ("num_rounds", "first", "last"),
    [pytest.param(3, 1, 3, id="all"), pytest.param(8, 2, 7, id="few"), pytest.param(40, 18, 23, id="middle")],
)
def test_plot_shows_six_rounds_of_the_middle(num_rounds, first, last):
    rounds = Timeline(tuple(Span("round", "gpu 0", n, float(n), n + 0.5) for n in range(1, num_rounds + 1)))
    assert [span.round for span in shown(rounds)] == [*range(first, last + 1)]


def test_plot_without_matplotlib_names_the_extra(timeline, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match="extra 'notebooks'"):
        timeline.plot(tmp_path / "timeline.png")


PROMPT, PARAMS = [5, 6, 7], SamplingParams(max_new_tokens=24)


@pytest.fixture(scope="module")
def pipelined(cpu_devices) -> LanguageModel:
    config = tiny_config(taps=(0,))
    target = tiny_target(config)
    plain = LanguageModel(target, drafter="autoregressive")
    drafter = PeekingJetSpecPP(
        Draft(draft_config_for(config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0)),
        Adapter.from_target(target, adapter_config_for(config, layers_per_module=(1,))),
        drafting=DraftingConfig(num_drafts=2, num_outcomes=2, refine=RefineConfig.parse("J0")),
        texts=[PROMPT + plain.generate(PROMPT, PARAMS).token_ids],
        period=2,
    )
    return plain.with_drafter(drafter, draft_device=cpu_devices[1])


def test_recorded_run_has_every_program_of_every_round(pipelined):
    plain = pipelined.generate(PROMPT, PARAMS)
    recorded = record_timeline(pipelined, PROMPT, PARAMS)
    for name in ("verify", "foresee", "select"):
        # A round more may have been under way when the text ended.
        numbers = list(recorded.named(name))
        assert numbers == [*range(1, len(numbers) + 1)]
        assert len(numbers) - plain.stats.rounds in (0, 1)
    assert recorded.devices == ["cpu 0", "cpu 1"]
    where = {span.name: span.device for span in recorded.spans}
    on_draft = dict.fromkeys(("first block", "foresee", "select"), "cpu 1")
    assert where == {"prefill": "cpu 0", "verify": "cpu 0", **on_draft}
    check_order(recorded)
    assert pipelined.programs.executables.on_dispatch is None
    assert pipelined.generate(PROMPT, PARAMS).token_ids == plain.token_ids


def check_order(timeline: Timeline) -> None:
    """On a device one after the other, and nothing before what it needs."""
    for device in timeline.devices:
        spans = [span for span in timeline.spans if span.device == device]
        assert all(before.end_ms <= after.start_ms <= after.end_ms for before, after in pairwise(spans))
    verify, foresee, select = (timeline.named(name) for name in ("verify", "foresee", "select"))
    for number, span in select.items():
        assert span.start_ms >= max(verify[number].end_ms, foresee[number].end_ms)
        if number + 1 in verify:
            assert min(verify[number + 1].start_ms, foresee[number + 1].start_ms) >= span.end_ms


def test_fused_run_has_one_lane(pipelined):
    fused = pipelined.with_drafter(pipelined.drafter)
    timeline = record_timeline(fused, PROMPT, SamplingParams(max_new_tokens=6))
    assert timeline.devices == ["cpu 0"]
    assert {span.name for span in timeline.spans} == {"prefill", "round"}
    assert timeline.to_dict()["overlap_share"] is None


def test_failed_program_is_told(cpu_devices):
    recorder, no = TimelineRecorder(), jnp.zeros((1,), bool)
    fared = DraftReport(is_hit=no, mass=jnp.zeros((1,)), is_refined=no, right_by_pass=jnp.zeros((1, 1, 1), bool))
    no.delete()
    recorder("select", cpu_devices[0], (None, fared))
    with pytest.raises(RuntimeError, match="'select' of round 1 failed"):
        recorder.timeline()


def phases_of(model, **options) -> PhaseTimes:
    return PhaseTimes(8, 16, 3, ar_ms=2.0, verify_ms=3.0, draft_ms=50.0, repeats=1)


def test_exposed_draft_is_the_round_less_a_verification_alone(pipelined, monkeypatch):
    monkeypatch.setattr("jetspec_jax.evaluation.compare.measure_phases", phases_of)
    comparison = compare(pipelined, [PROMPT], PARAMS, [pipelined], passes=1)
    (run,) = comparison.runs
    exposed = max(0.0, run.timeline.round_ms - 3.0)
    assert run.outputs[0].stats.exposed_draft_ms == run.exposed_draft_ms == exposed != 50.0
    assert run.break_even_tau == pytest.approx((3.0 + exposed) / 2.0)
    assert 0 < run.hit_rate <= 1
    assert comparison.to_dict()["runs"][1]["hit_rate"] == run.hit_rate
    assert Run("x", 2, run.outputs, phases_of(None)).exposed_draft_ms == 50.0


@pytest.fixture
def bench(pipelined, timeline, tmp_path, monkeypatch):
    """Runs `jetspec bench` with a comparison made before."""
    monkeypatch.setenv("JETSPEC_CACHE", str(tmp_path / "cache"))
    output = pipelined.generate(PROMPT, PARAMS)
    run, baseline = Run("jetspec++", 2, [output], phases_of(None), timeline), Run("autoregressive", 0, [output])
    monkeypatch.setattr("jetspec_jax.commands.bench.model_from", lambda args: pipelined)
    monkeypatch.setattr("jetspec_jax.commands.bench.candidates", lambda *args, **options: [pipelined])
    monkeypatch.setattr(
        "jetspec_jax.commands.bench.compare", lambda *args, **options: Comparison(baseline, [run], [True])
    )
    before = jax.config.jax_compilation_cache_dir
    yield lambda *argv: main(["bench", "abc", "--raw", *argv])
    jax.config.update("jax_compilation_cache_dir", before)


def test_bench_writes_the_timeline_and_its_plot(bench, timeline, capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="plots need the notebooks extra, which CI installs")
    path = tmp_path / "out.json"
    assert bench("--drafter", "jetspec++", "--draft-device", "1", "--timeline", str(path)) == 0
    out = capsys.readouterr().out
    record = json.loads(out.strip().splitlines()[-1])
    assert record["timeline"]["num_drafts"] == 2
    assert record["timeline"]["target_wait_ms"] == pytest.approx(3)
    assert record["runs"][1]["exposed_draft_ms"] == pytest.approx(timeline.round_ms - 3.0)
    assert "88 % of the foresight ran beside a verification" in " ".join(out.split())
    assert "hits" in out
    assert {event["ph"] for event in json.loads(path.read_text())["traceEvents"]} == {"M", "X"}
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_bench_without_timeline_writes_nothing(bench, capsys, tmp_path):
    assert bench("--drafter", "jetspec++", "--json") == 0
    assert "timeline" not in json.loads(capsys.readouterr().out)
    assert not list(tmp_path.glob("*.png"))
