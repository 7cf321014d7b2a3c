"""Programs compiled ahead of the loop and kept: an executable never recompiles, it refuses other shapes.

On a GPU a program runs as a graph that remembers the addresses of its buffers. A donated state stays where it is, but a
result beside it lies elsewhere each time, and then the runtime updates the graph's hundreds of nodes before it launches
it. *Recycled* programs write such results over those of the call before and hand out copies.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jetspec_jax.ops.kernels import Kernels


class Executables:
    """Compiles and keeps executables.

    Args:
        kernels: the operations that run as GPU kernels, by device; devices that are not named run none.

    Attributes:
        kernels: as given; after a compilation they tell what was refused.
        num_compiled: executables built so far.
        compile_ms: time spent building them.
        on_compile: told what is being compiled.
        on_dispatch: told `(name, device, outputs)` of every call, for timelines; it must not wait for anything.
        recycles: whether programs of a platform that ask for it are recycled.
    """

    def __init__(self, kernels: Mapping[jax.Device, Kernels] | None = None):
        self.kernels = dict(kernels or {})
        self.num_compiled = 0
        self.compile_ms = 0.0
        self.on_compile: Callable[[str], Any] | None = None
        self.on_dispatch: Callable[[str, jax.Device, Any], Any] | None = None
        self.recycles: dict[str, bool] = {"gpu": True}
        self._kept: dict[tuple, Callable] = {}
        self._results: dict[tuple, Any] = {}  # of recycled programs, to be written over

    def run(
        self,
        name: str,
        key: tuple,
        program: Callable,
        args: tuple,
        *,
        donated: tuple[int, ...],
        device: jax.Device,
        is_recycled: bool = False,
    ) -> Any:
        """Calls a program, building it if this key has not been seen; returns without waiting for its result.

        Args:
            name: what the program does, for people.
            key: everything static that the program depends on.
            program: a traceable function of `args`.
            args: device arrays.
            donated: indices of the arguments whose buffers the results take over.
            device: where it runs, for `on_dispatch`.
            is_recycled: it returns its new state, which takes over the donated buffers, and something beside it.
        """
        is_recycled = is_recycled and self.recycles.get(device.platform, False)
        if is_recycled:
            # Taken out: another loop that runs the same program meanwhile makes its own.
            results = self._results.pop((name, *key), None)
            args = (*args, self._room(program, args, device) if results is None else results)
            program, donated = _over_results(program), (*donated, len(args) - 1)
        executable = self._kept.get((name, *key))
        if executable is None:
            if self.on_compile is not None:
                self.on_compile(f"compiling {name} for {key[0][0]} x {key[0][1]} slots")
            began = time.perf_counter()
            # Constants that a user's function closes over are moved while lowering; only the loop is guarded.
            with jax.transfer_guard("allow"):
                executable = self.jit(program, donated=donated, device=device).lower(*args).compile()
            self.compile_ms += 1e3 * (time.perf_counter() - began)
            self.num_compiled += 1
            self._kept[(name, *key)] = executable
        outputs = executable(*args)
        if is_recycled:
            state, self._results[name, *key] = outputs
            outputs = state, _copied(self._results[name, *key])
        if self.on_dispatch is not None:
            self.on_dispatch(name, device, outputs)
        return outputs

    def jit(self, program: Callable, *, donated: tuple[int, ...], device: jax.Device) -> Callable:
        """`jax.jit` of a program for a device, with that device's kernels."""

        def traced(*args):
            with self.kernels.get(device, Kernels()).tracing():
                return program(*args)

        # Results take over donated buffers of their type in order. A leaf of the state that nothing reads must not be
        # dropped, or the leaves behind it change places with each call.
        return jax.jit(traced, donate_argnums=donated, keep_unused=True)

    def _room(self, program: Callable, args: tuple, device: jax.Device) -> Any:
        """Buffers for what a recycled program returns beside its state."""
        with jax.transfer_guard("allow"), self.kernels.get(device, Kernels()).tracing():
            _, beside = jax.eval_shape(program, *args)
            with jax.default_device(device):
                # Each its own: they are donated one by one.
                return jax.device_put(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), beside), device)

    def hlo(self, name: str) -> list[str]:
        """Optimised HLO of the programs of this name, to look at."""
        return [executable.as_text() for (kept, *_), executable in self._kept.items() if kept == name]


def _over_results(program: Callable) -> Callable:
    """The program with room for its results as another argument, whose buffers they take over."""

    def over_results(*args):
        return program(*args[:-1])

    return over_results


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def shapes(tree: Any) -> tuple:
    """Shapes of all arrays of a pytree, as part of a key."""
    return tuple(leaf.shape for leaf in jax.tree.leaves(tree))


def types(leaves: tuple[jax.Array, ...]) -> list[str]:
    """Dtypes and shapes, for messages and comparisons."""
    return [f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves]
