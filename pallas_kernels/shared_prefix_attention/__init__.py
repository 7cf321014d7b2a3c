"""Attention of blocks of rows that share one context, each beside keys of its own."""

from pallas_kernels.shared_prefix_attention.config import SharedPrefixConfig
from pallas_kernels.shared_prefix_attention.hopper import cache_attention, shared_prefix_attention

__all__ = ["SharedPrefixConfig", "cache_attention", "shared_prefix_attention"]
