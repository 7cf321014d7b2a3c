"""Configuration of models: frozen, hashable dataclasses that jit takes as static arguments.

`checkpoints/hf_config.py` builds them from a Hugging Face `config.json`; options of one request are in
`sampling_params.py`.
"""

from dataclasses import dataclass
from typing import Any, Literal

LayerType = Literal["full_attention", "sliding_attention"]


def default_taps(num_layers: int, num_taps: int = 5) -> tuple[int, ...]:
    """Target layers whose outputs the draft reads: evenly spaced from layer 1 to layer N-3.

    `l_i = round(1 + i (N - 4) / (m - 1))`, DFlash section of the handbook (1.3). N=36 -> (1, 9, 17, 25, 33),
    N=30 -> (1, 8, 14, 20, 27). A target too shallow for `num_taps` distinct layers gets as many as it has.
    """
    deepest = max(num_layers - 3, 0)
    first = min(1, deepest)
    steps = max(num_taps - 1, 1)
    return tuple(sorted({round(first + i * (deepest - first) / steps) for i in range(num_taps)}))


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding, with the scaling variants that change its frequencies.

    Attributes:
        theta: base of the inverse frequencies.
        rope_type: `default`, `linear`, `llama3` or `yarn`; anything else is refused.
        factor: context extension factor (all types but `default`).
        low_freq_factor, high_freq_factor: `llama3` only.
        original_max_position_embeddings: context length before extension (`llama3`, `yarn`), positions.
        beta_fast, beta_slow: `yarn` correction range, rotations.
        attention_factor: `yarn` multiplier of cos and sin.
        truncate: `yarn`, whether the correction range is rounded to whole dimensions.
    """

    theta: float
    rope_type: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True

    def __post_init__(self):
        if self.theta <= 0:
            raise ValueError(f"rope theta must be positive, got {self.theta}")
        if self.rope_type not in ("default", "linear", "llama3", "yarn"):
            raise ValueError(f"rope_type {self.rope_type!r} is not supported (default, linear, llama3, yarn)")
        if self.rope_type in ("llama3", "yarn") and self.original_max_position_embeddings <= 0:
            raise ValueError(f"rope_type {self.rope_type!r} needs original_max_position_embeddings")


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """What one decoder layer needs to know; targets and drafts share it.

    Attributes:
        hidden_size: D, width of the residual stream.
        intermediate_size: F, width of the SwiGLU MLP.
        num_heads, num_kv_heads, head_dim: N, K, H; N is a multiple of K.
        rms_norm_eps: epsilon of every RMSNorm.
        qk_norm: RMSNorm over each head of q and k (Qwen3).
        attention_bias: bias on q, k, v; `output_bias`: bias on the attention output projection.
        mlp_bias: bias on gate, up, down.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    qk_norm: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self):
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for RoPE")


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """A dense decoder-only target (Llama family, Qwen3).

    Attributes:
        model_type: Hugging Face model type, `llama` or `qwen3`.
        shape: sizes of each decoder layer.
        num_layers: number of decoder layers.
        vocab_size: V, rows of the embedding, padding included.
        max_position_embeddings: longest context, tokens.
        layer_types: attention kind of each layer.
        sliding_window: window of the sliding layers, tokens (each row sees itself and `sliding_window - 1` before).
        ropes: RoPE of each attention kind, as pairs (kind, RopeConfig).
        tie_word_embeddings: the head is the embedding.
        taps: layers (0-based) whose outputs (residual stream after the layer, before the final norm, equal to
            Hugging Face `hidden_states[l + 1]`) are handed to the draft.
        eos_token_ids, bos_token_id: as in the checkpoint.
    """

    model_type: str
    shape: TransformerShape
    num_layers: int
    vocab_size: int
    max_position_embeddings: int
    layer_types: tuple[LayerType, ...]
    ropes: tuple[tuple[LayerType, RopeConfig], ...]
    tie_word_embeddings: bool
    taps: tuple[int, ...]
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self):
        if len(self.layer_types) != self.num_layers:
            raise ValueError(f"layer_types has {len(self.layer_types)} entries for num_layers={self.num_layers}")
        known = dict(self.ropes)
        for kind in set(self.layer_types):
            if kind not in ("full_attention", "sliding_attention"):
                raise ValueError(f"layer type {kind!r} is not supported (full_attention, sliding_attention)")
            if kind not in known:
                raise ValueError(f"no RoPE parameters for layer type {kind!r}")
        if "sliding_attention" in self.layer_types and not self.sliding_window:
            raise ValueError("sliding_attention layers need sliding_window")
        bad = [tap for tap in self.taps if not 0 <= tap < self.num_layers]
        if not self.taps or bad or list(self.taps) != sorted(set(self.taps)):
            raise ValueError(f"taps={self.taps} must be increasing layer indices in 0..{self.num_layers - 1}")

    def rope_of(self, layer: int) -> RopeConfig:
        """RoPE of one layer."""
        return dict(self.ropes)[self.layer_types[layer]]

    def window_of(self, layer: int) -> int | None:
        """Attention window of one layer in tokens, None for full attention."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None


@dataclass(frozen=True, kw_only=True)
class DraftConfig:
    """The parallel block draft: Qwen3-shaped layers conditioned on tapped target states (handbook 1.3, 7.2).

    Attributes:
        shape: sizes of each draft layer; `hidden_size` equals the target's.
        num_layers: number of draft layers.
        num_taps: m, how many target layers `fc` reads.
        rope: RoPE of every draft layer, the target's.
        block_rows: rows the draft was trained with; row 0 is the anchor.
        causal: rows of a block see earlier rows only (JetSpec, JetSpec++), else all rows (DFlash).
        shift: row o predicts position n+o+1 (JetSpec++); False: row o predicts its own position n+o.
        inputs: what unknown rows carry: `noise` tokens drawn from the committed prefix, or the `mask` token.
        mask_token_id: id of the mask token when `inputs == "mask"`.
    """

    shape: TransformerShape
    num_layers: int
    num_taps: int
    rope: RopeConfig
    block_rows: int = 16
    causal: bool = True
    shift: bool = True
    inputs: Literal["noise", "mask"] = "noise"
    mask_token_id: int | None = None

    def __post_init__(self):
        if self.inputs not in ("noise", "mask"):
            raise ValueError(f"inputs={self.inputs!r} is not supported (noise, mask)")
        if (self.inputs == "mask") != (self.mask_token_id is not None):
            raise ValueError(f"inputs={self.inputs!r} with mask_token_id={self.mask_token_id}")
        if self.block_rows < 2:
            raise ValueError(f"block_rows={self.block_rows} leaves nothing to draft")

    @property
    def max_draft_len(self) -> int:
        """Most tokens one pass over `block_rows` rows can propose."""
        return self.block_rows if self.shift else self.block_rows - 1


def draft_config_for(target: TargetConfig, **overrides: Any) -> DraftConfig:
    """The default draft of a target: five Qwen3-shaped layers of the target's width and RoPE."""
    shape = TransformerShape(
        hidden_size=target.shape.hidden_size,
        intermediate_size=target.shape.intermediate_size,
        num_heads=target.shape.num_heads,
        num_kv_heads=target.shape.num_kv_heads,
        head_dim=target.shape.head_dim,
        rms_norm_eps=target.shape.rms_norm_eps,
        qk_norm=True,
    )
    defaults = {"shape": shape, "num_layers": 5, "num_taps": len(target.taps), "rope": target.rope_of(target.taps[-1])}
    return DraftConfig(**(defaults | overrides))


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """The adapter: a chain of modules that predicts the tapped states of a block from its tokens (handbook 7.4).

    Attributes:
        shape: sizes of each layer, the target's own.
        layers_per_module: module j predicts tap j from tap j-1 (the first one from token embeddings).
        rope: RoPE of every layer, the target's.
    """

    shape: TransformerShape
    layers_per_module: tuple[int, ...]
    rope: RopeConfig

    def __post_init__(self):
        if not self.layers_per_module or min(self.layers_per_module) < 1:
            raise ValueError(f"layers_per_module={self.layers_per_module} needs at least one layer in every module")

    @property
    def num_layers(self) -> int:
        """Layers of all modules."""
        return sum(self.layers_per_module)


def adapter_config_for(target: TargetConfig, **overrides: Any) -> AdapterConfig:
    """The default adapter of a target: one module a tap, the deeper ones with a third layer; (2, 2, 2, 3, 3) for five.

    Raises:
        ValueError: the number of modules is not the number of taps.
    """
    num_deep = round(0.4 * len(target.taps))
    split = (2,) * (len(target.taps) - num_deep) + (3,) * num_deep
    full = dict(target.ropes).get("full_attention", target.ropes[0][1])
    config = AdapterConfig(**({"shape": target.shape, "layers_per_module": split, "rope": full} | overrides))
    if len(config.layers_per_module) != len(target.taps):
        raise ValueError(f"layers_per_module={config.layers_per_module} for the {len(target.taps)} taps {target.taps}")
    return config
