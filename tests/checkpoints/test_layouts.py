import numpy as np
import pytest

from jetspec_jax.checkpoints.hf_config import target_config_from_hf
from jetspec_jax.checkpoints.layouts import find_problems, find_unequal, target_duplicates, target_rows
from jetspec_jax.checkpoints.safetensors import open_safetensors

EMBED, HEAD, Q = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight"


def table(config):
    return {
        row.parameter: [(s.key, s.shape) for s in row.sources] for row in target_rows(target_config_from_hf(config))
    }


def test_table_of_a_tied_llama(make_config):
    at = "model.layers.0"
    assert table(make_config(num_hidden_layers=1)) == {
        "embed.weight": [(EMBED, (40, 32))],
        "layers.0.attention_norm.scale": [(f"{at}.input_layernorm.weight", (32,))],
        "layers.0.attention.qkv.weight": [
            (f"{at}.self_attn.q_proj.weight", (32, 32)),
            (f"{at}.self_attn.k_proj.weight", (16, 32)),
            (f"{at}.self_attn.v_proj.weight", (16, 32)),
        ],
        "layers.0.attention.out.weight": [(f"{at}.self_attn.o_proj.weight", (32, 32))],
        "layers.0.mlp_norm.scale": [(f"{at}.post_attention_layernorm.weight", (32,))],
        "layers.0.mlp.gate_up.weight": [
            (f"{at}.mlp.gate_proj.weight", (64, 32)),
            (f"{at}.mlp.up_proj.weight", (64, 32)),
        ],
        "layers.0.mlp.down.weight": [(f"{at}.mlp.down_proj.weight", (32, 64))],
        "norm.scale": [("model.norm.weight", (32,))],
    }


def test_qwen3_adds_the_norms_of_q_and_k(make_config):
    rows = table(make_config(model_type="qwen3"))
    assert rows["layers.1.attention.q_norm.scale"] == [("model.layers.1.self_attn.q_norm.weight", (8,))]
    assert rows["layers.1.attention.k_norm.scale"] == [("model.layers.1.self_attn.k_norm.weight", (8,))]


def test_an_untied_head_has_a_row(make_config):
    assert table(make_config(tie_word_embeddings=False))["lm_head.weight"] == [(HEAD, (40, 32))]


def test_biases_are_fused_like_their_weights(make_config):
    rows = table(make_config(attention_bias=True, mlp_bias=True))
    assert [shape for _, shape in rows["layers.0.attention.qkv.bias"]] == [(32,), (16,), (16,)]
    assert rows["layers.0.attention.out.bias"] == [("model.layers.0.self_attn.o_proj.bias", (32,))]
    assert [key for key, _ in rows["layers.0.mlp.gate_up.bias"]] == [
        "model.layers.0.mlp.gate_proj.bias",
        "model.layers.0.mlp.up_proj.bias",
    ]
    assert rows["layers.0.mlp.down.bias"] == [("model.layers.0.mlp.down_proj.bias", (32,))]


def problems_of(folder, config):
    target = target_config_from_hf(config)
    reader, duplicates = open_safetensors(folder), target_duplicates(target)
    return find_problems(target_rows(target), reader, duplicates) or find_unequal(reader, duplicates)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="llama-tied"),
        pytest.param({"tie_word_embeddings": False}, id="llama-untied"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="llama-biases"),
        pytest.param({"model_type": "qwen3", "head_dim": 16}, id="qwen3"),
    ],
)
def test_table_covers_what_transformers_writes(make_config, make_folder, changes):
    config = make_config(**changes)
    assert problems_of(make_folder(config), config) == []


def changed(weights, changes):
    """Weights with arrays replaced or added; None removes one."""
    return {key: value for key, value in (weights | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({Q: None}, [f"missing: {Q} [32, 32]"], id="C25-removed"),
        pytest.param({"model.x": np.zeros(3)}, ["unexpected: model.x [3]"], id="C25-extra"),
        pytest.param(
            {Q: np.zeros((16, 32), np.float32)}, [f"misshaped: {Q}: expected [32, 32], found [16, 32]"], id="C25-shape"
        ),
        pytest.param(
            {Q: None, Q + "s": np.zeros((32, 32))},
            [f"missing: {Q} [32, 32]", f"unexpected: {Q}s [32, 32]"],
            id="C25-renamed",
        ),
        pytest.param({Q: np.zeros((32, 32), np.int8)}, [f"not a float type: {Q} is I8"], id="C25-integers"),
        pytest.param(
            {EMBED: np.zeros((96, 32), np.float32)},
            [f"misshaped: {EMBED}: expected [40, 32], found [96, 32]"],
            id="C28-vocabulary",
        ),
        pytest.param(
            {HEAD: np.zeros((8, 32), np.float32)},
            [f"misshaped: {HEAD}: expected [40, 32], found [8, 32]"],
            id="C25-tied-head-misshaped",
        ),
        pytest.param(
            {HEAD: np.zeros((40, 32), np.float32)},
            [f"unexpected: {HEAD} differs from {EMBED} although the embeddings are tied"],
            id="C25-tied-head-differs",
        ),
        pytest.param({"model.layers.1.self_attn.rotary_emb.inv_freq": np.zeros(4)}, [], id="ignorable"),
    ],
)
def test_lists_every_tensor_that_does_not_fit(make_config, make_weights, make_folder, changes, expected):
    config = make_config()
    assert problems_of(make_folder(config, changed(make_weights(config), changes)), config) == expected


def test_a_tied_head_may_be_repeated_exactly(make_config, make_weights, make_folder):
    config = make_config()
    weights = make_weights(config)
    assert problems_of(make_folder(config, weights | {HEAD: weights[EMBED]}), config) == []


def test_an_untied_head_must_be_there(make_config, make_weights, make_folder):
    config = make_config(tie_word_embeddings=False)
    assert problems_of(make_folder(config, changed(make_weights(config), {HEAD: None})), config) == [
        f"missing: {HEAD} [40, 32]"
    ]


def test_fused_parts_are_checked_one_by_one(make_config, make_weights, make_folder):
    """q and k of the wrong sizes whose sum is right."""
    config = make_config()
    k = Q.replace("q_proj", "k_proj")
    weights = make_weights(config) | {Q: np.zeros((24, 32), np.float32), k: np.zeros((24, 32), np.float32)}
    assert len(problems_of(make_folder(config, weights), config)) == 2
