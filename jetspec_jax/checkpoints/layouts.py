"""The weight table: which checkpoint tensors make up which parameter, for Llama and Qwen3 targets.

A parameter is the concatenation of its sources on axis 0: [q; k; v], [gate; up]. Weights stay [out, in]. The table
is complete in both directions: a tensor that no row names is refused unless it is listed here as ignorable.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jetspec_jax.checkpoints.reader import TensorReader
from jetspec_jax.config import TargetConfig, TransformerShape

# Recomputed from the config; written by old transformers.
IGNORABLE = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

LOADABLE_TYPES = ("float64", "float32", "float16", "bfloat16")

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Source:
    """One tensor of a checkpoint and the shape it must have."""

    key: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WeightRow:
    """One parameter of a module (dotted path) and the tensors it is made of, in order."""

    parameter: str
    sources: tuple[Source, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the parameter."""
        return (sum(source.shape[0] for source in self.sources), *self.sources[0].shape[1:])


def _linear(parameter: str, outputs: Mapping[str, int], in_size: int, *, bias: bool) -> list[WeightRow]:
    """Rows of one projection fused from `outputs`, keys of checkpoint modules with their output sizes."""
    rows = [WeightRow(f"{parameter}.weight", tuple(Source(f"{k}.weight", (n, in_size)) for k, n in outputs.items()))]
    if bias:
        rows.append(WeightRow(f"{parameter}.bias", tuple(Source(f"{k}.bias", (n,)) for k, n in outputs.items())))
    return rows


def _norm(parameter: str, key: str, size: int) -> WeightRow:
    return WeightRow(f"{parameter}.scale", (Source(f"{key}.weight", (size,)),))


def layer_rows(shape: TransformerShape, parameter: str, key: str) -> list[WeightRow]:
    """Rows of one decoder layer.

    Args:
        shape: sizes of the layer.
        parameter: path of the layer in the module (`layers.3`).
        key: path of the layer in the checkpoint (`model.layers.3`).
    """
    width, attention, mlp = shape.hidden_size, f"{key}.self_attn", f"{key}.mlp"
    q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    qkv = {f"{attention}.q_proj": q_size, f"{attention}.k_proj": kv_size, f"{attention}.v_proj": kv_size}
    gate_up = {f"{mlp}.gate_proj": shape.intermediate_size, f"{mlp}.up_proj": shape.intermediate_size}
    out, down = {f"{attention}.o_proj": width}, {f"{mlp}.down_proj": width}
    rows = [
        _norm(f"{parameter}.attention_norm", f"{key}.input_layernorm", width),
        *_linear(f"{parameter}.attention.qkv", qkv, width, bias=shape.attention_bias),
        *_linear(f"{parameter}.attention.out", out, q_size, bias=shape.output_bias),
        _norm(f"{parameter}.mlp_norm", f"{key}.post_attention_layernorm", width),
        *_linear(f"{parameter}.mlp.gate_up", gate_up, width, bias=shape.mlp_bias),
        *_linear(f"{parameter}.mlp.down", down, shape.intermediate_size, bias=shape.mlp_bias),
    ]
    if shape.qk_norm:
        rows.append(_norm(f"{parameter}.attention.q_norm", f"{attention}.q_norm", shape.head_dim))
        rows.append(_norm(f"{parameter}.attention.k_norm", f"{attention}.k_norm", shape.head_dim))
    return rows


def target_rows(config: TargetConfig) -> tuple[WeightRow, ...]:
    """The weight table of a target; a tied head has no row."""
    table = (config.vocab_size, config.shape.hidden_size)
    rows = [WeightRow("embed.weight", (Source(EMBEDDING, table),))]
    for layer in range(config.num_layers):
        rows += layer_rows(config.shape, f"layers.{layer}", f"model.layers.{layer}")
    rows.append(_norm("norm", "model.norm", config.shape.hidden_size))
    if not config.tie_word_embeddings:
        rows.append(WeightRow("lm_head.weight", (Source(HEAD, table),)))
    return tuple(rows)


def target_duplicates(config: TargetConfig) -> dict[str, str]:
    """Tensors that a file may repeat although they are not loaded, and what each must equal bit by bit."""
    return {HEAD: EMBEDDING} if config.tie_word_embeddings else {}


def find_problems(rows: Sequence[WeightRow], reader: TensorReader, duplicates: Mapping[str, str]) -> list[str]:
    """Every missing, misshaped, unloadable and unexpected tensor, found without reading any of them."""
    wanted = {source.key: source.shape for row in rows for source in row.sources}
    found = dict.fromkeys(reader.keys())
    problems = [f"missing: {key} {list(shape)}" for key, shape in wanted.items() if key not in found]
    for key in found:
        expected = wanted.get(key, wanted.get(duplicates.get(key, "")))
        if expected is None:
            if not IGNORABLE.fullmatch(key):
                problems.append(f"unexpected: {key} {list(reader.shape(key))}")
        elif reader.shape(key) != expected:
            problems.append(f"misshaped: {key}: expected {list(expected)}, found {list(reader.shape(key))}")
        elif reader.dtype(key).name not in LOADABLE_TYPES:
            problems.append(f"not a float type: {key} is {reader.stored_type(key)}")
    return problems


def find_unequal(reader: TensorReader, duplicates: Mapping[str, str]) -> list[str]:
    """Repeated tensors that differ from their original. Reads both; call it once `find_problems` is content."""
    problems, found = [], set(reader.keys())
    for key, original in duplicates.items():
        if key in found:
            copy, first = reader.read(key), reader.read(original)
            if copy.dtype != first.dtype or not np.array_equal(copy.view(np.uint8), first.view(np.uint8)):
                problems.append(f"unexpected: {key} differs from {original} although the embeddings are tied")
    return problems
