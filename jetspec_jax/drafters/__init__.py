"""Drafters: one protocol, any of them gives the same text."""

from dataclasses import replace
from typing import Any

from jax.typing import DTypeLike

from jetspec_jax.config import TargetConfig
from jetspec_jax.drafters.autoregressive import AutoregressiveDrafter
from jetspec_jax.drafters.jetspecpp import PLAIN_PASS, JetSpecPP
from jetspec_jax.drafters.ngram import NgramDrafter
from jetspec_jax.drafters.predictor import AdapterPredictor, Predictor
from jetspec_jax.drafters.protocol import Drafter, DraftView, StatelessDrafter
from jetspec_jax.drafters.traceable import CallableDrafter
from jetspec_jax.drafting_config import DraftingConfig

__all__ = [
    "DRAFTER_NAMES",
    "PLAIN_PASS",
    "AdapterPredictor",
    "AutoregressiveDrafter",
    "CallableDrafter",
    "DraftView",
    "Drafter",
    "JetSpecPP",
    "NgramDrafter",
    "Predictor",
    "StatelessDrafter",
    "as_drafter",
]


# Names that `as_drafter` knows; the last two have random weights.
DRAFTER_NAMES = ("autoregressive", "ngram", "parallel", "jetspec++")


def as_drafter(
    spec: Any,
    *,
    target: TargetConfig,
    dtype: DTypeLike,
    num_drafts: int | None = None,
    drafting: DraftingConfig | None = None,
) -> Drafter:
    """A drafter from a name, a drafter object, or a traceable function.

    Args:
        spec: `autoregressive` (or None), `ngram`, `parallel` (one pass of a block draft), `jetspec++`, a `Drafter`, or
            a function.
        target: the target's configuration.
        dtype: dtype of a draft network's weights.
        num_drafts: γ; 0 is plain decoding whatever the name; None takes the drafter's default.
        drafting: how `jetspec++` drafts.

    Raises:
        ValueError: unknown name, or `num_drafts` or `drafting` beside something that has its own or cannot use it.
    """
    if drafting is not None and spec != "jetspec++":
        raise ValueError(f"drafting is for the drafter 'jetspec++', not for {spec!r}")
    if num_drafts is not None and num_drafts < 0:
        raise ValueError(f"num_drafts={num_drafts} must not be negative")
    if drafting is not None and num_drafts == 0:
        raise ValueError("num_drafts=0 is plain decoding, but drafting asks for JetSpec++")
    if spec is None or spec == "autoregressive" or (num_drafts == 0 and isinstance(spec, str)):
        if num_drafts:
            raise ValueError(f"num_drafts={num_drafts}, but plain decoding drafts nothing")
        return AutoregressiveDrafter()
    if spec == "ngram":
        return NgramDrafter() if num_drafts is None else NgramDrafter(num_drafts)
    if spec in ("parallel", "jetspec++"):
        chosen = PLAIN_PASS if spec == "parallel" else drafting or DraftingConfig()
        if num_drafts is not None:
            chosen = replace(chosen, num_drafts=num_drafts)
        return JetSpecPP.random(target, dtype=dtype, drafting=chosen)
    if isinstance(spec, Drafter):
        if num_drafts not in (None, spec.num_drafts):
            raise ValueError(f"num_drafts={num_drafts}, but the drafter proposes {spec.num_drafts}")
        return spec
    if callable(spec):
        if num_drafts is None:
            raise ValueError("a function as drafter needs num_drafts")
        return CallableDrafter(spec, num_drafts)
    raise ValueError(f"unknown drafter {spec!r}; known: {', '.join(DRAFTER_NAMES)}, a Drafter, or a function")
