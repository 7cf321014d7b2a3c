"""A tiny model folder in Hugging Face layout, with a byte-level tokenizer and a chat template."""

import json
from pathlib import Path

import numpy as np

_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|im_start|>", "<|im_end|>")
_LAYERS, _WIDTH, _MLP, _HEADS, _KV_HEADS, _HEAD, _VOCAB = 2, 32, 64, 4, 2, 8, 288


def write_tiny_checkpoint(folder: Path, *, seed: int = 0, max_len: int = 512, sharpness: float = 1.0) -> Path:
    """Writes a random two-layer Llama; ids 0..255 are bytes, 256 and 257 open and close a turn.

    Its text is noise, but every file is what a real checkpoint has.

    Args:
        folder: made if needed.
        seed: of the weights.
        max_len: the context, tokens.
        sharpness: scale of the logits; larger gives more peaked distributions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_config(folder, max_len)
    _write_weights(folder, np.random.default_rng(seed), sharpness)
    _write_tokenizer(folder)
    return folder


def _write_config(folder: Path, max_len: int) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": _WIDTH,
        "intermediate_size": _MLP,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD,
        "vocab_size": _VOCAB,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": max_len,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 257,
    }
    (folder / "config.json").write_text(json.dumps(config))


def _write_weights(folder: Path, rng: np.random.Generator, sharpness: float) -> None:
    from safetensors.numpy import save_file

    shapes = {"model.embed_tokens.weight": (_VOCAB, _WIDTH), "model.norm.weight": (_WIDTH,)}
    for layer in range(_LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{name}_layernorm.weight": (_WIDTH,) for name in ("input", "post_attention")}
        for name, heads in (("q", _HEADS), ("k", _KV_HEADS), ("v", _KV_HEADS)):
            shapes[f"{at}.self_attn.{name}_proj.weight"] = (heads * _HEAD, _WIDTH)
        shapes[f"{at}.self_attn.o_proj.weight"] = (_WIDTH, _HEADS * _HEAD)
        shapes |= {f"{at}.mlp.{name}_proj.weight": (_MLP, _WIDTH) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (_WIDTH, _MLP)
    # Matrices of unit gain, norms of one: activations keep their size.
    weights = {
        key: np.ones(shape, np.float32)
        if len(shape) == 1
        else (rng.normal(size=shape) / np.sqrt(shape[1])).astype(np.float32)
        for key, shape in shapes.items()
    }
    weights["model.norm.weight"] *= sharpness
    save_file(weights, folder / "model.safetensors")


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _SPECIAL[1],
        "chat_template": _CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
