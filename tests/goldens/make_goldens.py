"""Writes the golden files of tests/models and tests/ops: what transformers' own models compute, on tiny random weights.

Runs in an environment of its own (torch is no dependency of the project); from the root of the repository:

    python3.11 -m venv .venv-goldens
    .venv-goldens/bin/pip install torch==2.13.0 "transformers>=5.10,<6" "numpy<3"
    .venv-goldens/bin/python tests/goldens/make_goldens.py

The CPU build of torch is enough. Output: one `CASE.npz` per model and `rope.npz`, beside this file. Weights come from
numpy and lie on a grid of 1/128, so that the files stay small and depend on no torch generator.

Keys of `CASE.npz`: `config` and `config_old` (config.json as text, in the layout of transformers 5 and, for some cases,
of transformers 4), `versions`, `weights/NAME`, `tokens`, `outputs/NAME`, `greedy_long`, `greedy_short`, `margin`.
"""

import json
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

FOLDER = Path(__file__).parent
VERSIONS = json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "numpy": np.__version__})
GRID = 128.0
BATCH, LENGTH, NUM_NEW, SHORT_PROMPT = 2, 24, 24, 5
# A greedy choice closer than this could flip with the order of a sum; such a seed is refused.
MIN_MARGIN = 2e-3
ROPE_POSITIONS = (0, 1, 100, 5000)

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}


def _llama(**changes) -> LlamaConfig:
    return LlamaConfig(**{**SIZES, "head_dim": 16, **changes})


def _qwen3(**changes) -> Qwen3Config:
    # head_dim differs from hidden_size / num_attention_heads, as in Qwen3 0.6B.
    return Qwen3Config(**{**SIZES, "head_dim": 24, **changes})


def _new_rope(theta: float, **scaling) -> dict:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **scaling}}


def _old_rope(theta: float, **scaling) -> dict:
    return {"rope_theta": theta, "rope_scaling": scaling or None}


# Each case: seed, config, and the RoPE keys of transformers 4 that mean the same (None: only the new layout).
CASES = {
    "llama": (1, _llama(tie_word_embeddings=True, **_new_rope(10_000.0)), _old_rope(10_000.0)),
    "llama_llama3_bias": (
        1,
        _llama(attention_bias=True, mlp_bias=True, **_new_rope(500_000.0, **LLAMA3)),
        _old_rope(500_000.0, **LLAMA3),
    ),
    "llama_linear": (
        3,
        _llama(num_hidden_layers=2, **_new_rope(10_000.0, rope_type="linear", factor=4.0)),
        _old_rope(10_000.0, type="linear", factor=4.0),
    ),
    "llama_yarn": (
        1,
        _llama(num_hidden_layers=2, max_position_embeddings=8192, **_new_rope(10_000.0, **YARN)),
        _old_rope(10_000.0, **YARN),
    ),
    "qwen3": (2, _qwen3(**_new_rope(1_000_000.0)), None),
    "qwen3_sliding": (
        2,
        _qwen3(
            use_sliding_window=True,
            sliding_window=8,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            **_new_rope(1_000_000.0),
        ),
        None,
    ),
}


def random_weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Norm scales around 1, biases around 0, embeddings and products that keep the size of the stream."""
    if "norm" in name:
        values = rng.uniform(0.5, 1.5, shape)
    elif name.endswith("bias"):
        values = rng.normal(0, 0.3, shape)
    elif "embed_tokens" in name:
        # Small against what the layers add: a tied head would repeat the last token for ever.
        values = rng.normal(0, 0.125, shape)
    else:
        # Attention logits of some size (q, k), so that a wrong mask or rotation is seen.
        gain = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
        values = rng.normal(0, gain * shape[-1] ** -0.5, shape)
    return torch.tensor(np.round(values * GRID) / GRID, dtype=torch.float32)


def build_model(config, seed: int):
    """An fp32 eager model with every parameter random."""
    config._attn_implementation = "eager"
    kind = LlamaForCausalLM if config.model_type == "llama" else Qwen3ForCausalLM
    model = kind(config).to(torch.float32).eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(random_weight(rng, name, tuple(parameter.shape)))
    assert model.config._attn_implementation == "eager"
    return model, torch.tensor(rng.integers(0, config.vocab_size, (BATCH, LENGTH)))


def record_outputs(model, tokens: torch.Tensor) -> dict[str, np.ndarray]:
    """One forward pass with the values between the sub-modules of layer 0 and after every layer."""
    seen: dict[str, torch.Tensor] = {}
    layers = model.model.layers

    def save(name):
        def hook(_module, _args, output):
            seen[name] = output[0] if isinstance(output, tuple) else output

        return hook

    watched = {
        "embedding": model.model.embed_tokens,
        "attention_norm": layers[0].input_layernorm,
        "attention": layers[0].self_attn,
        "mlp": layers[0].mlp,
        "final_norm": model.model.norm,
    } | {f"layer{index}": layer for index, layer in enumerate(layers)}
    handles = [module.register_forward_hook(save(name)) for name, module in watched.items()]
    modeling = modeling_llama if model.config.model_type == "llama" else modeling_qwen3
    rotate, rotated = modeling.apply_rotary_pos_emb, []

    def rotate_and_keep(*args, **kwargs):
        rotated.append(rotate(*args, **kwargs))
        return rotated[-1]

    with torch.no_grad(), mock.patch.object(modeling, "apply_rotary_pos_emb", rotate_and_keep):
        out = model(tokens, output_hidden_states=True, output_attentions=True, use_cache=False)
    for handle in handles:
        handle.remove()
    check_hidden_states(out, seen, len(layers))
    check_attention_is_masked(model.config, out.attentions)
    assert len(rotated) == len(layers)
    q, k = (x.transpose(1, 2) for x in rotated[0])  # [B, N, T, H] -> [B, T, N, H]
    return {name: x.numpy() for name, x in (seen | {"q": q, "k": k, "logits": out.logits}).items()}


def check_hidden_states(out, seen: dict[str, torch.Tensor], num_layers: int) -> None:
    """`hidden_states[l + 1]` is the output of layer l, except the last entry, which is behind the final norm."""
    assert torch.equal(out.hidden_states[0], seen["embedding"])
    for layer in range(num_layers - 1):
        assert torch.equal(out.hidden_states[layer + 1], seen[f"layer{layer}"])
    assert torch.equal(out.hidden_states[num_layers], seen["final_norm"])


def check_attention_is_masked(config, attentions) -> None:
    """Attention is causal, and windowed in the sliding layers: the weights outside are exactly zero."""
    gap = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)[None, :]
    kinds = config.layer_types if config.model_type == "qwen3" else ["full_attention"] * len(attentions)
    for kind, weights in zip(kinds, attentions, strict=True):
        visible = (gap >= 0) & (gap < config.sliding_window) if kind == "sliding_attention" else gap >= 0
        assert not weights[..., ~visible].any(), f"{kind} attends outside its mask"
        assert (weights[..., visible] > 0).all(), f"{kind} does not attend to its whole mask"


def greedy(model, prompt: torch.Tensor) -> tuple[np.ndarray, float]:
    """NUM_NEW tokens from `generate` with its cache, and the smallest distance between the two best logits."""
    with torch.no_grad():
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            use_cache=True,
            max_new_tokens=NUM_NEW,
            min_new_tokens=NUM_NEW,
            return_dict_in_generate=True,
            output_logits=True,
        )
        new = out.sequences[:, prompt.shape[1] :]
        logits = model(out.sequences, use_cache=False).logits[:, prompt.shape[1] - 1 : -1]
    assert torch.equal(logits.argmax(-1), new), "generate disagrees with one forward pass over its own text"
    best = logits.topk(2, dim=-1).values
    return new.numpy().astype(np.int32), float((best[..., 0] - best[..., 1]).min())


def write_case(name: str) -> None:
    """Runs one case and writes its file."""
    seed, config, old_rope = CASES[name]
    model, tokens = build_model(config, seed)
    outputs = record_outputs(model, tokens)
    greedy_long, margin_long = greedy(model, tokens)
    greedy_short, margin_short = greedy(model, tokens[:, :SHORT_PROMPT])
    margin = min(margin_long, margin_short)
    variety = min(len(set(row.tolist())) for row in np.concatenate([greedy_long, greedy_short]))
    if margin < MIN_MARGIN or variety < 5:
        raise SystemExit(f"{name}: margin={margin:.1e}, {variety} different tokens: take another seed than {seed}")
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        text = (Path(folder) / "config.json").read_text()
    texts = {"config": text}
    if old_rope is not None:
        old = {key: value for key, value in json.loads(text).items() if key != "rope_parameters"} | old_rope
        # transformers must read the old keys as the same RoPE, or the file would state a wrong equivalence.
        reread = type(config)(**json.loads(json.dumps(old))).rope_parameters
        kept = {key: value for key, value in reread.items() if key != "type"}
        assert kept == dict(config.rope_parameters), (kept, config.rope_parameters)
        texts["config_old"] = json.dumps(old, indent=2, sort_keys=True)
    weights = {key: value.numpy() for key, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]  # as in a saved checkpoint
    path = FOLDER / f"{name}.npz"
    np.savez_compressed(
        path,
        **texts,
        versions=VERSIONS,
        tokens=tokens.numpy().astype(np.int32),
        greedy_long=greedy_long,
        greedy_short=greedy_short,
        margin=np.float32(margin),
        **{f"weights/{key}": value for key, value in weights.items()},
        **{f"outputs/{key}": value for key, value in outputs.items()},
    )
    size = path.stat().st_size / 1e3
    print(
        f"{name:18} {size:6.0f} kB  margin {margin:.1e}  max|logit| {np.abs(outputs['logits']).max():.2f}  {variety=}"
    )


def rope_cases() -> dict[str, LlamaConfig]:
    """Published settings at head size 128 and the corners of YaRN."""
    big = {"hidden_size": 512, "head_dim": 128, "max_position_embeddings": 131_072}
    llama31 = {**LLAMA3, "original_max_position_embeddings": 8192}
    qwen_yarn = {**YARN, "original_max_position_embeddings": 32_768}
    return {
        "default": _llama(**big, **_new_rope(1_000_000.0)),
        "linear": _llama(**big, **_new_rope(10_000.0, rope_type="linear", factor=4.0)),
        "llama3": _llama(**big, **_new_rope(500_000.0, **llama31)),
        "yarn": _llama(**big, **_new_rope(1_000_000.0, **qwen_yarn)),
        "yarn_untruncated": _llama(**big, **_new_rope(150_000.0, **{**qwen_yarn, "factor": 32.0}, truncate=False)),
        "yarn_tuned": _llama(
            **big, **_new_rope(10_000.0, **qwen_yarn, attention_factor=1.25, beta_fast=16.0, beta_slow=2.0)
        ),
    }


def write_rope() -> None:
    """cos and sin at a few positions, and the frequencies, of every RoPE type."""
    arrays: dict[str, np.ndarray] = {"positions": np.array(ROPE_POSITIONS, np.int32)}
    for name, config in rope_cases().items():
        rope = modeling_llama.LlamaRotaryEmbedding(config)
        cos, sin = rope(torch.zeros(1), torch.tensor([ROPE_POSITIONS]))
        half = config.head_dim // 2
        arrays |= {f"{name}/cos": cos[0, :, :half].numpy(), f"{name}/sin": sin[0, :, :half].numpy()}
        arrays |= {f"{name}/inv_freq": rope.inv_freq.numpy(), f"{name}/rope": json.dumps(dict(config.rope_parameters))}
    path = FOLDER / "rope.npz"
    np.savez_compressed(path, versions=VERSIONS, **arrays)
    print(f"{'rope':18} {path.stat().st_size / 1e3:6.0f} kB")


def main() -> None:
    """Writes every file."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(VERSIONS)
    for name in CASES:
        write_case(name)
    write_rope()


if __name__ == "__main__":
    main()
