"""Gumbel noise of single vocabulary entries, in integer operations that run inside a kernel as well as outside.

`jax.random.gumbel(key, (V,), float32)` with threefry2x32 keys hashes the 64-bit index of each element with the key,
folds the two words into one by xor, makes its upper 23 bits the mantissa of a number in [0, 1), lifts 0 to the smallest
normal number and takes `-log(-log(u))`. That holds for `jax_threefry_partitionable` and the gumbel mode "low", both the
default of jax 0.11 and 0.12. Whatever the vocabulary, an element's noise depends on the key and its index alone, so a
tile of the vocabulary is drawn without the rest.

Threefry: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

PARITY = 0x1BD11BDA
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
NUM_GROUPS = 5  # of four rounds
TINY = float(jnp.finfo(jnp.float32).tiny)


def check_jax_noise() -> None:
    """Makes sure that `jax.random` draws what is repeated here.

    Raises:
        NotImplementedError: another way of drawing is configured.
    """
    if not jax.config.jax_threefry_partitionable or jax.config.jax_high_dynamic_range_gumbel:
        raise NotImplementedError(
            "noise is that of jax_threefry_partitionable=True and jax_high_dynamic_range_gumbel=False, got "
            f"{jax.config.jax_threefry_partitionable} and {jax.config.jax_high_dynamic_range_gumbel}"
        )


def random_bits(
    key_0: UInt32[Array, "*shape"], key_1: UInt32[Array, "*shape"], index: UInt32[Array, "*shape"]
) -> UInt32[Array, "*shape"]:
    """32 bits of each element.

    Args:
        key_0, key_1: the words of its key.
        index: its place in the drawn array; below 2^32, so that the upper word of the counter is 0.
    """
    schedule = (key_0, key_1, key_0 ^ key_1 ^ jnp.uint32(PARITY))
    x, y = key_0, index + key_1
    for group in range(NUM_GROUPS):
        for distance in ROTATIONS[group % 2]:
            x = x + y
            y = (y << jnp.uint32(distance)) | (y >> jnp.uint32(32 - distance))
            y = x ^ y
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x ^ y


def gumbel(
    key_0: UInt32[Array, "*shape"], key_1: UInt32[Array, "*shape"], index: UInt32[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """Standard Gumbel noise of each element; arguments of `random_bits`."""
    mantissa = random_bits(key_0, key_1, index) >> jnp.uint32(9)
    one_to_two = jax.lax.bitcast_convert_type(mantissa | jnp.uint32(0x3F800000), jnp.float32)
    return -jnp.log(-jnp.log(jnp.maximum(one_to_two - jnp.float32(1), jnp.float32(TINY))))
