"""The order of int8 weights against the fragments of a wgmma, as PTX describes them."""

import jax.numpy as jnp
import numpy as np

from pallas_kernels.fragment_order import fragment_order, natural_order


def test_four_stored_bytes_are_what_a_thread_holds_of_sixteen_inputs():
    stored = np.asarray(fragment_order(jnp.arange(32)[None]))[0].reshape(2, 4, 4)
    for group in range(2):
        for thread in range(4):
            wanted = 16 * group + np.array([2 * thread, 2 * thread + 1, 2 * thread + 8, 2 * thread + 9])
            np.testing.assert_array_equal(stored[group, thread], wanted)


def test_natural_order_undoes_it():
    x = jnp.arange(3 * 2 * 48).reshape(3, 2, 48)
    np.testing.assert_array_equal(natural_order(fragment_order(x)), x)
