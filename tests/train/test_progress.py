"""Lines where there is no terminal, a bar where there is."""

import pytest

from train.progress import TrainingProgress


def test_plain_lines(capsys):
    with TrainingProgress(100, 40, show_bar=False) as progress:
        progress.update(50, 1.25)
        progress.evaluation(50, 2.5)
        progress.update(60, 1.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("step 50/100  loss 1.2500  left 00:00:0")
    assert lines[1] == "step 50/100  tau 2.500"
    assert lines[2].startswith("step 60/100  loss 1.0000  tau 2.500  left")


def test_bar(capsys):
    with TrainingProgress(100, show_bar=True) as progress:
        progress.update(100, 0.5)
    shown = capsys.readouterr().err
    assert "100/100" in shown
    assert "loss 0.5000" in shown


def test_time_left_is_at_the_pace_of_this_run(monkeypatch):
    now = [10.0]
    monkeypatch.setattr("train.progress.time.monotonic", lambda: now[0])
    progress = TrainingProgress(100, 40, show_bar=False)
    now[0] = 30.0  # 10 steps in 20 seconds
    assert progress.seconds_left(50) == pytest.approx(100.0)
