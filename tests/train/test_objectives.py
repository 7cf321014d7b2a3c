from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import split
from jetspec_jax.testing.tiny import tiny_config, tiny_target
from train.adapter_objective import (
    AdapterObjective,
    ReachWeighting,
    adapter_loss,
    position_weights,
    state_errors,
)
from train.batch import Batch
from train.blocks import BlockConfig, cut_blocks
from train.chained import chained_blocks
from train.draft_objective import DraftObjective, FrozenParts, context_of, draft_loss
from train.sequence import teach

SIZE = 24
KEY = jax.random.key(3)


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation():
    """Most of the time is compiling."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def target():
    return tiny_target(tiny_config(num_layers=4, taps=(0, 1, 2)))


@pytest.fixture(scope="module")
def draft(target):
    return Draft(draft_config_for(target.config, num_layers=2), dtype=jnp.float32, rngs=nnx.Rngs(1))


@pytest.fixture(scope="module")
def adapter(target):
    config = adapter_config_for(target.config, layers_per_module=(1, 2, 1))
    return Adapter.random(config, dtype=jnp.float32, rngs=nnx.Rngs(2))


@pytest.fixture(scope="module")
def batch():
    tokens = np.random.default_rng(0).integers(0, 97, (3, SIZE)).astype(np.int32)
    lengths = np.array([SIZE, 17, 9], np.int32)
    position = np.arange(SIZE)[None, :]
    mask = (position >= 5) & (position < lengths[:, None])
    return Batch(tokens=tokens, answer_mask=mask, length=lengths, ids=np.arange(3, dtype=np.int32))


def test_the_teacher_is_the_target(target, batch):
    teaching = teach(target, jnp.asarray(batch.tokens))
    x, taps, cache = target(jnp.asarray(batch.tokens), target.init_cache(3, SIZE))
    np.testing.assert_allclose(teaching.taps, taps, atol=1e-5)
    np.testing.assert_allclose(teaching.hidden, target.norm(x), atol=1e-4)
    np.testing.assert_allclose(teaching.decoder_cache.keys[0], cache.keys[3], atol=1e-5)
    np.testing.assert_allclose(teaching.decoder_cache.values[0], cache.values[3], atol=1e-5)


def test_the_drafts_context_is_what_decoding_builds(target, draft, batch):
    taps = teach(target, jnp.asarray(batch.tokens)).taps
    built, extended = context_of(draft, taps), draft.extend(draft.init_context(3, SIZE), taps)
    for one, other in zip(built.keys + built.values, extended.keys + extended.values, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_chained_blocks_are_what_the_adapter_predicts_when_decoding(target, adapter, batch):
    teaching = teach(target, jnp.asarray(batch.tokens))
    anchors = jnp.asarray([[4, 9], [6, 15], [5, 8]], jnp.int32)
    embedded = target.embed(jnp.asarray(np.random.default_rng(1).integers(0, 97, (3, 2, 4)), jnp.int32))
    predicted = chained_blocks(adapter, teaching, embedded, anchors, remat=False)
    start = jnp.zeros((3,), jnp.int32)
    _, cache = adapter.extend(teaching.embedded, teaching.taps, start, adapter.init_cache(3, SIZE))
    np.testing.assert_allclose(predicted, adapter.predict(embedded, cache, anchors), atol=1e-5)


def draft_task(target, draft, **objective):
    target_definition, frozen = split(target)
    definition, params = split(draft)
    fields = {"blocks": BlockConfig(num_anchors=6, num_rows=4), "num_chunks": 2, "compute_dtype": "float32"}
    objective = DraftObjective(**(fields | objective))
    return lambda params, batch: draft_loss(
        objective, target_definition, definition, params, FrozenParts(frozen), batch, KEY
    ), params


def adapter_task(target, adapter, **objective):
    target_definition, frozen = split(target)
    definition, params = split(adapter)
    fields = {"blocks": BlockConfig(num_anchors=4, num_rows=4), "num_chunks": 2, "compute_dtype": "float32"}
    objective = AdapterObjective(**(fields | objective))
    return lambda params, batch: adapter_loss(
        objective, target_definition, definition, params, frozen, batch, KEY
    ), params


@pytest.mark.parametrize("anchors", [(5, 8)])
def test_a_block_never_sees_states_from_its_anchor_on(target, draft, batch, anchors):
    """Bug case C30: anchors closer than a block."""
    taps = teach(target, jnp.asarray(batch.tokens[:1])).taps
    rows = target.embed(jnp.asarray(np.random.default_rng(2).integers(0, 97, (1, 2, 16)), jnp.int32))
    start = jnp.asarray([anchors], jnp.int32)

    @jax.jit
    def hidden(taps, rows):
        return draft(rows, context_of(draft, taps), start)

    before = hidden(taps, rows)
    for position in range(4, 10):
        change = jnp.abs(hidden(taps.at[:, position].add(1.0), rows) - before).max(axis=(2, 3))[0]
        for block, anchor in enumerate(anchors):
            assert (change[block] > 0) == (position < anchor), (position, anchor)
    # Within a block row i does not change with the rows after it, and never with another block's.
    for row in (1, 7, 15):
        change = jnp.abs(hidden(taps, rows.at[:, 0, row].add(1.0)) - before).max(axis=-1)[0]
        assert np.all(np.asarray(change[0, :row]) == 0)
        assert change[0, row] > 0
        assert np.all(np.asarray(change[1]) == 0)


@pytest.mark.parametrize("make", [draft_task, adapter_task], ids=["draft", "adapter"])
def test_a_batch_without_supervision_has_weight_zero_and_finite_gradients(target, draft, adapter, batch, make):
    """Bug case C32: the step skips it."""
    loss, params = make(target, draft if make is draft_task else adapter)
    nothing = replace(batch, answer_mask=np.zeros_like(batch.answer_mask))
    (value, metrics), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, nothing)
    assert float(metrics["weight"]) == 0
    assert float(value) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_layers", [1, 2, 3, 5])
def test_losses_and_gradients_are_finite_whatever_the_depth(target, batch, num_layers, dtype):
    """Bug case C33; the batch holds padding and unused anchors."""
    draft = Draft(draft_config_for(target.config, num_layers=num_layers), dtype=jnp.float32, rngs=nnx.Rngs(4))
    loss, params = draft_task(target, draft, compute_dtype=dtype)
    (value, metrics), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, batch)
    assert np.isfinite(value)
    assert value > 0
    assert all(np.isfinite(metric) for metric in metrics.values())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


def test_settled_rows_may_be_shown_as_predicted_states(target, draft, adapter, batch):
    """With an exact adapter, predicted states before the effective anchor are the context it will have later."""
    target_definition, leaves = split(target)
    definition, params = split(draft)
    adapter_definition, adapter_leaves = split(
        Adapter.from_target(target, adapter_config_for(target.config, layers_per_module=(1, 1, 1)))
    )
    fields = {"blocks": BlockConfig(num_anchors=6, num_rows=4), "num_chunks": 1, "compute_dtype": "float32"}

    def of(share):
        objective = DraftObjective(**fields, predicted_share=share)
        frozen = FrozenParts(leaves, adapter_leaves)
        arguments = (objective, target_definition, definition, params, frozen, batch, KEY, adapter_definition)
        return jax.jit(lambda batch: draft_loss(*arguments[:5], batch, *arguments[6:]))(batch)

    (plain, plain_metrics), (loss, metrics) = of(0.0), of(1.0)
    assert np.isfinite(loss)
    assert loss != plain
    assert 0 < metrics["weight"] < plain_metrics["weight"]  # settled rows are not supervised
    blocks = cut_blocks(
        jax.random.split(KEY)[0],
        jnp.asarray(batch.tokens),
        jnp.asarray(batch.answer_mask),
        BlockConfig(num_anchors=6, num_rows=4),
    )
    expected = blocks.weights * (np.arange(4)[None, None] >= np.asarray(blocks.num_clean)[..., None])
    assert float(metrics["weight"]) == float(expected.sum())


@pytest.mark.parametrize("weighting", list(ReachWeighting))
def test_every_layer_of_the_chain_learns_from_states_and_decoder(target, adapter, batch, weighting):
    loss, params = adapter_task(target, adapter, weighting=weighting)
    (value, metrics), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, batch)
    assert np.isfinite(value)
    assert set(metrics) >= {"kl", "top1", "run", "state_0", "state_1", "state_2"}
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(grads))


def test_a_perfect_adapter_has_no_loss(target, batch):
    """As many layers as the target has below the deepest tap, copied."""
    perfect = Adapter.from_target(target, adapter_config_for(target.config, layers_per_module=(1, 1, 1)))
    loss, params = adapter_task(target, perfect)
    value, metrics = jax.jit(loss)(params, batch)
    assert float(value) < 1e-6
    assert float(metrics["top1"]) == 1
    assert float(metrics["run"]) > 3


def test_reach_weights_by_offset():
    def weights(weighting, kappa):
        objective = AdapterObjective(weighting=weighting, kappa=kappa, survival=0.81)
        return position_weights(objective, 3)[0, 0]

    np.testing.assert_allclose(weights(ReachWeighting.TEMPERED, 0.5), [1, 0.9, 0.81], rtol=1e-6)
    np.testing.assert_allclose(weights(ReachWeighting.GEOMETRIC, 0.5), [1, 0.5, 0.25])
    np.testing.assert_allclose(weights(ReachWeighting.SMOOTHED, 0.5), [1, 1, 1])


def test_state_errors_are_relative_to_the_energy_of_answer_positions():
    taps = jnp.asarray([[[[9.0, 9.0]], [[1.0, 3.0]], [[1.0, 3.0]]]])  # [1, 3, 1, 2], position 0 is prompt
    mask, anchors = jnp.asarray([[False, True, True]]), jnp.asarray([[1]], jnp.int32)
    zeros = jnp.zeros((1, 1, 2, 1, 2))
    np.testing.assert_allclose(state_errors(zeros, taps, anchors, mask, False), np.ones((1, 1, 2, 1)), rtol=1e-5)
    off = zeros.at[..., 0].set(2.0).at[..., 1].set(3.0)  # wrong in the weak channel only
    np.testing.assert_allclose(state_errors(off, taps, anchors, mask, False)[0, 0, 0], [0.1], rtol=1e-5)
    np.testing.assert_allclose(state_errors(off, taps, anchors, mask, True)[0, 0, 0], [0.5], rtol=1e-5)
