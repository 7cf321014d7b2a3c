"""A task that trains in milliseconds: a linear model, for tests of the loop and as an example of `Task`."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from train.batch import Batch
from train.task import Params

ROW_LEN = 8


@dataclass(frozen=True)
class ToySource:
    """Rows of random tokens below 10; the second half of each is the answer.

    Attributes:
        num_rows: of the source; row i has id i.
        num_bare: so many of the first rows have no answer.
    """

    num_rows: int
    num_bare: int = 0

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        """A function of `index` alone."""
        tokens = np.random.default_rng(index).integers(0, 10, ROW_LEN).astype(np.int32)
        answer_mask = (np.arange(ROW_LEN) >= ROW_LEN // 2) & (index >= self.num_bare)
        return {"tokens": tokens, "answer_mask": answer_mask, "length": ROW_LEN, "id": index}


@dataclass(frozen=True)
class ToyTask:
    """Predicts a fixed linear function of a row's tokens, with noise on what it is shown.

    Attributes:
        bad_ids: a batch with one of these records has a NaN loss.
    """

    bad_ids: tuple[int, ...] = ()
    name: str = "toy"

    def init_params(self, seed: int) -> Params:
        """Weights and a bias."""
        return {"w": jax.random.normal(jax.random.key(seed), (ROW_LEN,)) / 10, "b": jnp.zeros(())}

    @property
    def frozen(self) -> Any:
        """The function to learn."""
        return {"w": jnp.arange(ROW_LEN, dtype=jnp.float32) / ROW_LEN}

    def loss(self, params: Params, frozen: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Mean squared error over rows with an answer; the sum of ids tells which batch it was."""
        inputs = batch.tokens / 10
        noise = jax.random.normal(key, (inputs.shape[0],)) / 100
        error = jnp.square(inputs @ params["w"] + params["b"] - inputs @ frozen["w"] - noise)
        weight = batch.answer_mask.any(axis=1).astype(jnp.float32)
        is_bad = jnp.isin(batch.ids, jnp.array(self.bad_ids, jnp.int32)).any()
        loss = jnp.where(is_bad, jnp.nan, jnp.sum(error * weight) / weight.sum())
        place = jnp.arange(1, inputs.shape[0] + 1)
        return loss, {"weight": weight.sum(), "ids_sum": batch.ids.sum(), "ids_order": (batch.ids * place).sum()}

    def evaluate(self, params: Params, step: int) -> dict[str, float]:
        """tau falls with the distance to the function to learn."""
        return {"tau": 1 / (1 + float(jnp.abs(params["w"] - self.frozen["w"]).sum()))}
