"""Products with weights in either layout against float64; panels are only a layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.models.functional import place, split
from jetspec_jax.ops.first_argmax import first_argmax
from jetspec_jax.ops.project import panel_width, project, project_from, take_rows, to_panels
from jetspec_jax.testing import tiny_config, tiny_target

# fp32 sums of at most 2,048 products of unit size.
ATOL = 2e-4


def random_weight(num_outputs: int, num_inputs: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(num_outputs, num_inputs)).astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        pytest.param((960, 576), 32, id="32-outputs"),
        pytest.param((576, 1536), 16, id="16-for-wide-inputs"),
        pytest.param((48, 8), 16, id="divides-by-16-only"),
        pytest.param((97, 32), None, id="does-not-divide"),
    ],
)
def test_panel_width(shape, expected):
    assert panel_width(*shape, itemsize=4) == expected


@pytest.mark.parametrize("rows", [(1,), (17,), (2, 5)], ids=str)
@pytest.mark.parametrize("shape", [(96, 40), (48, 2048), (97, 32)], ids=["panels-of-32", "panels-of-16", "plain"])
def test_project_is_the_matrix_product_in_both_layouts(rows, shape):
    weight = random_weight(*shape)
    x = np.random.default_rng(1).normal(size=(*rows, shape[1])).astype(np.float32)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64)
    for layout in (weight, to_panels(weight)):
        y = project(jnp.asarray(x), jnp.asarray(layout))
        assert y.shape == (*rows, shape[0])
        np.testing.assert_allclose(y, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("start", [0, 16, 32, 50, 95])
def test_project_from_skips_outputs(start):
    weight, x = random_weight(96, 40), jnp.ones((3, 40))
    for layout in (weight, to_panels(weight)):
        whole = project(x, jnp.asarray(layout))
        np.testing.assert_allclose(project_from(x, jnp.asarray(layout), start), whole[:, start:], rtol=0, atol=ATOL)


def test_take_rows_gives_rows_in_both_layouts_and_clips():
    table = random_weight(64, 8)
    ids = jnp.array([[0, 31, 32], [63, 64, -1]], jnp.int32)
    for layout in (table, to_panels(table)):
        np.testing.assert_array_equal(take_rows(jnp.asarray(layout), ids), table[[[0, 31, 32], [63, 63, 0]]])


def test_bfloat16_weights_stay_as_they_are():
    weight = jnp.ones((64, 64), jnp.bfloat16)
    assert to_panels(np.asarray(weight)).shape == (64, 64)


def test_placing_a_target_on_cpu_keeps_its_logits_and_shares_arrays():
    target = tiny_target(tiny_config(vocab_size=96, tie_word_embeddings=True))
    definition, leaves = split(target)
    placed = place((*leaves, leaves[0]), jax.devices()[0])
    assert placed[-1] is placed[0]
    assert any(leaf.ndim == 3 for leaf in placed)
    tokens = jnp.array([[5, 6, 7]], jnp.int32)

    def logits(leaves):
        target = definition.merge(leaves)
        x, _, _ = target(tokens, target.init_cache(1, 16))
        return target.logits(x)

    np.testing.assert_allclose(logits(placed[:-1]), logits(leaves), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("scores", "index", "top"),
    [
        pytest.param([2.0, 5.0, 5.0], 1, 5.0, id="C06-first-of-a-tie"),
        pytest.param([-np.inf, -np.inf], 0, -np.inf, id="nothing-left"),
        pytest.param([1.0, np.inf, 0.0], 1, np.inf, id="infinite"),
    ],
)
def test_first_argmax(scores, index, top):
    found, maximum = first_argmax(jnp.array(scores))
    assert (int(found), float(maximum)) == (index, top)


def test_first_argmax_of_nan_has_nan_maximum_and_a_valid_index():
    index, top = first_argmax(jnp.array([[1.0, np.nan, 3.0], [0.0, 1.0, 2.0]]))
    assert np.isnan(top[0])
    assert 0 <= int(index[0]) < 3
    assert (int(index[1]), float(top[1])) == (2, 2.0)


def test_a_weight_used_twice_in_a_program_is_not_blown_up():
    """Two passes over one weight: nothing of the size rows x weight may be stored between them."""
    weight = jnp.asarray(to_panels(np.ones((512, 256), np.float32)))

    def twice(x, weight):
        return project(jnp.tanh(project(x, weight)[:, :256]), weight)

    compiled = jax.jit(twice).lower(jnp.ones((16, 256)), weight).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < weight.nbytes
