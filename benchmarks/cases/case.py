"""One operation at one shape, in three forms that take the same arrays and return the same results.

The XLA form is what `jetspec_jax` runs where it does not take the kernel. Alone it cannot be fused with its neighbours
as in a whole step, so the last word on a kernel is that of `benchmarks/round.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from benchmarks.chains import Inputs

Call = Callable[..., tuple[Any, tuple]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """An operation at a shape.

    Attributes:
        name: of the shape and its variant.
        kernel, xla, reference: `(*own, *shared, *state) -> (results, state)`; the kernel also takes a `config`, None
            for its default.
        make: draws the inputs of one call.
        num_bytes: what must be read and written at least.
        configs: configs of the kernel for a sweep.
    """

    name: str
    kernel: Call
    xla: Call
    reference: Call
    make: Callable[[Key[Array, ""]], Inputs]
    num_bytes: int
    configs: Callable[[], Sequence[Any]]


def normal(
    key: Key[Array, ""], *shape: int, scale: float = 1.0, dtype: DTypeLike = jnp.bfloat16
) -> Float[Array, "*shape"]:
    """Normal numbers of a standard deviation, drawn in fp32."""
    return (scale * jax.random.normal(key, shape, jnp.float32)).astype(dtype)
