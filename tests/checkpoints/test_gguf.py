import gguf
import numpy as np
import pytest

from jetspec_jax.checkpoints.gguf import (
    hf_name,
    open_gguf,
    permute_rope_rows,
    unpermute_rope_rows,
)
from jetspec_jax.checkpoints.gguf_header import read_gguf_header
from jetspec_jax.checkpoints.reader import CheckpointError, TensorReader


def test_interleaved_rows_become_half_split():
    """One head of size 6: the pairs (0,1), (2,3), (4,5) of llama.cpp are rows (0,3), (1,4), (2,5) here."""
    np.testing.assert_array_equal(unpermute_rope_rows(np.arange(6), 1), [0, 2, 4, 1, 3, 5])
    np.testing.assert_array_equal(permute_rope_rows(np.arange(6), 1), [0, 3, 1, 4, 2, 5])


def test_heads_are_unpermuted_one_by_one():
    np.testing.assert_array_equal(unpermute_rope_rows(np.arange(8), 2), [0, 2, 1, 3, 4, 6, 5, 7])


@pytest.mark.parametrize("num_heads", [1, 3, 9])
def test_unpermuting_undoes_permuting(num_heads):
    rows = np.random.default_rng(0).normal(size=(num_heads * 8, 5))
    np.testing.assert_array_equal(unpermute_rope_rows(permute_rope_rows(rows, num_heads), num_heads), rows)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.11.attn_q.weight", "model.layers.11.self_attn.q_proj.weight"),
        ("blk.0.attn_k.bias", "model.layers.0.self_attn.k_proj.bias"),
        ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate_exps.weight"),
        ("blk.x.ffn_gate.weight", "blk.x.ffn_gate.weight"),
    ],
)
def test_names_follow_hugging_face(name, expected):
    assert hf_name(name) == expected


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_reads_back_the_original_weights(make_config, make_weights, make_gguf, model_type):
    config = make_config(model_type=model_type, tie_word_embeddings=False, attention_bias=True)
    weights = make_weights(config)
    reader = open_gguf(make_gguf(config, weights))
    assert isinstance(reader, TensorReader)
    assert sorted(reader.keys()) == sorted(weights)
    for key, expected in weights.items():
        np.testing.assert_array_equal(reader.read(key), expected, err_msg=key)
        assert (reader.shape(key), reader.dtype(key), reader.stored_type(key)) == (expected.shape, np.float32, "F32")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16"])
def test_dequantises_to_what_was_quantised(make_config, make_weights, make_gguf, kind):
    """Rows of q and k are unpermuted before they are dequantised; blocks lie along the columns, so it is the same."""
    config = make_config()
    weights = make_weights(config)
    reader = open_gguf(make_gguf(config, weights, quantised=kind))
    for key in ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"):
        quantised = gguf.quants.quantize(weights[key], gguf.GGMLQuantizationType[kind])
        expected = gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType[kind])
        found = reader.read(key)
        np.testing.assert_array_equal(found.astype(np.float32), expected)
        assert (found.dtype, reader.stored_type(key)) == (reader.dtype(key), kind)
        assert found.shape == reader.shape(key) == weights[key].shape


def test_keeps_half_precision_as_stored(make_config, make_weights, make_gguf):
    weights = {key: value.astype(np.float16) for key, value in make_weights(make_config()).items()}
    reader = open_gguf(make_gguf(None, weights))
    key = "model.layers.0.self_attn.k_proj.weight"
    assert reader.dtype(key) == reader.read(key).dtype == np.float16
    np.testing.assert_array_equal(reader.read(key), weights[key])


def test_header_agrees_with_the_gguf_package(make_gguf):
    metadata = {
        ":tokenizer.ggml.tokens": ["a", "é", ""],
        ":x.floats": [0.5, 1.0],
        ":x.flag": True,
        ":general.name": "n",
    }
    path = make_gguf(metadata=metadata, quantised="Q8_0")
    ours, theirs = read_gguf_header(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    fields["llama.attention.layer_norm_rms_epsilon"] = 1e-5  # theirs is 9.999999747378752e-06
    assert dict(ours.metadata) == fields
    found = {t.name: (t.type_name, t.offset, t.num_bytes) for t in ours.tensors.values()}
    assert found == {t.name: (t.tensor_type.name, t.data_offset, t.n_bytes) for t in theirs.tensors}


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(lambda size: size - 1, id="C26-last-byte"),
        pytest.param(lambda size: size - 1024, id="C26-kilobyte"),
        pytest.param(lambda size: size // 2, id="C26-half"),
        pytest.param(lambda size: 300, id="C26-in-the-metadata"),
        pytest.param(lambda size: 25, id="C26-in-a-key"),
        pytest.param(lambda size: 10, id="C26-in-the-magic"),
        pytest.param(lambda size: 0, id="C26-empty"),
    ],
)
def test_refuses_a_truncated_file_naming_the_bytes(make_gguf, kept):
    path = make_gguf()
    data = path.read_bytes()
    path.write_bytes(data[: kept(len(data))])
    with pytest.raises(CheckpointError, match=rf"tiny\.gguf: expected .*\d+ bytes.*, found {kept(len(data))}$"):
        open_gguf(path)


def test_truncation_names_the_expected_size(make_gguf):
    path = make_gguf()
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=f"expected {len(data)} bytes, found {len(data) - 1}"):
        open_gguf(path)


def test_refuses_trailing_bytes(make_gguf):
    path = make_gguf()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + bytes(64))
    with pytest.raises(CheckpointError, match=f"expected {size} bytes, found {size + 64}"):
        open_gguf(path)


def test_reads_the_metadata_of_a_file_without_tensors(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    header = read_gguf_header(tmp_path / "vocabulary.gguf")
    assert dict(header.metadata) == {"general.architecture": "llama"}
    assert header.tensors == {}


def patched(path, offset: int, data: bytes):
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        pytest.param(0, b"PK\3\4", "starts with b'PK.*not a GGUF file", id="magic"),
        pytest.param(4, (1).to_bytes(4, "little"), "GGUF version 1 is not supported", id="version"),
        pytest.param(4, (3).to_bytes(4, "big"), "version 50331648 is not supported .*little-endian", id="big-endian"),
        pytest.param(8, (2**60).to_bytes(8, "little"), "expected at least|dimensions", id="C26-tensor-count"),
        pytest.param(
            16, (2**60).to_bytes(8, "little"), "expected at least|unknown metadata type", id="C26-value-count"
        ),
        pytest.param(24, (2**60).to_bytes(8, "little"), "expected at least .* bytes of header", id="C26-key-length"),
    ],
)
def test_refuses_a_damaged_header(make_gguf, offset, data, message):
    with pytest.raises(CheckpointError, match=message):
        open_gguf(patched(make_gguf(), offset, data))


def test_refuses_an_array_longer_than_the_file(make_gguf):
    path = make_gguf(metadata={":z.words": ["word"]})
    at = path.read_bytes().index(b"z.words") + len("z.words") + 8
    with pytest.raises(CheckpointError, match="expected at least"):
        open_gguf(patched(path, at, (2**40).to_bytes(8, "little")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda at, end: (end - 12, (99).to_bytes(4, "little")), "unknown type 99", id="type"),
        pytest.param(
            lambda at, end: (end - 8, (64).to_bytes(8, "little")), r"expected at byte \d+, found", id="offset"
        ),
        pytest.param(lambda at, end: (at, (7).to_bytes(4, "little")), "has 7 dimensions", id="dimensions"),
    ],
)
def test_refuses_a_damaged_tensor_table(make_gguf, change, message):
    path = make_gguf()
    name = b"token_embd.weight"
    at = path.read_bytes().index(name) + len(name)  # number of dimensions, two dimensions, type, offset
    with pytest.raises(CheckpointError, match=message):
        open_gguf(patched(path, *change(at, at + 4 + 16 + 4 + 8)))


def test_refuses_a_type_that_cannot_be_dequantised(make_gguf, monkeypatch):
    reader = open_gguf(make_gguf(quantised="Q8_0"))

    def dequantize(data, kind):
        raise NotImplementedError

    monkeypatch.setattr(gguf.quants, "dequantize", dequantize)
    with pytest.raises(CheckpointError, match=r"'token_embd\.weight' has type Q8_0, not supported"):
        reader.read("model.embed_tokens.weight")
