import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.blocks import BlockConfig, clean_blocks, cut_blocks, sample_anchors

KEY = jax.random.key(0)


def span_mask(size, first, last):
    return jnp.asarray([[first <= t <= last for t in range(size)]])


def test_labels_are_the_next_tokens_and_weights_cover_exactly_the_answer():
    """Bug case C31: sequence 0..29, answer 10..19."""
    tokens = jnp.arange(30, dtype=jnp.int32)[None, :]
    config = BlockConfig(num_anchors=20, num_rows=4)
    blocks = cut_blocks(KEY, tokens, span_mask(30, 10, 19), config)
    own = blocks.anchors[..., None] + jnp.arange(4)[None, None]
    supervised = blocks.weights > 0
    assert set(np.asarray(blocks.labels)[supervised].tolist()) == set(range(10, 20))
    np.testing.assert_array_equal(np.asarray(blocks.labels)[supervised], np.asarray(own + 1)[supervised])
    np.testing.assert_array_equal(np.asarray(blocks.teacher)[supervised], np.asarray(own)[supervised])
    # One anchor for each label as first label; blocks near the end are cut short: 7 * 4 + 3 + 2 + 1 rows.
    assert sorted(np.asarray(blocks.anchors)[np.asarray(supervised[..., 0])].tolist()) == list(range(9, 19))
    assert int(supervised.sum()) == 34


def test_without_shift_a_row_predicts_its_own_token_and_the_anchor_nothing():
    tokens = jnp.arange(30, dtype=jnp.int32)[None, :]
    config = BlockConfig(
        num_anchors=20, num_rows=4, shift=False, inputs="mask", mask_token_id=77, fully_noised_share=1.0
    )
    blocks = cut_blocks(KEY, tokens, span_mask(30, 10, 19), config)
    assert not np.any(blocks.weights[..., 0])
    supervised = np.asarray(blocks.weights > 0)
    own = np.asarray(blocks.anchors[..., None] + jnp.arange(4)[None, None])
    np.testing.assert_array_equal(np.asarray(blocks.labels)[supervised], own[supervised])
    np.testing.assert_array_equal(np.asarray(blocks.teacher)[supervised], own[supervised] - 1)
    assert set(np.asarray(blocks.labels)[supervised].tolist()) == set(range(10, 20))
    assert np.all(np.asarray(blocks.rows)[..., 1:] == 77)


def test_an_interrupted_answer_is_supervised_up_to_the_break():
    tokens = jnp.arange(12, dtype=jnp.int32)[None, :]
    mask = jnp.asarray([[t in (4, 5, 8, 9) for t in range(12)]])
    blocks = cut_blocks(KEY, tokens, mask, BlockConfig(num_anchors=12, num_rows=6))
    by_anchor = dict(zip(blocks.anchors[0].tolist(), blocks.weights[0].tolist(), strict=True))
    assert by_anchor[3] == [1, 1, 0, 0, 0, 0]
    assert by_anchor[8] == [1, 0, 0, 0, 0, 0]


def test_rows_are_clean_up_to_the_prefix_and_noise_from_the_prefix_of_the_anchor_after_it():
    tokens = (100 + jnp.arange(64, dtype=jnp.int32))[None, :]
    config = BlockConfig(num_anchors=40, num_rows=8)
    blocks = cut_blocks(KEY, tokens, span_mask(64, 10, 63), config)
    for anchor, rows, clean in zip(
        *map(np.asarray, (blocks.anchors[0], blocks.rows[0], blocks.num_clean[0])), strict=True
    ):
        inside = np.minimum(anchor + np.arange(8), 63)
        assert rows[: clean + 1].tolist() == (100 + inside[: clean + 1]).tolist()
        assert np.all((rows[clean + 1 :] >= 100) & (rows[clean + 1 :] <= 100 + anchor))


def test_prefix_lengths_and_noise_positions_have_the_stated_law():
    """P(0) = 1/4, P(j) = 1/20 for j = 1..15; noise uniform over 0 .. p, the anchor included."""
    tokens = jnp.broadcast_to(jnp.arange(40, dtype=jnp.int32)[None, :], (2000, 40))
    mask = jnp.broadcast_to(jnp.asarray([t == 20 for t in range(40)])[None, :], (2000, 40))
    blocks = cut_blocks(KEY, tokens, mask, BlockConfig(num_anchors=1))
    share = np.bincount(np.asarray(blocks.num_clean[:, 0]), minlength=16) / 2000
    assert abs(share[0] - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 2000)
    assert np.all(np.abs(share[1:] - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 2000))
    noise = np.asarray(blocks.rows[:, 0])[np.asarray(blocks.num_clean[:, 0]) == 0][:, 1:]
    counts = np.bincount(noise.ravel(), minlength=40)
    expected = noise.size / 20
    assert np.all(counts[20:] == 0)  # the anchor is token 19
    assert np.sum((counts[:20] - expected) ** 2 / expected) < 50  # chi-square, 19 degrees, p < 2e-4


@pytest.mark.parametrize("length", [1, 15, 16, 17])
def test_short_rows_train_on_what_they_have(length):
    """Bug case C32; the answer is the last three tokens."""
    mask = jnp.asarray([[max(length - 3, 0) <= t < length for t in range(32)]])
    blocks = cut_blocks(KEY, jnp.ones((1, 32), jnp.int32), mask, BlockConfig(num_anchors=8))
    # The token at 0 has no predecessor that could predict it.
    labels = min(3, length - 1)
    assert float(blocks.weights.sum()) == labels * (labels + 1) / 2


def test_nothing_to_supervise_gives_no_weight():
    blocks = cut_blocks(KEY, jnp.ones((2, 32), jnp.int32), jnp.zeros((2, 32), bool), BlockConfig(num_anchors=4))
    assert float(blocks.weights.sum()) == 0


def test_anchors_are_distinct_and_no_more_than_there_are():
    anchors, is_real = sample_anchors(KEY, span_mask(10, 4, 6), 16)
    assert anchors.shape == (1, 16)
    assert sorted(np.asarray(anchors)[np.asarray(is_real)].tolist()) == [3, 4, 5]


def test_the_adapters_blocks_carry_the_true_tokens():
    tokens = jnp.arange(30, dtype=jnp.int32)[None, :]
    blocks = clean_blocks(KEY, tokens, span_mask(30, 10, 29), BlockConfig(num_anchors=5, num_rows=4))
    own = np.asarray(blocks.anchors[..., None] + jnp.arange(4)[None, None])
    np.testing.assert_array_equal(blocks.rows, np.minimum(own, 29))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fully_noised_share": 1.5}, "fully_noised_share=1.5"),
        ({"inputs": "mask"}, "mask_token_id=None"),
        ({"inputs": "zeros"}, "'zeros'"),
        ({"num_rows": 1}, "num_rows=1"),
    ],
)
def test_refuses_what_cannot_be_trained(fields, message):
    with pytest.raises(ValueError, match=message):
        BlockConfig(**fields)
