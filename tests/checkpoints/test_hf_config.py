import json
import math

import pytest

from jetspec_jax.checkpoints.hf_config import read_hf_config, target_config_from_hf
from jetspec_jax.config import RopeConfig

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def ropes_of(config):
    return dict(target_config_from_hf(config).ropes)


def test_reads_every_size(make_config):
    config = target_config_from_hf(make_config())
    shape = config.shape
    assert (shape.hidden_size, shape.intermediate_size, shape.num_heads, shape.num_kv_heads) == (32, 64, 4, 2)
    assert (shape.head_dim, shape.rms_norm_eps, shape.qk_norm, config.num_layers) == (8, 1e-5, False, 2)
    assert (config.vocab_size, config.max_position_embeddings, config.tie_word_embeddings) == (40, 64, True)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))


@pytest.mark.parametrize(
    "rope",
    [
        pytest.param({"rope_theta": 1e6}, id="C27-old-key"),
        pytest.param(
            {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, id="C27-new"
        ),
        pytest.param({"rope_theta": None, "rope_parameters": {"rope_theta": 1e6}}, id="C27-new-without-type"),
        pytest.param({"rope_theta": 1e6, "rope_parameters": {"rope_type": "default"}}, id="C27-theta-beside-new"),
        pytest.param({"rope_theta": 1e6, "rope_parameters": {"rope_theta": 1e6}}, id="C27-both-and-equal"),
        pytest.param({"rope_theta": None, "rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, id="C27-nested"),
        pytest.param({"rope_theta": 1e6, "rope_scaling": {"type": "default"}}, id="C27-old-scaling-default"),
    ],
)
def test_reads_the_rope_base_wherever_it_stands(make_config, rope):
    assert ropes_of(make_config(**rope)) == {"full_attention": RopeConfig(theta=1e6)}


def test_reads_one_rope_per_layer_type(make_config):
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    layers = ["sliding_attention", "full_attention"]
    config = target_config_from_hf(
        make_config(rope_theta=None, rope_parameters=nested, layer_types=layers, sliding_window=16)
    )
    assert (config.rope_of(0).theta, config.rope_of(1).theta) == (1e4, 1e6)
    assert (config.window_of(0), config.window_of(1)) == (16, None)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        pytest.param(
            {"rope_parameters": {"rope_theta": 1e6}}, "rope_theta twice: 10000.0 .* 1000000.0", id="C27-bases"
        ),
        pytest.param(
            {"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 1e4}},
            "contradicts rope_parameters",
            id="C27-types",
        ),
        pytest.param({"rope_theta": None}, "no 'rope_theta'", id="C27-none"),
        pytest.param(
            {"rope_theta": None, "rope_parameters": {"rope_type": "default"}}, "no 'rope_theta'", id="C27-empty"
        ),
        pytest.param(
            {"rope_theta": None, "rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}},
            "no entry for layer type 'full_attention'",
            id="C27-kind-missing",
        ),
        pytest.param(
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported", id="C27-dynamic"
        ),
        pytest.param(
            {"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}}, "'longrope' is not", id="C27-longrope"
        ),
        pytest.param({"rope_scaling": {"type": "linear", "rope_type": "yarn"}}, "rope_type twice", id="C27-two-types"),
        pytest.param({"rope_scaling": YARN | {"mscale": 0.7}}, r"\['mscale'\] are not supported", id="C27-unknown-key"),
        pytest.param({"rope_scaling": {"type": "linear"}}, "no 'factor'", id="C27-no-factor"),
        pytest.param({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not", id="C27-partial"),
    ],
)
def test_refuses_a_rope_it_cannot_honour(make_config, rope, message):
    with pytest.raises(ValueError, match=message):
        target_config_from_hf(make_config(**rope))


def test_reads_yarn_with_the_attention_factor_of_its_paper(make_config):
    rope = ropes_of(make_config(rope_scaling=YARN))["full_attention"]
    assert rope == RopeConfig(
        theta=1e4,
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=32,
        attention_factor=0.1 * math.log(4.0) + 1.0,
    )


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_reads_llama3_in_either_layout(make_config, key):
    rope = ropes_of(make_config(**{key: LLAMA3}))["full_attention"]
    assert (rope.rope_type, rope.factor, rope.low_freq_factor, rope.high_freq_factor) == ("llama3", 8.0, 1.0, 4.0)
    assert (rope.original_max_position_embeddings, rope.theta) == (32, 1e4)


def test_ignores_rope_keys_without_a_value(make_config):
    assert ropes_of(make_config(rope_scaling=YARN | {"attention_factor": None, "mscale": None}))


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                                 "vocab_size", "rms_norm_eps", "max_position_embeddings"])  # fmt: skip
def test_refuses_to_guess_a_missing_size(make_config, key):
    with pytest.raises(ValueError, match=f"no '{key}'"):
        target_config_from_hf(make_config(**{key: None}))


@pytest.mark.parametrize("key", ["head_dim", "num_key_value_heads"])
def test_requires_of_qwen3_what_transformers_does_not_derive(make_config, key):
    with pytest.raises(ValueError, match=f"no '{key}'"):
        target_config_from_hf(make_config(model_type="qwen3", **{key: None}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"model_type": "mixtral"}, "model_type 'mixtral' is not supported", id="model-type"),
        pytest.param({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported", id="activation"),
        pytest.param({"quantization_config": {"quant_method": "awq"}}, "quantization_config 'awq'", id="quantised"),
        pytest.param({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention", id="layer-type"),
        pytest.param({"head_dim": None, "hidden_size": 34}, "hidden_size=34 is not a multiple", id="head-size"),
    ],
)
def test_refuses_what_the_models_do_not_do(make_config, changes, message):
    with pytest.raises(ValueError, match=message):
        target_config_from_hf(make_config(**changes))


def test_derives_the_layer_types_of_qwen3(make_config):
    config = make_config(model_type="qwen3", use_sliding_window=True, sliding_window=16, max_window_layers=1)
    assert target_config_from_hf(config).layer_types == ("full_attention", "sliding_attention")
    assert target_config_from_hf(config).shape.qk_norm


@pytest.mark.parametrize(
    "taps",
    [
        pytest.param([0, 2], id="C29-beyond-the-last-layer"),
        pytest.param([-1], id="C29-negative"),
        pytest.param([1, 0], id="C29-descending"),
        pytest.param([1, 1], id="C29-twice"),
    ],
)
def test_refuses_taps_that_are_no_layers(make_config, taps):
    with pytest.raises(ValueError, match=r"taps=.* must be increasing layer indices in 0\.\.1"):
        target_config_from_hf(make_config(), taps=taps)


def test_taps_may_include_the_last_layer(make_config):
    assert target_config_from_hf(make_config(), taps=[0, 1]).taps == (0, 1)


@pytest.mark.parametrize(
    ("eos", "ids"),
    [pytest.param(None, (), id="none"), pytest.param(2, (2,), id="one"), pytest.param([2, 3], (2, 3), id="many")],
)
def test_reads_the_end_of_text_ids(make_config, eos, ids):
    assert target_config_from_hf(make_config(eos_token_id=eos)).eos_token_ids == ids


def test_generation_config_decides_the_end_of_text(make_folder):
    folder = make_folder()
    assert read_hf_config(folder)["eos_token_id"] == 2
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7], "temperature": 0.6}))
    assert read_hf_config(folder)["eos_token_id"] == [2, 7]
    assert "temperature" not in read_hf_config(folder)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_names_a_broken_config_file(make_folder, text):
    folder = make_folder()
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json: .*JSON"):
        read_hf_config(folder)
