"""What stands beside every measured number: device, versions, command."""

import datetime
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from jetspec_jax.language_model import LanguageModel


def environment(model: LanguageModel | None = None) -> dict[str, Any]:
    """Date, device, load, versions, command and model of a measurement, as JSON types."""
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": _device_name(),
        "num_devices": jax.device_count(),
        "load_average": _load_average(),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in ("jax", "jaxlib", "flax")}},
        "command": _command(),
    }
    if model is not None:
        record["model"] = {
            "type": model.config.model_type,
            "parameters": model.num_parameters,
            "dtype": jax.numpy.dtype(model.dtype).name,
        }
    return record


def _command() -> str:
    """How the program was started, without folders of this machine: records are committed."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = Path(sys.argv[0]).name if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"
    arguments = [Path(argument).name if Path(argument).is_absolute() else argument for argument in sys.argv[1:]]
    return " ".join([program, *arguments])


def _device_name() -> str:
    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    names = [line.split(":", 1)[1].strip() for line in _cpu_info() if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or 'CPU'}, {len(names) or '?'} cores"


def _load_average() -> float | None:
    """Of the last minute: more than the cores there are means that times were disturbed; None where unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _cpu_info() -> list[str]:
    info = Path("/proc/cpuinfo")
    return info.read_text().splitlines() if info.exists() else []
