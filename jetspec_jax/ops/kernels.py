"""Which operations run as GPU kernels (`pallas_kernels`), decided while a program is traced.

Every operation has an XLA form. The kernel is taken where the program's device has one, it was asked for, and it takes
the shapes; otherwise the XLA form, and `Kernels.refused` says why.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import jax

OPS = ("attention", "qk_norm_rope", "residual_norm", "swiglu", "matmul", "int8_matmul", "fp8_matmul", "head_draw")
# What `auto` takes: measured to be faster than XLA's form (docs/results.md, "A step with GPU kernels"). Texts of a
# target that runs them were compared end to end with those of no kernels (tests/gpu); `int8_matmul` and `fp8_matmul`
# are the draft side's and cannot change one, their results were compared with the references' by `benchmarks.kernels`.
MEASURED: dict[str, tuple[str, ...]] = {"NVIDIA H200": OPS}
# Steps of smaller targets are launches, not bytes, and kernels lose (SmolLM2-135M, 0.27 GB, on an H200: a round of J0
# 1.94 ms without, 2.30 with all of them). Nothing between that and 16 GB, where they win, was measured.
MIN_TARGET_BYTES = 2 * 10**9
# Before, each call of a kernel in a program was compiled anew: a minute and more for 36 layers, for a few percent.
COMPILED_ONCE_SINCE = (0, 12)
# Operations that like their rows in multiples of 8.
_IN_ROWS = ("attention", "matmul", "int8_matmul", "fp8_matmul")

_tracing: ContextVar["Kernels | None"] = ContextVar("kernels", default=None)


# The GPUs that kernels are written for, by a part of their name: wgmma is Hopper's.
_HOPPER = ("H100", "H200", "H800", "H20", "GH200")


class Kernels:
    """The operations that programs of one device run as kernels.

    Attributes:
        ops: names from `OPS`.
        refused: operation -> why a kernel that was asked for was not taken.
    """

    def __init__(self, ops: Sequence[str] = ()):
        if unknown := sorted(set(ops) - set(OPS)):
            raise ValueError(f"unknown kernels {unknown}; there are {list(OPS)}")
        self.ops = frozenset(ops)
        self.refused: dict[str, set[str]] = {}

    @classmethod
    def for_device(cls, device_kind: str, asked: str | Sequence[str] = "auto", *, target_bytes: int) -> "Kernels":
        """`all` and `none` are what they say; `auto` takes `MEASURED`, for large targets and from jax 0.12 on.

        Args:
            device_kind: as JAX names it.
            asked: a word or names.
            target_bytes: of the target's weights.

        Raises:
            ValueError: unknown names, or kernels asked for by name on a device that has none.
        """
        is_hopper = any(name in device_kind for name in _HOPPER)
        if isinstance(asked, str):
            pays = target_bytes >= MIN_TARGET_BYTES and jax.__version_info__ >= COMPILED_ONCE_SINCE
            measured = MEASURED.get(device_kind, ()) if pays else ()
            by_word = {"auto": measured, "all": OPS, "none": ()}
            if asked not in by_word:
                raise ValueError(f"kernels={asked!r} is not auto, all, none or a list of {list(OPS)}")
            return cls(by_word[asked] if is_hopper else ())
        if asked and not is_hopper:
            raise ValueError(f"kernels={list(asked)}, but they are for Hopper GPUs, not {device_kind}")
        return cls(asked)

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """What is traced inside takes these kernels."""
        token = _tracing.set(self)
        try:
            yield
        finally:
            _tracing.reset(token)


def pads_rows(kernels: Kernels) -> bool:
    """Whether programs with these kernels may pad their rows (`missing_rows`)."""
    return not kernels.ops.isdisjoint(_IN_ROWS)


def wants(op: str) -> bool:
    """Whether programs that are being traced ask for this kernel."""
    kernels = _tracing.get()
    return kernels is not None and op in kernels.ops


# Matrix kernels like multiples of so many rows and take at most `MAX_ROWS`. Up to one multiple is XLA's: one row was
# measured to be faster there (H200, Qwen3-8B: 96 us a layer, 113 with the kernel), two to eight are assumed to be.
ROW_MULTIPLE, MAX_ROWS = 8, 128
# Up to so many rows a product normalises them on the way; in more the same work is done by too many blocks.
MAX_NORM_ROWS = 32


def multiplies(op: str, num_rows: int) -> bool:
    """Whether products of so many rows are asked for as kernels; `op` is the one for their weight."""
    return wants(op) and ROW_MULTIPLE < num_rows <= MAX_ROWS


def normalises(op: str, num_rows: int) -> bool:
    """Whether such a product also does the norm before it; rows of fp8 are rounded behind it."""
    return op != "fp8_matmul" and multiplies(op, num_rows) and num_rows <= MAX_NORM_ROWS


def missing_rows(batch: int, num_rows: int) -> int:
    """Rows of padding per request that spare the matrix kernels a copy of their input each, and let attention load rows
    in eights; 0 where they do not help.

    Example: one request, 17 rows -> 7; 1 row -> 0; 8 requests, 17 rows -> 0 (192 rows are too many for the kernels).
    """
    missing = -num_rows % ROW_MULTIPLE
    if not any(map(wants, _IN_ROWS)) or batch * num_rows <= ROW_MULTIPLE or batch * (num_rows + missing) > MAX_ROWS:
        return 0
    return missing


def choose[T](op: str, kernel: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """The result of the kernel if programs that are being traced want it and it takes these arguments, else the other.

    Args:
        op: one of `OPS`.
        kernel: raises `NotImplementedError` with the reason if it does not take its arguments.
        otherwise: the XLA form.
    """
    if not wants(op):
        return otherwise()
    try:
        return kernel()
    except NotImplementedError as reason:
        _tracing.get().refused.setdefault(op, set()).add(str(reason))
        return otherwise()
