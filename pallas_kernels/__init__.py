"""GPU kernels in Pallas (Mosaic GPU), one folder an operation: reference, kernel, shapes. Knows nothing but jax."""
