"""Product of few rows with a weight that is streamed once: norm, scales, SwiGLU and residual in the same launch."""

from pallas_kernels.skinny_matmul.config import SkinnyMatmulConfig
from pallas_kernels.skinny_matmul.hopper import skinny_matmul
from pallas_kernels.skinny_matmul.product import Product, bytes_moved
from pallas_kernels.skinny_matmul.tuning import candidate_configs, default_config

__all__ = ["Product", "SkinnyMatmulConfig", "bytes_moved", "candidate_configs", "default_config", "skinny_matmul"]
