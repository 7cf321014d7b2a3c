import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jetspec_jax.checkpoints.reader import CheckpointError, TensorReader
from jetspec_jax.checkpoints.safetensors import open_safetensors, read_safetensors_header, write_safetensors

TENSORS = {
    "a": np.arange(600, dtype=np.float32).reshape(20, 30),
    "b": np.arange(12, dtype=np.float16).reshape(3, 4),
    "c": np.array([1.5, -2.0], ml_dtypes.bfloat16),
}


def write(path: Path, tensors=TENSORS) -> Path:
    write_safetensors(path, {k: (v.dtype, v.shape) for k, v in tensors.items()}, tensors.values())
    return path


def write_raw(path: Path, header, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_shards(folder: Path, weight_map=None) -> Path:
    write(folder / "model-1.safetensors", {"a": TENSORS["a"]})
    write(folder / "model-2.safetensors", {"b": TENSORS["b"], "c": TENSORS["c"]})
    weight_map = weight_map or {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def assert_same_tensors(reader: TensorReader):
    assert set(reader.keys()) == set(TENSORS)
    for key, expected in TENSORS.items():
        found = reader.read(key)
        assert (reader.shape(key), reader.dtype(key)) == (expected.shape, expected.dtype)
        assert reader.num_bytes(key) == expected.nbytes
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_reads_what_it_wrote(tmp_path):
    write(tmp_path / "model.safetensors")
    assert_same_tensors(open_safetensors(tmp_path))
    assert open_safetensors(tmp_path).stored_type("c") == "BF16"


def test_reads_the_files_of_the_safetensors_library(tmp_path):
    safetensors.numpy.save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_same_tensors(open_safetensors(tmp_path))


def test_writes_files_for_the_safetensors_library(tmp_path):
    tensors = {key: TENSORS[key] for key in "ab"}
    loaded = safetensors.numpy.load_file(write(tmp_path / "model.safetensors", tensors))
    for key in "ab":
        np.testing.assert_array_equal(loaded[key], TENSORS[key])


def test_reads_sharded_folders(tmp_path):
    assert_same_tensors(open_safetensors(write_shards(tmp_path)))


def test_reads_empty_and_scalar_tensors(tmp_path):
    tensors = {"empty": np.zeros((0, 4), np.float32), "scalar": np.array(3.0, np.float32)}
    write(tmp_path / "model.safetensors", tensors)
    reader = open_safetensors(tmp_path)
    assert reader.read("empty").shape == (0, 4)
    assert reader.read("scalar") == 3.0


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(lambda size: size - 1, id="C26-last-byte"),
        pytest.param(lambda size: size - 1024, id="C26-kilobyte"),
        pytest.param(lambda size: size // 2, id="C26-half"),
        pytest.param(lambda size: 100, id="C26-in-the-header"),
        pytest.param(lambda size: 7, id="C26-in-the-length"),
        pytest.param(lambda size: 0, id="C26-empty"),
    ],
)
def test_refuses_a_truncated_file_naming_the_bytes(tmp_path, kept):
    path = write(tmp_path / "model.safetensors")
    data = path.read_bytes()
    path.write_bytes(data[: kept(len(data))])
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: expected .*\d+ bytes.*, found {kept(len(data))}$"):
        open_safetensors(tmp_path)


def test_truncation_names_the_expected_size(tmp_path):
    path = write(tmp_path / "model.safetensors")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=f"expected {len(data)} bytes, found {len(data) - 1}"):
        open_safetensors(tmp_path)


def test_refuses_trailing_bytes(tmp_path):
    path = write(tmp_path / "model.safetensors")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0" * 5)
    with pytest.raises(CheckpointError, match=f"expected {size} bytes, found {size + 5}"):
        open_safetensors(tmp_path)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        pytest.param(b"{not json", "9 header bytes are not JSON", id="C26-json"),
        pytest.param(b"\xff\xfe\xff\xfe", "4 header bytes are not JSON", id="C26-not-text"),
        pytest.param(b"[1]", "JSON list, expected an object", id="C26-list"),
        pytest.param({"x": {"dtype": "F32"}}, "malformed header entry 'x'", id="C26-no-shape"),
        pytest.param({"x": entry(shape=(-2,))}, "malformed header entry 'x'", id="C26-negative-shape"),
        pytest.param({"x": entry(shape=(2.0,))}, "malformed header entry 'x'", id="C26-float-shape"),
        pytest.param({"x": entry(dtype="F4")}, "dtype 'F4', not supported", id="C26-dtype"),
        pytest.param({"x": entry(shape=(3,))}, "'x' .* expected 12 bytes, found 8", id="C26-size"),
        pytest.param({"x": entry(offsets=(4, 12))}, r"'x': expected at byte \d+, found at byte", id="C26-gap"),
        pytest.param({"x": entry(), "y": entry()}, r"'y': expected at byte \d+, found at byte", id="C26-overlap"),
    ],
)
def test_refuses_a_header_that_does_not_describe_the_data(tmp_path, header, message):
    with pytest.raises(CheckpointError, match=message):
        read_safetensors_header(write_raw(tmp_path / "model.safetensors", header, b"\0" * 8))


def test_refuses_an_absurd_header_length(tmp_path):
    (tmp_path / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match=f"expected at least {2**60 + 8} bytes .*, found 10"):
        open_safetensors(tmp_path)


def test_notices_a_file_that_shrinks_after_opening(tmp_path):
    path = write(tmp_path / "model.safetensors")
    reader = open_safetensors(tmp_path)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=r"expected \d+ bytes, found \d+"):
        reader.read("c")


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        pytest.param({"a": "model-3.safetensors"}, r"shards \['model-3.safetensors'\] are missing", id="shard-missing"),
        pytest.param(
            {"a": "model-1.safetensors", "d": "model-1.safetensors"},
            "'d' is not in model-1.safetensors",
            id="key-missing",
        ),
        pytest.param({"b": "model-2.safetensors"}, "'c' of model-2.safetensors is not in the index", id="key-unlisted"),
        pytest.param({"a": "../model-1.safetensors"}, "must be files of the same folder", id="path-outside"),
        pytest.param({"a": 3}, "not an index", id="shard-no-name"),
        pytest.param([1], "not an index", id="no-map"),
    ],
)
def test_refuses_an_index_that_disagrees_with_its_shards(tmp_path, weight_map, message):
    write_shards(tmp_path, weight_map)
    with pytest.raises(CheckpointError, match=message):
        open_safetensors(tmp_path)


def test_refuses_a_truncated_shard(tmp_path):
    shard = write_shards(tmp_path) / "model-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors: expected"):
        open_safetensors(tmp_path)


def test_names_what_an_empty_folder_lacks(tmp_path):
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        open_safetensors(tmp_path)


def test_refuses_to_write_another_shape_than_announced(tmp_path):
    with pytest.raises(ValueError, match=r"'a': expected float32\[2\], got float32\[3\]"):
        write_safetensors(tmp_path / "x", {"a": (np.dtype(np.float32), (2,))}, [np.zeros(3, np.float32)])
