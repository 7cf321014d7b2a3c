"""Always-on guards: two CPU devices, strict rank promotion, no dtype surprises, checked annotations (pyproject)."""

import os

# Before the first import of jax.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def cpu_devices() -> list[jax.Device]:
    devices = jax.devices("cpu")
    assert len(devices) == 2
    return devices
