"""One training step as a pure function: an update that is not finite, or that nothing supervises, is not applied.

The choice is made on the device, so the host never waits for it; `loop.py` reads the counters late.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from train.batch import Batch

TaskLoss = Callable[[Any, Any, Batch, Array], tuple[Float[Array, ""], dict[str, Float[Array, ""]]]]
TrainStep = Callable[["TrainState", Any, Batch, int], tuple["TrainState", dict[str, Array]]]

OWN_METRICS = ("loss", "grad_norm", "lr", "is_skipped", "num_skipped", "skipped_in_a_row")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that a step changes; donated each call.

    Attributes:
        step: steps made, skipped ones included.
        params: fp32 master arrays.
        opt_state: of optax; counts applied updates only.
        num_skipped: steps whose update was not applied.
        skipped_in_a_row: how many of the last steps were skipped.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    num_skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]


def init_state(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step; holds `params` itself, which the first step donates."""
    return TrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=optimizer.init(params),
        num_skipped=jnp.int32(0),
        skipped_in_a_row=jnp.int32(0),
    )


def make_train_step(
    task_loss: TaskLoss,
    optimizer: optax.GradientTransformation,
    learning_rate: Callable[[Int[Array, ""]], Float[Array, ""]],
    *,
    sharding: jax.sharding.Sharding | None = None,
) -> TrainStep:
    """The jitted step `(state, frozen, batch, seed) -> (state, metrics)`; `state` is donated.

    Randomness is `fold_in(key(seed), state.step)`: it depends on the step alone, never on how often training stopped.

    Args:
        task_loss: see `Task.loss`.
        learning_rate: from applied updates to the rate, for the metric "lr" only.
        sharding: of the new state and the metrics (replicated, over several devices); None leaves it to the compiler.

    Returns:
        Metrics beside the task's own: loss, grad_norm (before clipping), lr, is_skipped, num_skipped and
        skipped_in_a_row (both after this step). The first two may be NaN where is_skipped.
    """

    def train_step(
        state: TrainState, frozen: Any, batch: Batch, seed: int | Int[Array, ""]
    ) -> tuple[TrainState, dict[str, Array]]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        (loss, metrics), grads = jax.value_and_grad(task_loss, has_aux=True)(state.params, frozen, batch, key)
        _check_metrics(metrics)
        grad_norm = _global_norm(grads)
        is_good = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (metrics["weight"] > 0)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        new_state = TrainState(
            step=state.step + 1,
            params=_select(is_good, params, state.params),
            opt_state=_select(is_good, opt_state, state.opt_state),
            num_skipped=state.num_skipped + ~is_good,
            skipped_in_a_row=jnp.where(is_good, 0, state.skipped_in_a_row + 1),
        )
        own = (
            loss,
            grad_norm,
            learning_rate(state.step - state.num_skipped),
            ~is_good,
            new_state.num_skipped,
            new_state.skipped_in_a_row,
        )
        return new_state, {**metrics, **dict(zip(OWN_METRICS, own, strict=True))}

    out_shardings = None if sharding is None else (sharding, sharding)
    return jax.jit(train_step, donate_argnames="state", out_shardings=out_shardings)


def _check_metrics(metrics: dict[str, Any]) -> None:
    """Runs while tracing."""
    if "weight" not in metrics:
        raise ValueError(f'the loss must return metrics["weight"], got {sorted(metrics)}')
    if taken := sorted(set(metrics) & set(OWN_METRICS)):
        raise ValueError(f"the step itself reports {taken}; the task's metrics need other names")
    if shaped := sorted(name for name, value in metrics.items() if jnp.shape(value)):
        raise ValueError(f"metrics must be scalars, {shaped} are not")


def _global_norm(grads: Any) -> Float[Array, ""]:
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(grads)]
    return jnp.sqrt(sum(squares, jnp.float32(0)))


def _select(is_new: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda n, o: jnp.where(is_new, n, o), new, old)
