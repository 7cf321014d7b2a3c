"""Shapes that benchmarks run with random weights."""

from jetspec_jax.config import RopeConfig, TargetConfig, TransformerShape
from jetspec_jax.testing import tiny_config


def qwen3_8b() -> TargetConfig:
    """The shape of Qwen3-8B, with the taps of the paper."""
    shape = TransformerShape(
        hidden_size=4096,
        intermediate_size=12288,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        qk_norm=True,
    )
    return TargetConfig(
        model_type="qwen3",
        shape=shape,
        num_layers=36,
        vocab_size=151936,
        max_position_embeddings=40960,
        layer_types=("full_attention",) * 36,
        ropes=(("full_attention", RopeConfig(theta=1e6)),),
        tie_word_embeddings=False,
        taps=(1, 9, 17, 25, 33),
    )


SHAPES = {"qwen3-8b": qwen3_8b, "tiny": lambda: tiny_config(num_layers=8, taps=(0, 1, 2, 4, 5))}
