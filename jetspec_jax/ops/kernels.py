"""Which operations run as GPU kernels (`pallas_kernels`), decided while a program is traced.

Every operation has an XLA form. The kernel is taken where the program's device has one, it was asked for, and it takes
the shapes; otherwise the XLA form, and `Kernels.refused` says why.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax

OPS = ("attention", "qk_norm_rope", "residual_norm", "swiglu", "matmul", "head_draw")
# What is faster than XLA's form, by measurement (`benchmarks/kernels.py`, docs/results.md); nothing is until measured.
MEASURED: dict[str, tuple[str, ...]] = {}

_tracing: ContextVar["Kernels | None"] = ContextVar("kernels", default=None)


class Kernels:
    """The operations that programs of one device run as kernels; a context manager around their tracing.

    Attributes:
        ops: names from `OPS`.
        refused: operation -> why a kernel that was asked for was not taken.
    """

    def __init__(self, ops: Sequence[str] = ()):
        if unknown := sorted(set(ops) - set(OPS)):
            raise ValueError(f"unknown kernels {unknown}; there are {list(OPS)}")
        self.ops = frozenset(ops)
        self.refused: dict[str, set[str]] = {}
        self._tokens: list[Any] = []

    @classmethod
    def for_device(cls, device: jax.Device, asked: str | Sequence[str] = "auto") -> "Kernels":
        """`auto` takes what is measured to be faster on this kind of device, `all` and `none` what they say.

        Raises:
            ValueError: unknown names, or kernels asked for by name on a device that has none.
        """
        if isinstance(asked, str):
            by_word = {"auto": MEASURED.get(device.device_kind, ()), "all": OPS, "none": ()}
            if asked not in by_word:
                raise ValueError(f"kernels={asked!r} is not auto, all, none or a list of {list(OPS)}")
            return cls(by_word[asked] if device.platform == "gpu" else ())
        if asked and device.platform != "gpu":
            raise ValueError(f"kernels={list(asked)}, but {device.device_kind} ({device.platform}) has none")
        return cls(asked)

    def __enter__(self) -> "Kernels":
        self._tokens.append(_tracing.set(self))
        return self

    def __exit__(self, *exception: Any) -> None:
        _tracing.reset(self._tokens.pop())


# Rows that matrix kernels take at a time, and what a padded block may reach beyond its own rows in a cache.
ROW_MULTIPLE = 8


def missing_rows(num_rows: int) -> int:
    """How many rows of padding spare the matrix kernels a copy of their input each; 0 where none will run."""
    kernels = _tracing.get()
    return -num_rows % ROW_MULTIPLE if kernels is not None and "matmul" in kernels.ops else 0


def choose[T](op: str, kernel: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """The result of the kernel if programs that are being traced want it and it takes these arguments, else the other.

    Args:
        op: one of `OPS`.
        kernel: raises `NotImplementedError` with the reason if it does not take its arguments.
        otherwise: the XLA form.
    """
    kernels = _tracing.get()
    if kernels is None or op not in kernels.ops:
        return otherwise()
    try:
        return kernel()
    except NotImplementedError as reason:
        kernels.refused.setdefault(op, set()).add(str(reason))
        return otherwise()
