"""Which operations are traced as kernels."""

import threading

import jax
import pytest

from jetspec_jax.ops.kernels import (
    MEASURED,
    OPS,
    Kernels,
    choose,
    missing_rows,
    multiplies,
    normalises,
    pads_rows,
    wants,
)

LARGE = 16 * 10**9  # bytes of a target


def refuse():
    raise NotImplementedError("not these shapes")


@pytest.mark.parametrize(
    ("kind", "asked", "ops"),
    [
        ("NVIDIA H200", "all", set(OPS)),
        ("NVIDIA H200", "none", set()),
        ("NVIDIA H200", ("matmul", "attention"), {"matmul", "attention"}),
        ("NVIDIA GB200", "all", set()),
        ("NVIDIA A100-SXM4-80GB", "all", set()),
        ("cpu", "all", set()),
        ("cpu", (), set()),
    ],
)
def test_what_a_device_runs(kind, asked, ops):
    assert Kernels.for_device(kind, asked, target_bytes=LARGE).ops == ops


@pytest.mark.parametrize(("version", "ops"), [((0, 11, 2), set()), ((0, 12, 0), set(MEASURED["NVIDIA H200"]))])
def test_what_is_measured_runs_where_compiling_it_is_quick(version, ops, monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", version)
    assert Kernels.for_device("NVIDIA H200", target_bytes=LARGE).ops == ops
    assert Kernels.for_device("NVIDIA GB200", target_bytes=LARGE).ops == set()


def test_small_targets_run_none_unless_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 12, 0))
    assert Kernels.for_device("NVIDIA H200", target_bytes=LARGE).ops == set(MEASURED["NVIDIA H200"])
    assert Kernels.for_device("NVIDIA H200", target_bytes=269 * 10**6).ops == set()
    assert Kernels.for_device("NVIDIA H200", "all", target_bytes=269 * 10**6).ops == set(OPS)


@pytest.mark.parametrize(
    ("kind", "asked", "message"),
    [
        ("NVIDIA H200", "some", "auto, all, none"),
        ("NVIDIA H200", ("matmul", "magic"), r"\['magic'\]"),
        ("cpu", ("matmul",), "Hopper"),
    ],
)
def test_refuses(kind, asked, message):
    with pytest.raises(ValueError, match=message):
        Kernels.for_device(kind, asked, target_bytes=LARGE)


def test_kernel_is_taken_only_while_programs_that_want_it_are_traced():
    kernels = Kernels(("matmul",))
    assert choose("matmul", lambda: "kernel", lambda: "xla") == "xla"
    with kernels.tracing():
        assert choose("matmul", lambda: "kernel", lambda: "xla") == "kernel"
        assert choose("attention", lambda: "kernel", lambda: "xla") == "xla"
        with Kernels().tracing():
            assert not wants("matmul")
        assert wants("matmul")
    assert not wants("matmul")


def test_what_a_kernel_refuses_is_told():
    kernels = Kernels(("matmul",))
    with kernels.tracing():
        assert choose("matmul", refuse, lambda: "xla") == "xla"
    assert kernels.refused == {"matmul": {"not these shapes"}}


def test_an_error_in_a_program_leaves_nothing_behind():
    with pytest.raises(KeyError), Kernels(OPS).tracing():
        raise KeyError
    assert not wants("matmul")


def test_two_threads_trace_with_one_object():
    kernels, both, seen = Kernels(("matmul",)), threading.Barrier(2, timeout=10), []

    def trace():
        with kernels.tracing():
            both.wait()
            seen.append(wants("matmul"))
            both.wait()
        seen.append(wants("matmul"))

    threads = [threading.Thread(target=trace) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [False, False, True, True]


@pytest.mark.parametrize(
    ("batch", "num_rows", "missing"),
    [(1, 1, 0), (1, 8, 0), (1, 17, 7), (1, 34, 6), (8, 1, 0), (4, 17, 7), (8, 17, 0), (1, 128, 0), (64, 1, 0)],
)
@pytest.mark.parametrize("op", ["attention", "matmul", "int8_matmul", "fp8_matmul"])
def test_padding_of_blocks(op, batch, num_rows, missing):
    assert missing_rows(batch, num_rows) == 0
    kernels = Kernels((op,))
    assert pads_rows(kernels)
    with kernels.tracing():
        assert missing_rows(batch, num_rows) == missing


def test_kernels_that_take_rows_as_they_are_pad_none():
    kernels = Kernels(("qk_norm_rope", "residual_norm", "swiglu", "head_draw"))
    assert not pads_rows(kernels)
    with kernels.tracing():
        assert missing_rows(1, 17) == 0


@pytest.mark.parametrize(
    ("num_rows", "is_product", "with_norm"),
    [(1, False, False), (8, False, False), (9, True, True), (32, True, True), (33, True, False), (129, False, False)],
)
def test_which_rows_the_matrix_kernels_take(num_rows, is_product, with_norm):
    assert not multiplies("int8_matmul", num_rows)
    with Kernels(("int8_matmul",)).tracing():
        assert (multiplies("int8_matmul", num_rows), normalises("int8_matmul", num_rows)) == (is_product, with_norm)
        assert not multiplies("matmul", num_rows)
    with Kernels(("fp8_matmul",)).tracing():
        assert (multiplies("fp8_matmul", num_rows), normalises("fp8_matmul", num_rows)) == (is_product, False)
