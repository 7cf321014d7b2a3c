"""Residual addition and the RMSNorm of the sum in one kernel."""

from pallas_kernels.residual_rms_norm.hopper import ResidualRMSNormConfig, residual_rms_norm

__all__ = ["ResidualRMSNormConfig", "residual_rms_norm"]
