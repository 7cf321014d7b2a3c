"""Arguments of `python -m train`: settings by path, and errors that name what was asked for."""

import pytest

from train.cli import main, with_setting
from train.presets import preset


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("draft.optimizer.peak_lr=5e-4", 5e-4),
        ("draft.optimizer.peak_lr=1", 1.0),
        ("draft.schedule.num_steps=7", 7),
        ("draft.objective.loss=sft", "sft"),
        ("draft.starts_from_target=true", True),
        ("data.temperatures=[0.0, 1.0]", (0.0, 1.0)),
        ("adapter.objective.weighting=geometric", "geometric"),
        ("taps=[1, 2]", (1, 2)),
        ("adapter.layers_per_module=null", None),
    ],
)
def test_setting_replaces_one_field(assignment, value):
    changed = with_setting(preset("tiny"), assignment)
    found = changed
    for name in assignment.partition("=")[0].split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) in (type(value), type(changed.adapter.objective.weighting))


def test_setting_leaves_the_rest():
    before = preset("tiny")
    after = with_setting(before, "draft.schedule.num_steps=7")
    assert with_setting(after, f"draft.schedule.num_steps={before.draft.schedule.num_steps}") == before


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("draft.schedule.num_steps", "takes A.B=VALUE"),
        ("draft.schedule.steps=7", "Schedule has no field 'steps'"),
        ("draft.schedule.num_steps.x=7", "int has no field 'x'"),
        ("draft.schedule.num_steps=many", "expected int, got 'many'"),
        ("draft.schedule.num_steps=true", "expected int, got True"),
        ("draft.optimizer.peak_lr=-1", "peak_lr must be positive"),
        ("draft.objective.blocks.inputs=mask", "inputs='mask' with mask_token_id=None"),
        ("adapter.objective.weighting=none", "'none' is not a valid ReachWeighting"),
    ],
)
def test_bad_setting_is_refused(assignment, message):
    with pytest.raises(ValueError, match=message):
        with_setting(preset("tiny"), assignment)


def test_unknown_preset_lists_the_known():
    with pytest.raises(SystemExit, match=r"unknown preset 'smoll'; known: smollm2-135m, qwen3-8b, tiny, each with"):
        main(["plan", "--preset", "smoll"])


def test_plan_is_printed(capsys):
    main(["plan", "--preset", "qwen3-8b", "--devices", "64", "--tflops", "400"])
    printed = capsys.readouterr().out
    assert "1,048,626,432 parameters" in printed
    assert "2,315,357,184 parameters" in printed
    assert "on 64 devices at 400 TFLOP/s" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export"], "run `python -m train data` first"),
        (["evaluate", "--sets", "imagenet", "--out", "x.json"], "unknown sets imagenet; known: humaneval"),
        (["calibrate", "--points", "J1-R1"], "nothing to calibrate on the critical path: J1-R1"),
        (["calibrate", "--points", "J1-R1 B"], "'B' is not of the form B=4"),
    ],
    ids=["no-data", "unknown-set", "no-foresight", "unknown-option"],
)
def test_stages_say_what_is_missing(arguments, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        main([*arguments, "--preset", "tiny", "--folder", str(tmp_path)])
