import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.losses import LOSS_KINDS, RowLosses, head_loss, mean_where, row_losses, row_metrics, smoothed_weights

RNG = np.random.default_rng(0)


def direct_loss(kind, student, teacher):
    p, q = jax.nn.softmax(teacher), jax.nn.softmax(student)
    if kind == "kl":
        return jnp.sum(p * (jnp.log(p) - jnp.log(q)), axis=-1)
    if kind == "reverse_kl":
        return jnp.sum(q * (jnp.log(q) - jnp.log(p)), axis=-1)
    return -jnp.log(jnp.take_along_axis(q, jnp.argmax(p, axis=-1)[..., None], axis=-1))[..., 0]


@pytest.fixture
def problem():
    def normal(*shape):
        return jnp.asarray(RNG.normal(size=shape), jnp.float32)

    batch, anchors, rows, size, width, vocab = 2, 6, 3, 10, 4, 11
    at = jnp.asarray(RNG.integers(0, size, (batch, anchors, rows)), jnp.int32)
    labels = jnp.asarray(RNG.integers(0, vocab, (batch, anchors, rows)), jnp.int32)
    weights = jnp.asarray(RNG.random((batch, anchors, rows)) < 0.7, jnp.float32)
    return normal(batch, anchors, rows, width), normal(batch, size, width), at, labels, weights, normal(vocab, width)


@pytest.mark.parametrize("kind", LOSS_KINDS)
@pytest.mark.parametrize(("num_chunks", "smoothing"), [(1, None), (3, None), (3, 0.5)])
def test_chunked_loss_and_gradient_are_those_of_the_whole(problem, kind, num_chunks, smoothing):
    student, teacher, at, labels, weights, head = problem
    # A constant of the student: no gradient goes through the weights.
    label_prob = jnp.take_along_axis(jax.nn.softmax(student @ head.T), labels[..., None], axis=-1)[..., 0]
    reached = weights if smoothing is None else weights * smoothed_weights(label_prob, smoothing)
    options = {"kind": kind, "num_chunks": num_chunks, "smoothing": smoothing}

    def chunked(student):
        return 0.5 * head_loss(student, teacher, at, labels, weights, head, **options)[0]

    def whole(student):
        rows = jax.vmap(lambda t, i: t[i])(teacher, at)
        return 0.5 * jnp.sum(reached * direct_loss(kind, student @ head.T, rows @ head.T))

    (loss, grad), (expected, expected_grad) = (jax.value_and_grad(f)(student) for f in (chunked, whole))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(grad, expected_grad, rtol=1e-4, atol=1e-6)


def test_equal_logits_cost_nothing_and_agree():
    logits = jnp.asarray(RNG.normal(size=(3, 7)), jnp.float32)
    losses = row_losses(logits, logits, jnp.zeros(3, jnp.int32), "kl")
    np.testing.assert_allclose(losses.loss, 0, atol=1e-6)
    assert losses.agrees.tolist() == [1, 1, 1]
    np.testing.assert_allclose(losses.label_prob, jax.nn.softmax(logits)[:, 0], rtol=1e-6)


def test_an_unsupervised_row_may_hold_nan(problem):
    student, teacher, at, labels, _, head = problem
    student = student.at[0, 0].set(jnp.nan)
    weights = jnp.ones(at.shape, jnp.float32).at[0, 0].set(0.0)
    loss, grad = jax.value_and_grad(lambda s: head_loss(s, teacher, at, labels, weights, head)[0])(student)
    assert np.isfinite(loss)
    assert np.isfinite(grad).all()
    assert np.all(np.asarray(grad)[0, 0] == 0)


def test_smoothed_weights_multiply_what_came_before():
    weights = smoothed_weights(jnp.asarray([[0.5, 0.0, 1.0]]), 0.5)
    np.testing.assert_allclose(weights, [[1, 0.75, 0.375]])


def test_smoothing_scales_each_row_by_its_weight(problem):
    student, teacher, at, labels, weights, head = problem
    total, rows = head_loss(student, teacher, at, labels, weights, head, smoothing=0.5)
    expected = jnp.sum(rows.loss * weights * smoothed_weights(rows.label_prob, 0.5))
    np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_a_run_starts_at_the_first_supervised_row():
    """In place: the anchor's row is not supervised. Rows that agree: 1, 2, not 3, 4."""
    agrees = jnp.asarray([[[0.0, 1.0, 1.0, 0.0, 1.0]]])
    weights = jnp.asarray([[[0.0, 1.0, 1.0, 1.0, 1.0]]])
    rows = RowLosses(agrees, agrees, agrees)
    assert float(row_metrics(rows, weights, weights)["run"]) == 3
    shifted = jnp.ones_like(weights)
    assert float(row_metrics(rows, shifted, shifted)["run"]) == 1


def test_mean_of_nothing_is_zero():
    assert float(mean_where(jnp.asarray([jnp.nan]), jnp.zeros(1))) == 0


def test_refuses_unknown_losses_and_chunks_that_do_not_divide(problem):
    student, teacher, at, labels, weights, head = problem
    with pytest.raises(ValueError, match="'mse'"):
        head_loss(student, teacher, at, labels, weights, head, kind="mse")
    with pytest.raises(ValueError, match="num_chunks=4 does not divide 6"):
        head_loss(student, teacher, at, labels, weights, head, num_chunks=4)
