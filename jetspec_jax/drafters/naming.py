"""What `drafter=` accepts: names, folders of trained weights, drafter objects, functions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from jax.typing import DTypeLike

# Modules, not functions: the loader of drafters imports this package.
from jetspec_jax.checkpoints import drafter_files, shipped
from jetspec_jax.config import TargetConfig
from jetspec_jax.drafters.autoregressive import AutoregressiveDrafter
from jetspec_jax.drafters.jetspecpp import PLAIN_PASS, JetSpecPP
from jetspec_jax.drafters.ngram import NgramDrafter
from jetspec_jax.drafters.protocol import Drafter
from jetspec_jax.drafters.traceable import CallableDrafter
from jetspec_jax.drafting_config import AT_CRITICAL_PATH, ON_CPU, DraftingConfig

# The default: what is best for the target without training anything.
AUTO = "auto"
DRAFTER_NAMES = ("autoregressive", "ngram", "parallel", "jetspec++", AUTO)


def is_folder_spec(spec: Any) -> bool:
    """Whether a drafter is named by the folder, or the Hugging Face id, of its weights."""
    if isinstance(spec, Path):
        return True
    return isinstance(spec, str) and spec not in DRAFTER_NAMES and ("/" in spec or Path(spec).expanduser().is_dir())


def check_drafter_spec(spec: Any) -> None:
    """Refuses what can be refused before a target is loaded.

    Raises:
        ValueError: a string that is neither a name nor a folder nor an id.
    """
    if isinstance(spec, str) and spec not in DRAFTER_NAMES and not is_folder_spec(spec):
        raise _unknown(spec)


def as_drafter(
    spec: Any,
    *,
    target: TargetConfig,
    dtype: DTypeLike,
    num_drafts: int | None = None,
    drafting: DraftingConfig | None = None,
    drafts_ahead: bool = True,
    on_cpu: bool = False,
) -> Drafter:
    """A drafter from a name, a folder of trained weights, a drafter object, or a traceable function.

    Args:
        spec: `auto` (`jetspec++` if weights for this target are shipped, else `ngram`), `autoregressive` (or None),
            `ngram`, `parallel` (one pass of a block draft), `jetspec++` (these two with shipped weights, random ones
            without), the folder or Hugging Face id of a drafter, a `Drafter`, or a function.
        target: the target's configuration.
        dtype: dtype of a draft network's weights.
        num_drafts: γ; 0 is plain decoding whatever the name; None takes the drafter's default.
        drafting: how `jetspec++` or a drafter from a folder drafts; None takes the defaults.
        drafts_ahead: whether these foresee outcomes. On one device there is no time to hide that work in.
        on_cpu: whether the defaults of `auto` are those for a CPU: one pass and small blocks.

    Raises:
        ValueError: unknown name, weights of another target, or `num_drafts` or `drafting` beside something that has its
            own or cannot use it.
    """
    is_folder = is_folder_spec(spec)
    if drafting is not None and not is_folder and spec not in ("jetspec++", AUTO):
        raise ValueError(f"drafting is for the drafter 'jetspec++', not for {spec!r}")
    if num_drafts is not None and num_drafts < 0:
        raise ValueError(f"num_drafts={num_drafts} must not be negative")
    if drafting is not None and num_drafts == 0:
        raise ValueError("num_drafts=0 is plain decoding, but drafting asks for JetSpec++")
    if spec is None or spec == "autoregressive" or (num_drafts == 0 and isinstance(spec, str | Path)):
        if num_drafts:
            raise ValueError(f"num_drafts={num_drafts}, but plain decoding drafts nothing")
        return AutoregressiveDrafter()
    if is_folder or spec in ("parallel", "jetspec++", AUTO):
        return _from_weights(spec, target, dtype, num_drafts, drafting, drafts_ahead, on_cpu)
    if spec == "ngram":
        return _ngram(num_drafts)
    if isinstance(spec, Drafter):
        if num_drafts not in (None, spec.num_drafts):
            raise ValueError(f"num_drafts={num_drafts}, but the drafter proposes {spec.num_drafts}")
        return spec
    if callable(spec):
        if num_drafts is None:
            raise ValueError("a function as drafter needs num_drafts")
        return CallableDrafter(spec, num_drafts)
    raise _unknown(spec)


def _from_weights(
    spec: Any,
    target: TargetConfig,
    dtype: DTypeLike,
    num_drafts: int | None,
    drafting: DraftingConfig | None,
    drafts_ahead: bool,
    on_cpu: bool,
) -> Drafter:
    """A drafter with trained weights where there are any."""
    folder = spec if is_folder_spec(spec) else shipped.default_drafter_folder(target)
    if spec == "parallel":
        drafting = PLAIN_PASS
    elif folder is None and spec == AUTO:
        if drafting is not None:
            raise ValueError(
                "drafting is for the drafter 'jetspec++', but no weights for this target are shipped, "
                "and without them 'auto' is 'ngram'"
            )
        return _ngram(num_drafts)
    elif spec == AUTO and drafting is None and on_cpu and not drafts_ahead:
        drafting = ON_CPU
    elif spec == "jetspec++" and drafting is None:
        drafting = DraftingConfig() if drafts_ahead else AT_CRITICAL_PATH
    if drafting is not None and num_drafts is not None:
        drafting = replace(drafting, num_drafts=num_drafts)
    if folder is None:
        return JetSpecPP.random(target, dtype=dtype, drafting=drafting)
    drafter = drafter_files.load_drafter(folder, target, dtype=dtype, drafting=drafting, drafts_ahead=drafts_ahead)
    return drafter if num_drafts in (None, drafter.num_drafts) else drafter.with_drafting(num_drafts=num_drafts)


def _ngram(num_drafts: int | None) -> NgramDrafter:
    return NgramDrafter() if num_drafts is None else NgramDrafter(num_drafts)


def _unknown(spec: Any) -> ValueError:
    names = ", ".join(DRAFTER_NAMES)
    return ValueError(f"unknown drafter {spec!r}; known: {names}, the folder of a drafter, a Drafter, or a function")
