"""Programs compiled ahead of the loop and kept: an executable never recompiles, it refuses other shapes."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

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
    """

    def __init__(self, kernels: Mapping[jax.Device, Kernels] | None = None):
        self.kernels = dict(kernels or {})
        self.num_compiled = 0
        self.compile_ms = 0.0
        self.on_compile: Callable[[str], Any] | None = None
        self.on_dispatch: Callable[[str, jax.Device, Any], Any] | None = None
        self._kept: dict[tuple, Callable] = {}

    def run(
        self, name: str, key: tuple, program: Callable, args: tuple, *, donated: tuple[int, ...], device: jax.Device
    ) -> Any:
        """Calls a program, building it if this key has not been seen; returns without waiting for its result.

        Args:
            name: what the program does, for people.
            key: everything static that the program depends on.
            program: a traceable function of `args`.
            args: device arrays.
            donated: indices of the arguments whose buffers the results take over.
            device: where it runs, for `on_dispatch`.
        """
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
        if self.on_dispatch is not None:
            self.on_dispatch(name, device, outputs)
        return outputs

    def jit(self, program: Callable, *, donated: tuple[int, ...], device: jax.Device) -> Callable:
        """`jax.jit` of a program for a device, with that device's kernels."""

        def traced(*args):
            with self.kernels.get(device, Kernels()).tracing():
                return program(*args)

        return jax.jit(traced, donate_argnums=donated)

    def hlo(self, name: str) -> list[str]:
        """Optimised HLO of the programs of this name, to look at."""
        return [executable.as_text() for (kept, *_), executable in self._kept.items() if kept == name]


def shapes(tree: Any) -> tuple:
    """Shapes of all arrays of a pytree, as part of a key."""
    return tuple(leaf.shape for leaf in jax.tree.leaves(tree))


def types(leaves: tuple[jax.Array, ...]) -> list[str]:
    """Dtypes and shapes, for messages and comparisons."""
    return [f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves]
