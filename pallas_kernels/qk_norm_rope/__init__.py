"""Per-head norm, rotation and cache write of a fused query-key-value projection in one kernel."""

from pallas_kernels.qk_norm_rope.hopper import QKNormRopeConfig, qk_norm_rope

__all__ = ["QKNormRopeConfig", "qk_norm_rope"]
