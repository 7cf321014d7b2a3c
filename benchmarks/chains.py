"""Many calls of one operation in one program, so that the device is timed and not the host.

A call from the host keeps it busy for 45 us or more, and most operations of a decode step take the device 2 to 50 us.
A chain is a loop (of known length: the host never waits) around one call for each of several operand sets. The sets are
independent and rotate, so that a weight has left the second-level cache before it is read again, if all sets together
are larger than that.

What the compiler must not do, and what keeps it from it; looked up in the programs it makes for an H200 (jax 0.11.2 and
0.12.0.1: one kernel a call of SwiGLU, none outside the loop):

* leave calls out: every result leaves the loop;
* do the loop's work once, before it: what a call reads has passed a barrier together with what the iteration before
  gave. Barriers alone would not do: they vanish early, and calls without a reader with them;
* run calls side by side: the commands of a CUDA graph are serialised.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.timing import dispatch_ms, queued_ms

# Refused where the option is not known, so a chain never runs without it.
SERIALISED = {"xla_gpu_command_buffer_scheduling_mode": "SERIALIZE"}
L2_BYTES = 60 * 2**20  # of an H200
ROTATED_BYTES = 4 * L2_BYTES
MIN_SETS, MAX_SETS = 4, 32
PROGRAM_US, CALL_US = 1000, 2  # a program should last at least as long; no call is quicker


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inputs:
    """What one call of an operation gets, in this order.

    Attributes:
        own: arrays that each call has its own of, as each layer of a model does.
        shared: arrays that all calls of a model's step share: masks, lengths, angles.
        state: arrays that the call returns changed, donated.
    """

    own: tuple
    shared: tuple = ()
    state: tuple = ()

    @property
    def arguments(self) -> tuple:
        """All of them."""
        return (*self.own, *self.shared, *self.state)


def num_sets(num_bytes: int) -> int:
    """Operand sets that exceed the second-level cache together, within bounds, if each reads `num_bytes`."""
    return min(max(MIN_SETS, math.ceil(ROTATED_BYTES / num_bytes)), MAX_SETS)


def num_loops(floor_us: float, num_calls: int) -> int:
    """Iterations that make a program last about a millisecond, if a call takes `floor_us`."""
    return math.ceil(PROGRAM_US / (num_calls * max(floor_us, CALL_US)))


class Chain:
    """`loops` times a call for each of the inputs.

    Args:
        call: `(*own, *shared, *state) -> (results, state)`.
        inputs: one a call; what is shared is taken from the first. Their state is copied, not donated.
        loops: iterations.
    """

    def __init__(self, call: Callable[..., tuple[Any, tuple]], inputs: Sequence[Inputs], loops: int):
        inner = jax.jit(call)  # traced and lowered once for all calls

        def program(carry, own, shared):
            def body(_, carry):
                common, _ = jax.lax.optimization_barrier((shared, carry))
                after = []
                for mine, (results, state) in zip(own, carry, strict=True):
                    mine, _ = jax.lax.optimization_barrier((mine, results))
                    after.append(inner(*mine, *common, *state))
                return after

            return jax.lax.fori_loop(0, loops, body, carry)

        own, shared = [one.own for one in inputs], inputs[0].shared
        self._program = jax.jit(program, donate_argnums=(0,), compiler_options=SERIALISED)
        self._call = lambda carry: self._program(carry, own, shared)
        results, _ = jax.eval_shape(inner, *inputs[0].arguments)
        self._carry = [
            (jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), results), jax.tree.map(jnp.copy, one.state))
            for one in inputs
        ]
        self.num_calls = loops * len(inputs)

    def run(self) -> tuple[Any, tuple]:
        """Runs the program; what the call on the first inputs gave, good until the next run."""
        self._carry = self._call(self._carry)
        return self._carry[0]

    def measure(self, repeats: int) -> dict[str, float]:
        """Median milliseconds a call, and the share of the program's time for which starting it keeps the host.

        A share near 1 says that the host was timed after all. Nothing can be run afterwards.
        """
        carry, self._carry = self._carry, None
        copy = jax.tree.map(jnp.copy, carry)
        ms = queued_ms(self._call, carry, repeats=repeats)
        return {"ms": ms / self.num_calls, "host_share": dispatch_ms(self._call, copy, repeats=5) / ms}
