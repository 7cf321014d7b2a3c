"""Programs compiled ahead of the loop and kept: an executable never recompiles, it refuses other shapes.

On a GPU a program runs as a graph that remembers the addresses of its buffers, and is updated where one is elsewhere. A
donated state can stay where it is; a result beside it lies elsewhere each time. *Recycled* programs write such results
over those of the call before, which their caller has read or copied by then. The room that a program works in moves too
as soon as others take room in between, so a loop should allocate nothing else either (`packed.py`).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jetspec_jax.decoding.room import room_for
from jetspec_jax.ops.kernels import Kernels


@dataclass(frozen=True)
class Over:
    """What a recycled program may write its results over.

    Attributes:
        results: of a call before, beside its state; None: there is none, room is made.
    """

    results: Any | None


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
        self._rooms: dict[tuple, Callable[[], Any]] = {}  # make buffers for what recycled programs return beside it

    def run(
        self,
        name: str,
        key: tuple,
        program: Callable,
        args: tuple,
        *,
        donated: tuple[int, ...],
        device: jax.Device,
        over: Over | None = None,
    ) -> Any:
        """Calls a program, building it if this key has not been seen; returns without waiting for its result.

        Args:
            name: what the program does, for people.
            key: everything static that the program depends on.
            program: a traceable function of `args`.
            args: device arrays.
            donated: indices of the arguments whose buffers the results take over.
            device: where it runs, for `on_dispatch`.
            over: for programs that are called once a round and return their new state, which takes over the donated
                buffers, and something beside it: what was beside it the last time. It is written over.
        """
        is_recycled = over is not None and self.recycles.get(device.platform, False)
        kept_as = (name, *key, is_recycled)
        executable = self._kept.get(kept_as)
        if executable is None:
            if self.on_compile is not None:
                self.on_compile(f"compiling {name} for {key[0][0]} x {key[0][1]} slots")
            began = time.perf_counter()
            # Constants that a user's function closes over are moved while lowering; only the loop is guarded.
            with jax.transfer_guard("allow"):
                executable = self._compiled(kept_as, program, args, donated, device)
            self.compile_ms += 1e3 * (time.perf_counter() - began)
            self.num_compiled += 1
            self._kept[kept_as] = executable
        if is_recycled:
            args = (*args, self._rooms[kept_as]() if over.results is None else over.results)
        outputs = executable(*args)
        if self.on_dispatch is not None:
            self.on_dispatch(name, device, (outputs[0], _copied(outputs[1])) if is_recycled else outputs)
        return outputs

    def jit(
        self, program: Callable, *, donated: tuple[int, ...], device: jax.Device, keep_unused: bool = False
    ) -> Callable:
        """`jax.jit` of a program for a device, with that device's kernels.

        Args:
            keep_unused: results take over donated buffers of their type in order. If leaves of a state that nothing
                reads are dropped, the leaves behind them change places with each call.
        """

        def traced(*args):
            with self.kernels.get(device, Kernels()).tracing():
                return program(*args)

        return jax.jit(traced, donate_argnums=donated, keep_unused=keep_unused)

    def copied(self, results: Any, device: jax.Device) -> Any:
        """Results that a later call writes over, copied to be kept; where nothing is recycled, as they are."""
        return _copied(results) if self.recycles.get(device.platform, False) else results

    def settled(self, place: Any, arrived: Any, device: jax.Device) -> Any:
        """What has arrived on a device, moved to where the last such was; where nothing is recycled, as it is."""
        return _settled(place, arrived) if self.recycles.get(device.platform, False) else arrived

    def _compiled(self, kept_as: tuple, program: Callable, args: tuple, donated, device) -> Callable:
        if is_recycled := kept_as[-1]:
            with self.kernels.get(device, Kernels()).tracing():
                _, beside = jax.eval_shape(program, *args)
            self._rooms[kept_as] = room_for(beside, device)
            args, donated = (*args, beside), (*donated, len(args))
            program = _over_results(program)
        return self.jit(program, donated=donated, device=device, keep_unused=is_recycled).lower(*args).compile()

    def hlo(self, name: str) -> list[str]:
        """Optimised HLO of the programs of this name, to look at."""
        return [executable.as_text() for (kept, *_), executable in self._kept.items() if kept == name]


def _over_results(program: Callable) -> Callable:
    """The program with room for its results as another argument, whose buffers they take over."""

    def over_results(*args):
        return program(*args[:-1])

    return over_results


@partial(jax.jit, donate_argnums=0, keep_unused=True)
def _settled(place: Any, arrived: Any) -> Any:
    return jax.tree.map(jnp.copy, arrived)


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def shapes(tree: Any) -> tuple:
    """Shapes of all arrays of a pytree, as part of a key."""
    return tuple(leaf.shape for leaf in jax.tree.leaves(tree))


def types(leaves: tuple[jax.Array, ...]) -> list[str]:
    """Dtypes and shapes, for messages and comparisons."""
    return [f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves]
