"""Int8 storage: how far off it may be, and integers without sound scales."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jetspec_jax.checkpoints.drafter_files import load_drafter, open_part
from jetspec_jax.checkpoints.quantized import quantize_rows
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.testing import tiny_config

TARGET = tiny_config()


@pytest.mark.parametrize(
    ("row", "integers", "scale"),
    [
        pytest.param([0, 0, 0], [0, 0, 0], 1.0, id="zeros"),
        pytest.param([127, -127, 63.4], [127, -127, 63], 1.0, id="both-ends"),
        pytest.param([1e-44, 0, 0], [0, 0, 0], float(np.finfo(np.float32).tiny), id="denormal"),
    ],
)
def test_rows_are_scaled_by_their_largest_value(row, integers, scale):
    found, scales = quantize_rows(np.array([row], np.float32))
    assert found.tolist() == [integers]
    np.testing.assert_allclose(scales, [scale], rtol=1e-6)


def test_int8_is_off_by_half_a_scale_at_most(save, named, weights_of, parts, tmp_path):
    draft = parts[0]
    save(tmp_path / "d", draft, None, None, storage="int8")
    stored = load_file(tmp_path / "d/draft/model.safetensors")
    assert stored["fc.weight"].dtype == np.int8
    assert stored["norm.weight"].dtype == np.float32
    loaded = weights_of(load_drafter(tmp_path / "d", TARGET, dtype="float32"))
    for name, value in named(draft=draft).items():
        error = np.abs(loaded[name] - value)
        if value.ndim == 2:
            _, scale = quantize_rows(value)  # rows are quantised apart, so joining them first changes nothing
            assert (error <= 0.5 * scale[:, None] * (1 + 1e-5)).all(), name
        else:
            assert not error.any(), name


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        pytest.param(None, "not a float type: norm.weight is I8", id="no-scale"),
        pytest.param(np.ones(32, np.float32), "has scales of shape", id="of-a-vector"),
    ],
)
def test_refuses_integers_without_fitting_scales(folder, scale, message):
    path = folder / "draft/model.safetensors"
    tensors = load_file(path) | {"norm.weight": np.ones(32, np.int8)}
    save_file(tensors if scale is None else tensors | {"norm.weight.scale": scale}, path)
    with pytest.raises(CheckpointError, match=message):
        load_drafter(folder, TARGET, dtype="float32")


def test_refuses_scales_that_are_not_finite(save, parts, tmp_path):
    save(tmp_path / "d", parts[0], None, None, storage="int8")
    path = tmp_path / "d/draft/model.safetensors"
    tensors = load_file(path)
    tensors["fc.weight.scale"][3] = np.nan
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=r"the scales of fc\.weight are not finite"):
        load_drafter(tmp_path / "d", TARGET, dtype="float32")


def test_open_part_sees_floats(saved):
    reader = open_part(saved / "draft")
    assert {reader.dtype(key) for key in reader.keys()} == {np.dtype(np.float32)}  # noqa: SIM118
