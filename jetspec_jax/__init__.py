"""Lossless speculative decoding of large language models in JAX."""

from typing import Any

__version__ = "0.1.0"

# Public name -> module. Imported on first use, so that `import jetspec_jax` stays cheap.
_PUBLIC = {
    "load": "jetspec_jax.api",
    "generate": "jetspec_jax.api",
    "stream": "jetspec_jax.api",
    "warm_up": "jetspec_jax.api",
    "LanguageModel": "jetspec_jax.language_model",
    "DraftLimitWarning": "jetspec_jax.language_model",
    "LowAcceptanceWarning": "jetspec_jax.language_model",
    "SamplingParams": "jetspec_jax.sampling_params",
    "DraftingConfig": "jetspec_jax.drafting_config",
    "RefineConfig": "jetspec_jax.drafting_config",
    "GenerationOutput": "jetspec_jax.outputs",
    "StreamChunk": "jetspec_jax.outputs",
}

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'jetspec_jax' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
