"""One step: what is applied, what is skipped, what is counted (C32, C33)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.batch import Batch
from train.optimizer import OptimizerConfig, learning_rate, make_optimizer
from train.step import init_state, make_train_step
from train.testing import ROW_LEN, ToySource, ToyTask

CONFIG = OptimizerConfig(peak_lr=0.1, total_steps=50, weight_decay=0.1)
BAD_ID = 5


def batch_of(ids: list[int], *, is_answered: bool = True) -> Batch:
    rows = [ToySource(100)[i] for i in ids]
    mask = np.stack([row["answer_mask"] for row in rows]) & is_answered
    return Batch(
        tokens=np.stack([row["tokens"] for row in rows]),
        answer_mask=mask,
        length=np.full(len(ids), ROW_LEN, np.int32),
        ids=np.array(ids, np.int32),
    )


@pytest.fixture(scope="module")
def toy():
    task = ToyTask(bad_ids=(BAD_ID,))
    optimizer = make_optimizer(CONFIG)
    step = make_train_step(task.loss, optimizer, lambda count: learning_rate(CONFIG, count))
    return lambda: init_state(task.init_params(0), optimizer), lambda state, batch: step(state, task.frozen, batch, 3)


def leaves(*trees) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree.leaves(trees)]


def test_a_good_step_changes_parameters_and_reports(toy):
    init, step = toy
    before = leaves(init().params)
    state, metrics = step(init(), batch_of([0, 1, 2, 3]))
    assert all((old != new).any() for old, new in zip(before, leaves(state.params), strict=True))
    assert (int(state.step), int(state.num_skipped), bool(metrics["is_skipped"])) == (1, 0, False)
    assert float(metrics["weight"]) == 4
    assert float(metrics["lr"]) == pytest.approx(0.1 / 2)  # first of two warm-up steps
    assert np.isfinite([metrics["loss"], metrics["grad_norm"]]).all()


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(batch_of([0, BAD_ID, 2, 3]), id="nan-loss"),
        pytest.param(batch_of([0, 1, 2, 3], is_answered=False), id="weight-0"),
    ],
)
def test_a_bad_step_changes_nothing_bitwise_but_the_counters(toy, bad):
    init, step = toy
    state, _ = step(init(), batch_of([0, 1, 2, 3]))
    before = leaves(state.params, state.opt_state)
    state, metrics = step(state, bad)
    for old, new in zip(before, leaves(state.params, state.opt_state), strict=True):
        np.testing.assert_array_equal(old, new)
    assert bool(metrics["is_skipped"])
    assert (int(state.step), int(state.num_skipped), int(state.skipped_in_a_row)) == (2, 1, 1)


def test_a_gradient_that_overflows_is_skipped():
    def loss(params, frozen, batch, key):
        return jnp.sqrt(params["w"]).sum(), {"weight": jnp.float32(1)}  # finite at 0, its slope is not

    optimizer = make_optimizer(CONFIG)
    step = make_train_step(loss, optimizer, lambda count: learning_rate(CONFIG, count))
    state, metrics = step(init_state({"w": jnp.zeros(3)}, optimizer), (), batch_of([0]), 0)
    assert float(metrics["loss"]) == 0
    assert not np.isfinite(metrics["grad_norm"])
    np.testing.assert_array_equal(state.params["w"], np.zeros(3))


def test_counters_follow_good_and_bad_steps_and_the_rate_counts_applied_ones(toy):
    init, step = toy
    state = init()
    good, bad = batch_of([0, 1, 2, 3]), batch_of([BAD_ID])
    seen = []
    for batch in (good, bad, bad, good, bad):
        batch = batch if batch is good else batch_of([BAD_ID, 0, 1, 2])
        state, metrics = step(state, batch)
        seen.append((int(metrics["num_skipped"]), int(metrics["skipped_in_a_row"]), round(float(metrics["lr"]), 4)))
    rates = [round(float(learning_rate(CONFIG, count)), 4) for count in (0, 1, 1, 1, 2)]
    assert seen == [(0, 0, rates[0]), (1, 1, rates[1]), (2, 2, rates[2]), (2, 0, rates[3]), (3, 1, rates[4])]
    assert int(state.step) == 5


def test_the_step_draws_other_noise_each_time_and_the_same_when_repeated(toy):
    init, step = toy
    batch = batch_of([0, 1, 2, 3])
    losses = []
    for _ in range(2):
        _, first = step(init(), batch)
        losses.append(float(first["loss"]))
    shifted, _ = step(init(), batch_of([BAD_ID, 0, 1, 2]))  # skipped: same parameters, next step's noise
    losses.append(float(step(shifted, batch)[1]["loss"]))
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({}, r'must return metrics\["weight"\]'),
        ({"weight": jnp.float32(1), "loss": jnp.float32(1)}, r"\['loss'\]"),
        ({"weight": jnp.float32(1), "each": jnp.zeros(2)}, r"scalars, \['each'\]"),
    ],
    ids=["no-weight", "taken-name", "no-scalar"],
)
def test_metrics_of_the_task_are_checked(metrics, message):
    optimizer = make_optimizer(CONFIG)
    step = make_train_step(lambda p, f, b, k: (p["w"].sum(), metrics), optimizer, lambda c: learning_rate(CONFIG, c))
    with pytest.raises(ValueError, match=message):
        step(init_state({"w": jnp.ones(2)}, optimizer), (), batch_of([0]), 0)
