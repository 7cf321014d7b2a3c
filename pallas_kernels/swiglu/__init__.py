"""SwiGLU on the joint product of gate and up."""

from pallas_kernels.swiglu.hopper import SwiGLUConfig, swiglu

__all__ = ["SwiGLUConfig", "swiglu"]
