"""Always-on guards: two CPU devices, strict rank promotion, no dtype surprises, checked annotations (pyproject)."""

import os
import tempfile
from dataclasses import fields

# Before the first import of jax.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"

# Threads of XLA's CPU client. The Mosaic GPU interpreter runs each warpgroup as a program that may wait for another one
# in a callback; with one thread a core they can wait for each other for ever on two cores.
os.environ["NPROC"] = "32"

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

# Most of the suite's time is compilation, and many models share programs: each is compiled once a session. Not across
# sessions: machine code need not fit the next machine.
_compiled = tempfile.TemporaryDirectory(prefix="jetspec-tests-")
jax.config.update("jax_compilation_cache_dir", _compiled.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_unconfigure() -> None:
    _compiled.cleanup()


_plain_register_dataclass = jax.tree_util.register_dataclass


def _register_dataclass(cls: type, *args, **kwargs) -> type:
    """`jax.tree_util.register_dataclass` for checked annotations: what JAX itself rebuilds skips `__init__`.

    JAX also unflattens around things that are no arrays (numpy results, descriptions of arguments), which a checked
    `__init__` must refuse. Construction by name and `replace` stay checked.
    """
    if args or kwargs or cls.__module__.startswith("jax."):  # those of flax and JAX themselves
        return _plain_register_dataclass(cls, *args, **kwargs)
    static = [field.name for field in fields(cls) if field.metadata.get("static")]
    data = [field.name for field in fields(cls) if field.name not in static]

    def flatten_with_keys(tree):
        children = [(jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in data]
        return children, tuple(getattr(tree, name) for name in static)

    def unflatten(aux, children):
        tree = object.__new__(cls)
        for name, value in [*zip(data, children, strict=True), *zip(static, aux, strict=True)]:
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten)
    return cls


# Before the first import of jetspec_jax.
jax.tree_util.register_dataclass = _register_dataclass


@pytest.fixture(scope="session")
def cpu_devices() -> list[jax.Device]:
    devices = jax.devices("cpu")
    assert len(devices) == 2
    return devices
