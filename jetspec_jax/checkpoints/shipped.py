"""Drafters that come with the package: `weights/NAME/` of a checkout, `jetspec_jax/weights/NAME/` of a wheel."""

from pathlib import Path

import jetspec_jax
from jetspec_jax.checkpoints.drafter_config import DraftPart, read_part
from jetspec_jax.config import TargetConfig


def weights_roots() -> tuple[Path, ...]:
    """Folders whose subfolders are shipped drafters; they need not exist."""
    package = Path(jetspec_jax.__file__).parent
    # Beside an installed package lie other people's packages, one of which may be called weights.
    is_checkout = (package.parent / "pyproject.toml").is_file()
    return (*[package.parent / "weights"] * is_checkout, package / "weights")


def default_drafter_folder(target: TargetConfig, name: str | None = None) -> Path | None:
    """The shipped drafter of a target, None if there is none.

    Args:
        target: must equal the target the drafter was trained for, taps included.
        name: takes the drafter of this name only; None takes the first in alphabetical order.

    Raises:
        CheckpointError: a shipped drafter with a bad config.
    """
    for root in weights_roots():
        for config in sorted(root.glob("*/draft/config.json")):
            folder = config.parent.parent
            if folder.name.startswith(".") or name not in (None, folder.name):  # dots: being written
                continue
            if not read_part(config.parent, DraftPart).target.differences(target):
                return folder
    return None
