"""How benchmarks time device work: calls queued without waiting, the median of many such queues."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def queued_ms(call: Callable[[Any], Any], state: Any, *, repeats: int, calls: int = 10) -> float:
    """Milliseconds a call, host and device overlapping as in a decoding loop: median over `repeats` queues of `calls`.

    Args:
        call: `state -> state`, asynchronous; a donated state is fine.
        state: the first one. Three calls warm up.
    """
    for _ in range(3):
        state = call(state)
    jax.block_until_ready(state)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(calls):
            state = call(state)
        jax.block_until_ready(state)
        times.append(1e3 * (time.perf_counter() - began) / calls)
    return statistics.median(times)


def dispatch_ms(call: Callable[[Any], Any], state: Any, *, repeats: int) -> float:
    """Milliseconds the host is kept by a call that finds the device idle; median."""
    times = []
    for _ in range(repeats + 3):
        jax.block_until_ready(state)
        began = time.perf_counter()
        state = call(state)
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[3:])


def read_bandwidth(device: jax.Device, num_bytes: int, repeats: int) -> float:
    """Bytes a second of summing a large bf16 array, the median; what every floor of a run is computed from."""
    array = jax.device_put(jnp.ones((num_bytes // 2**14, 2**13), jnp.bfloat16), device)
    total = jax.jit(lambda array, before: before + jnp.sum(array, dtype=jnp.float32))
    ms = queued_ms(lambda state: total(array, state), jax.device_put(jnp.float32(0), device), repeats=repeats)
    return num_bytes / (1e-3 * ms)
