import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.ops.first_argmax import first_argmax


def test_first_of_equal_maxima_wins():
    tokens, top = first_argmax(jnp.array([[2.0, 5.0, 5.0], [-1.0, -jnp.inf, -1.0]]))
    assert tokens.tolist() == [1, 0]
    assert top.tolist() == [5.0, -1.0]


# Real vocabularies: XLA's maximum of a large array on CPU loses a NaN.
@pytest.mark.parametrize("shape", [(3, 7), (1, 49_152), (17, 49_152)])
def test_a_nan_shows_in_the_maximum_of_its_row_alone(shape):
    scores = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    scores[-1, shape[1] // 2] = np.nan
    tokens, top = jax.jit(first_argmax)(scores)
    assert np.isnan(top[-1])
    assert 0 <= int(tokens[-1]) < shape[1]
    np.testing.assert_array_equal(top[:-1], scores[:-1].max(axis=1))
    np.testing.assert_array_equal(tokens[:-1], scores[:-1].argmax(axis=1))
