import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.ops.top_k import _in_parts, num_parts, top_k


@pytest.mark.parametrize(("width", "k", "parts"), [(151_936, 4, 128), (49_152, 16, 128), (97, 4, 1), (16_386, 4, 2)])
def test_long_rows_are_divided(width, k, parts):
    assert num_parts(width, k) == parts


@pytest.mark.parametrize("k", [1, 5])
@pytest.mark.parametrize(
    "of",
    [top_k, lambda x, k: _in_parts(x, k, num_parts(x.shape[-1], k))],
    ids=["as this platform does it", "in parts"],
)
def test_it_is_lax_top_k_ties_and_nan_included(of, k):
    width = 32_768
    # Few distinct values, so that equal ones lie within a part, in two parts, and among the results.
    x = np.random.default_rng(0).integers(0, 50, (2, 3, width)).astype(np.float32)
    x[0, 0, [7, width - 3]] = np.nan
    x[0, 1] = -np.inf
    x[1, 2, :] = np.arange(width)
    got, want = jax.jit(of, static_argnums=1)(x, k), jax.lax.top_k(jnp.asarray(x), k)
    np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_array_equal(got[0], want[0])
    assert got[1].dtype == want[1].dtype


def test_parts_are_for_gpus():
    lower = jax.jit(top_k, static_argnums=1).trace(jax.ShapeDtypeStruct((17, 151_936), jnp.float32), 4).lower
    assert "17x128x1187" in lower(lowering_platforms=("cuda",)).as_text()
    assert "17x128x1187" not in lower(lowering_platforms=("cpu",)).as_text()
