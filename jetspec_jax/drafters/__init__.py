"""Drafters: one protocol, any of them gives the same text."""

from typing import Any

from jax.typing import DTypeLike

from jetspec_jax.config import TargetConfig
from jetspec_jax.drafters.autoregressive import AutoregressiveDrafter
from jetspec_jax.drafters.ngram import NgramDrafter
from jetspec_jax.drafters.parallel import ParallelDrafter
from jetspec_jax.drafters.protocol import Drafter, DraftView, StatelessDrafter
from jetspec_jax.drafters.traceable import CallableDrafter

__all__ = [
    "DRAFTER_NAMES",
    "AutoregressiveDrafter",
    "CallableDrafter",
    "DraftView",
    "Drafter",
    "NgramDrafter",
    "ParallelDrafter",
    "StatelessDrafter",
    "as_drafter",
]


# Names that `as_drafter` knows; `parallel` has random weights.
DRAFTER_NAMES = ("autoregressive", "ngram", "parallel")


def as_drafter(spec: Any, *, target: TargetConfig, dtype: DTypeLike, num_drafts: int | None = None) -> Drafter:
    """A drafter from a name, a drafter object, or a traceable function.

    Args:
        spec: `autoregressive` (or None), `ngram`, `parallel` (random weights), a `Drafter`, or a function.
        target: the target's configuration.
        dtype: dtype of a draft network's weights.
        num_drafts: γ; 0 is plain decoding whatever the name; None takes the drafter's default.

    Raises:
        ValueError: unknown name, or `num_drafts` beside an object that has its own.
    """
    if num_drafts is not None and num_drafts < 0:
        raise ValueError(f"num_drafts={num_drafts} must not be negative")
    if spec is None or spec == "autoregressive" or (num_drafts == 0 and isinstance(spec, str)):
        if num_drafts:
            raise ValueError(f"num_drafts={num_drafts}, but plain decoding drafts nothing")
        return AutoregressiveDrafter()
    if spec == "ngram":
        return NgramDrafter() if num_drafts is None else NgramDrafter(num_drafts)
    if spec == "parallel":
        return ParallelDrafter.random(target, dtype=dtype, num_drafts=num_drafts)
    if isinstance(spec, Drafter):
        if num_drafts not in (None, spec.num_drafts):
            raise ValueError(f"num_drafts={num_drafts}, but the drafter proposes {spec.num_drafts}")
        return spec
    if callable(spec):
        if num_drafts is None:
            raise ValueError("a function as drafter needs num_drafts")
        return CallableDrafter(spec, num_drafts)
    raise ValueError(f"unknown drafter {spec!r}; known: autoregressive, ngram, parallel, a Drafter, or a function")
