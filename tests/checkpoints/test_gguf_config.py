import numpy as np
import pytest

from jetspec_jax.checkpoints.gguf import open_gguf
from jetspec_jax.checkpoints.gguf_config import hf_config_from_gguf
from jetspec_jax.checkpoints.hf_config import target_config_from_hf
from jetspec_jax.checkpoints.reader import CheckpointError
from jetspec_jax.config import RopeConfig
from jetspec_jax.ops.norm_rope import inverse_frequencies


def config_of(path):
    return target_config_from_hf(hf_config_from_gguf(open_gguf(path)))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="llama-tied"),
        pytest.param({"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True}, id="llama-biases"),
        pytest.param({"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": False}, id="qwen3"),
        pytest.param({"num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 5e5}, id="llama-mha"),
    ],
)
def test_gives_the_config_the_model_was_converted_from(make_config, make_gguf, changes):
    config = make_config(**changes)
    ids = {":tokenizer.ggml.eos_token_id": 2, ":tokenizer.ggml.bos_token_id": 1}
    assert config_of(make_gguf(config, metadata=ids)) == target_config_from_hf(config)


def test_derives_what_old_files_leave_out(make_config, make_gguf):
    """No kv heads: as many as heads. No head size: width over heads."""
    config = make_config(num_key_value_heads=4)
    dropped = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count")
    shape = config_of(make_gguf(config, metadata=dict.fromkeys(dropped))).shape
    assert (shape.num_kv_heads, shape.head_dim) == (4, 8)


def test_every_end_of_text_id_counts(make_gguf):
    ids = {":tokenizer.ggml.eos_token_id": 2, ":tokenizer.ggml.eot_token_id": 7, ":tokenizer.ggml.eom_token_id": 2}
    assert config_of(make_gguf(metadata=ids)).eos_token_ids == (2, 7)
    assert config_of(make_gguf()).eos_token_ids == ()


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param({"rope.scaling.type": "none"}, RopeConfig(theta=1e4), id="none"),
        pytest.param(
            {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
            RopeConfig(theta=1e4, rope_type="linear", factor=4.0),
            id="linear",
        ),
        pytest.param(
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
            RopeConfig(
                theta=1e4,
                rope_type="yarn",
                factor=4.0,
                original_max_position_embeddings=32,
                attention_factor=0.1 * np.log(4.0) + 1,
            ),
            id="yarn",
        ),
    ],
)
def test_reads_rope_scaling(make_gguf, metadata, expected):
    assert dict(config_of(make_gguf(metadata=metadata)).ropes) == {"full_attention": expected}


LLAMA3 = RopeConfig(theta=5e5, rope_type="llama3", factor=32.0, original_max_position_embeddings=8192)


def rope_freqs(rope: RopeConfig, head_dim: int = 64) -> np.ndarray:
    """Divisors of the frequencies, as llama.cpp's converter computes them."""
    plain = inverse_frequencies(RopeConfig(theta=rope.theta), head_dim)
    return (plain / inverse_frequencies(rope, head_dim)).astype(np.float32)


@pytest.fixture
def wide_config(make_config):
    """A head size at which Llama 3's bands all occur."""
    return make_config(head_dim=64, rope_theta=5e5)


def test_recognises_the_frequencies_of_llama3(wide_config, make_gguf):
    path = make_gguf(wide_config, tensors={"rope_freqs.weight": rope_freqs(LLAMA3)})
    assert config_of(path).rope_of(0) == LLAMA3
    assert "rope_freqs.weight" not in open_gguf(path).keys()  # noqa: SIM118 (a reader, not a dict)


def test_unit_frequencies_are_plain_rope(wide_config, make_gguf):
    path = make_gguf(wide_config, tensors={"rope_freqs.weight": np.ones(32, np.float32)})
    assert config_of(path).rope_of(0) == RopeConfig(theta=5e5)


@pytest.mark.parametrize(
    ("freqs", "metadata", "message"),
    [
        pytest.param(np.linspace(1, 9, 32, dtype=np.float32), {}, "not the scaling of a known model", id="unknown"),
        pytest.param(np.ones(16, np.float32), {}, r"F32\[16\], not supported", id="size"),
        pytest.param(
            rope_freqs(LLAMA3), {"rope.scaling.type": "linear"}, "together with rope.scaling.type='linear'", id="both"
        ),
    ],
)
def test_refuses_other_frequencies(wide_config, make_gguf, freqs, metadata, message):
    with pytest.raises(CheckpointError, match=f"rope_freqs.weight.*{message}"):
        config_of(make_gguf(wide_config, metadata=metadata, tensors={"rope_freqs.weight": freqs}))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        pytest.param({"rope.freq_base": None}, r"no 'rope\.freq_base'", id="C27-no-base"),
        pytest.param({"attention.layer_norm_rms_epsilon": None}, "no 'attention.layer_norm_rms_epsilon'", id="no-eps"),
        pytest.param({"attention.scale": 0.1}, r"'attention\.scale' is not supported", id="unknown-key"),
        pytest.param({"expert_count": 8}, "'expert_count'=8 is not supported", id="experts"),
        pytest.param({"rope.scaling.type": "longrope"}, "'longrope' is not supported", id="C27-longrope"),
        pytest.param({"rope.scaling.factor": 2.0}, r"scaling\.factor=2\.0 without a type", id="C27-factor-alone"),
        pytest.param({"rope.scaling.type": "linear"}, "no 'factor'", id="C27-type-alone"),
        pytest.param({"rope.dimension_count": 4}, r"rope\.dimension_count=4 with heads of size 8", id="partial-rope"),
        pytest.param({"attention.value_length": 4}, r"value_length=4 with heads of size 8", id="value-size"),
        pytest.param(
            {"attention.head_count": [4, 4]}, r"'attention\.head_count' differs between layers", id="per-layer"
        ),
        pytest.param({"vocab_size": 41}, "embedding has 40 rows, vocab_size=41", id="C28-vocabulary"),
        pytest.param(
            {":tokenizer.ggml.tokens": ["x"] * 41}, "has 40 rows, vocab_size=None, 41 tokens", id="C28-tokens"
        ),
        pytest.param({":general.architecture": "gemma"}, "architecture 'gemma' is not supported", id="architecture"),
    ],
)
def test_refuses_by_name(make_gguf, metadata, message, monkeypatch):
    architecture = metadata.pop(":general.architecture", None)
    reader = open_gguf(make_gguf(metadata=metadata))
    if architecture:
        reader.header.metadata["general.architecture"] = architecture
    with pytest.raises(ValueError, match=message):
        target_config_from_hf(hf_config_from_gguf(reader))


def test_a_padded_embedding_sets_the_vocabulary(make_gguf):
    """C28: fewer tokens than rows."""
    assert config_of(make_gguf(metadata={":tokenizer.ggml.tokens": ["x"] * 33})).vocab_size == 40


def test_refuses_a_file_without_embedding(make_gguf):
    with pytest.raises(CheckpointError, match=r"no tensor 'token_embd\.weight'"):
        config_of(make_gguf(tensors={"token_embd.weight": None}))
