import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.checkpoints.quantized import quantize_rows
from jetspec_jax.ops.project import project, project_from, take_rows
from jetspec_jax.ops.quantized_weight import QuantizedWeight

# Inputs of a group of 16 as they are stored.
ORDER = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]


@pytest.fixture(params=[32, 24], ids=["in groups of 16", "in no groups"])
def weight(request) -> np.ndarray:
    weight = np.random.default_rng(0).standard_normal((6, request.param)).astype(np.float32)
    weight[2] = 0
    return weight * np.array([1, 1e-3, 1, 50, 1, 1], np.float32)[:, None]


def natural(values: np.ndarray) -> np.ndarray:
    """Stored values with their inputs in order."""
    if values.shape[1] % 16:
        return values
    return values.reshape(len(values), -1, 16)[:, :, np.argsort(ORDER)].reshape(values.shape)


def dense(weight: QuantizedWeight) -> np.ndarray:
    return natural(np.asarray(weight.values, np.float32)) * np.asarray(weight.scale)[:, None]


def test_no_element_is_off_by_more_than_half_its_rows_scale(weight):
    quantized = QuantizedWeight.of(jnp.asarray(weight))
    error = np.abs(dense(quantized) - weight)
    assert np.all(error <= 0.5001 * np.asarray(quantized.scale)[:, None])
    assert error[0].max() > 0
    np.testing.assert_array_equal(quantized.scale[2], 1.0)


def test_it_is_the_form_that_drafters_are_stored_in(weight):
    """So quantising weights that were read from an int8 file changes nothing."""
    values, scale = quantize_rows(weight)
    quantized = QuantizedWeight.of(jnp.asarray(weight))
    np.testing.assert_array_equal(natural(np.asarray(quantized.values)), values)
    np.testing.assert_allclose(quantized.scale, scale, rtol=2**-22)  # XLA divides to one ulp
    again = QuantizedWeight.of(jnp.asarray(dense(quantized)))
    np.testing.assert_array_equal(again.values, quantized.values)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_projection_is_that_of_the_dense_weight(weight, dtype):
    quantized = QuantizedWeight.of(jnp.asarray(weight, dtype))
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 3, weight.shape[1])), dtype)
    y = project(x, quantized, out_dtype=jnp.float32)
    expected = np.asarray(x, np.float32) @ dense(quantized).T
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert project(x, quantized).dtype == dtype
    tail = project_from(x, quantized, 4)
    np.testing.assert_allclose(np.asarray(tail, np.float32), expected[..., 4:], rtol=1e-2, atol=1e-2)


def test_rows_are_looked_up_in_the_dtype_of_the_weight(weight):
    quantized = QuantizedWeight.of(jnp.asarray(weight, jnp.bfloat16))
    rows = take_rows(quantized, jnp.array([[0, 5], [9, 3]], jnp.int32))  # 9 is beyond the table: its last row
    assert rows.dtype == jnp.bfloat16
    expected = dense(quantized)[[[0, 5], [5, 3]]]
    np.testing.assert_allclose(np.asarray(rows, np.float32), expected, rtol=2**-8)


@pytest.mark.parametrize(("weight_format", "dtype"), [("int8", jnp.int8), ("fp8", jnp.float8_e4m3fn)])
def test_it_passes_through_jit_as_two_arrays(weight, weight_format, dtype):
    quantized = QuantizedWeight.of(jnp.asarray(weight), weight_format)
    assert [leaf.dtype for leaf in jax.tree.leaves(quantized)] == [dtype, jnp.float32]
    assert jax.jit(lambda weight: weight)(quantized).dtype == jnp.float32


# fp8


def test_fp8_is_off_by_a_sixteenth_of_an_element_or_by_a_step_of_the_smallest(weight):
    quantized = QuantizedWeight.of(jnp.asarray(weight), "fp8")
    scale = np.asarray(quantized.scale)[:, None]
    error = np.abs(np.asarray(quantized.values, np.float32) * scale - weight)
    assert np.all(error <= 1.001 * np.maximum(np.abs(weight) / 16, scale * 2**-10))
    assert error[0].max() > 0
    np.testing.assert_allclose(np.abs(np.asarray(quantized.values, np.float32)).max(axis=1)[[0, 1, 3]], 448)


def test_fp8_activations_are_rounded_without_a_scale_and_stay_finite(weight):
    quantized = QuantizedWeight.of(jnp.asarray(weight), "fp8")
    x = jnp.array([1.0, 1.06, 1.07, -17, 18.1, 449, -1e6, jnp.inf, jnp.nan], jnp.bfloat16)
    rounded = np.asarray(quantized.rounded(x), np.float32)
    np.testing.assert_array_equal(rounded, [1, 1, 1.125, -16, 18, 448, -448, 448, np.nan])
    assert QuantizedWeight.of(jnp.asarray(weight)).rounded(x) is x


def test_fp8_projection_is_that_of_rounded_activations(weight):
    quantized = QuantizedWeight.of(jnp.asarray(weight), "fp8")
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 3, weight.shape[1])), jnp.bfloat16)
    dense = np.asarray(quantized.values, np.float32) * np.asarray(quantized.scale)[:, None]
    expected = np.asarray(quantized.rounded(x), np.float32) @ dense.T
    np.testing.assert_allclose(project(x, quantized, out_dtype=jnp.float32), expected, rtol=1e-5, atol=1e-5)
    exact = np.asarray(x, np.float32) @ weight.T
    assert 0.005 < np.linalg.norm(expected - exact) / np.linalg.norm(exact) < 0.08
    in_bf16 = project(x, quantized)
    assert in_bf16.dtype == jnp.bfloat16
    given_rounded = project(quantized.rounded(x), quantized)
    assert given_rounded.dtype == weight.dtype  # of the weight
    np.testing.assert_array_equal(given_rounded.astype(jnp.bfloat16), in_bf16)
    np.testing.assert_array_equal(take_rows(quantized, jnp.array([3])), dense[[3]])
