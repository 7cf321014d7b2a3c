"""What the loop trains: the contract between `loop.py` and the draft, adapter and toy tasks."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float

from train.batch import Batch

Params = Any  # a pytree of fp32 arrays


@runtime_checkable
class Task(Protocol):
    """One thing to train: the pure loss, its frozen arrays, and what it is measured by.

    Attributes:
        name: stored with every checkpoint; a run resumes only under the same name.
    """

    name: str

    def init_params(self, seed: int) -> Params:
        """The fp32 master arrays training starts from."""
        ...

    @property
    def frozen(self) -> Any:
        """A pytree of arrays that the loss reads and nothing updates (the target's leaves); may be empty."""
        ...

    def loss(
        self, params: Params, frozen: Any, batch: Batch, key: Array
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The loss and scalar metrics of a global batch; pure, traced once.

        The loss is the sum over supervised rows divided by `metrics["weight"]`, the total weight of supervision in the
        batch. A batch with weight 0 is skipped by the step, whatever the loss is.
        """
        ...

    def evaluate(self, params: Params, step: int) -> dict[str, float]:
        """Measures by real decoding; "tau" among the results chooses the best checkpoint.

        Every process measures; `params` lie on its first device.
        """
        ...
