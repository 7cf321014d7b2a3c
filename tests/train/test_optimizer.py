"""Schedule and update rules."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from train.optimizer import OptimizerConfig, learning_rate, make_optimizer


def test_rate_rises_over_the_warm_up_and_falls_to_the_final_fraction():
    config = OptimizerConfig(peak_lr=1.0, total_steps=100, warmup_fraction=0.04, final_lr_fraction=0.1)
    rates = [float(learning_rate(config, step)) for step in range(120)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[52] == pytest.approx(0.55)  # half way down the cosine
    assert all(a >= b for a, b in pairwise(rates[4:]))
    assert rates[100:] == pytest.approx([0.1] * 20)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_minimises_a_quadratic_and_decays_matrices_only(kind):
    config = OptimizerConfig(peak_lr=0.05, total_steps=100, kind=kind)
    optimizer = make_optimizer(config)
    params = {"matrix": jnp.eye(4, 3), "vector": jnp.ones(3)}
    state = optimizer.init(params)

    @jax.jit
    def descend(params, state):
        updates, state = optimizer.update({name: 2 * value for name, value in params.items()}, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(30):
        params, state = descend(params, state)
    assert all(float(jnp.abs(value).max()) < 0.8 for value in params.values())

    decayed = make_optimizer(OptimizerConfig(peak_lr=0.05, total_steps=100, kind=kind, weight_decay=0.5))
    start = {"matrix": jnp.ones((4, 3)), "vector": jnp.ones(3)}
    zero = {name: jnp.zeros_like(value) for name, value in start.items()}
    updates, _ = decayed.update(zero, decayed.init(start), start)
    assert float(updates["matrix"].max()) < 0
    if kind == "adamw":
        np.testing.assert_array_equal(updates["vector"], np.zeros(3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "sgd"}, "kind must be 'adamw' or 'muon', got 'sgd'"),
        ({"peak_lr": 0.0}, "peak_lr must be positive, got 0.0"),
        ({"total_steps": 0}, "total_steps must be at least 1, got 0"),
        ({"warmup_fraction": 1.5}, r"warmup_fraction must be in \[0, 1\], got 1.5"),
    ],
)
def test_refuses(values, message):
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**{"peak_lr": 1e-3, "total_steps": 10, **values})
