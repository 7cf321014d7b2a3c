"""RMSNorm against float64, RoPE against the golden frequencies, cosines and sines of transformers."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.checkpoints.hf_config import target_config_from_hf
from jetspec_jax.config import RopeConfig
from jetspec_jax.ops.norm_rope import apply_rope, inverse_frequencies, rms_norm, rope_angles

GOLDENS = dict(np.load(Path(__file__).parents[1] / "goldens" / "rope.npz"))
ROPE_CASES = ("default", "linear", "llama3", "yarn", "yarn_untruncated", "yarn_tuned")

# One rounding to fp32 here, several there (fp32 power, reciprocal, blend): a few ulp of 1.2e-7.
FREQUENCY_RTOL = 1e-6
# An angle of p radians carries p times the ulp of both sides (power and product); cos and sin move by as much.
COS_ATOL_PER_POSITION = 2.5e-7
COS_ATOL = 1e-6
FP32_ATOL = 2e-6


def rope_of(name: str) -> RopeConfig:
    """The RoPE of one golden case, read the way a checkpoint is."""
    hf_config = {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 97,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "rope_parameters": json.loads(str(GOLDENS[f"{name}/rope"])),
    }
    return target_config_from_hf(hf_config).rope_of(0)


@pytest.mark.parametrize("name", ROPE_CASES)
def test_inverse_frequencies(name):
    freqs = inverse_frequencies(rope_of(name), 128)
    assert freqs.dtype == np.float32
    np.testing.assert_allclose(freqs, GOLDENS[f"{name}/inv_freq"], rtol=FREQUENCY_RTOL, atol=0)


@pytest.mark.parametrize("name", ROPE_CASES)
def test_cos_and_sin_at_long_context(name):
    rope, positions = rope_of(name), GOLDENS["positions"]
    assert positions.tolist() == [0, 1, 100, 5000]
    angles = rope_angles(jnp.asarray(positions)[None, :], rope, 128)
    # Pairs (1, 0) rotate to (cos, sin).
    ones = jnp.concatenate([jnp.ones((1, 4, 1, 64)), jnp.zeros((1, 4, 1, 64))], axis=-1)
    cos, sin = np.split(np.asarray(apply_rope(ones, angles, rope.attention_factor))[0, :, 0], 2, axis=-1)
    for index, position in enumerate(positions):
        atol = COS_ATOL + COS_ATOL_PER_POSITION * position
        np.testing.assert_allclose(cos[index], GOLDENS[f"{name}/cos"][index], rtol=0, atol=atol)
        np.testing.assert_allclose(sin[index], GOLDENS[f"{name}/sin"][index], rtol=0, atol=atol)


def test_golden_cases_differ():
    # Guards the goldens: a scaling that is ignored would be seen.
    last = [GOLDENS[f"{name}/cos"][-1] for name in ROPE_CASES]
    for i, one in enumerate(last):
        assert all(np.abs(one - other).max() > 0.1 for other in last[:i])


def test_rope_rotates_the_halves():
    # H = 2, one frequency of 1 radian: (1, 0) -> (cos p, sin p), (0, 1) -> (-sin p, cos p).
    rope = RopeConfig(theta=10_000.0)
    angles = rope_angles(jnp.array([[0, 1, 2]], jnp.int32), rope, 2)
    np.testing.assert_array_equal(angles, [[[0], [1], [2]]])
    x = jnp.broadcast_to(jnp.eye(2)[None, None], (1, 3, 2, 2))
    expected = [[[np.cos(p), np.sin(p)], [-np.sin(p), np.cos(p)]] for p in range(3)]
    np.testing.assert_allclose(apply_rope(x, angles)[0], expected, rtol=0, atol=FP32_ATOL)


def test_rope_pairs_dimension_i_with_i_plus_half():
    # H = 4: the pair of dimension 1 is dimension 3 (not 0 or 2, as in the interleaved convention).
    x = jnp.array([0.0, 1.0, 0.0, 0.0])[None, None, None, :]
    rotated = np.asarray(apply_rope(x, jnp.array([[[0.3, 0.5]]])))[0, 0, 0]
    np.testing.assert_allclose(rotated, [0, np.cos(0.5), 0, np.sin(0.5)], rtol=0, atol=FP32_ATOL)


def test_scores_depend_on_distance_only():
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 16)), jnp.float32) for _ in range(2))
    rope = RopeConfig(theta=10_000.0)

    def score(query_position: int, key_position: int) -> float:
        at = [rope_angles(jnp.array([[p]], jnp.int32), rope, 16) for p in (query_position, key_position)]
        return float((apply_rope(q, at[0]) * apply_rope(k, at[1])).sum())

    assert score(7, 3) == pytest.approx(score(57, 53), abs=1e-4)
    assert abs(score(7, 3) - score(8, 3)) > 1e-2


def test_bfloat16_heads_are_rotated_by_fp32_angles():
    angles = rope_angles(jnp.array([[5000]], jnp.int32), RopeConfig(theta=10_000.0), 8)
    assert angles.dtype == jnp.float32
    x = jnp.linspace(-1, 1, 8)[None, None, None, :].astype(jnp.bfloat16)
    rotated = apply_rope(x, angles)
    assert rotated.dtype == jnp.bfloat16
    # Only the result is rounded (2^-9 of values below 2).
    expected = np.asarray(apply_rope(x.astype(jnp.float32), angles))
    np.testing.assert_allclose(np.asarray(rotated, np.float32), expected, rtol=0, atol=2**-8)


@pytest.mark.parametrize(
    ("x", "scale", "eps", "expected"),
    [
        pytest.param([3.0, 4.0], [1.0, 1.0], 0.0, [3 / 12.5**0.5, 4 / 12.5**0.5], id="unit-mean-square"),
        pytest.param([3.0, 4.0], [2.0, -1.0], 0.0, [6 / 12.5**0.5, -4 / 12.5**0.5], id="scaled"),
        pytest.param([1.0, -1.0], [1.0, 1.0], 3.0, [0.5, -0.5], id="eps-inside-the-root"),
        pytest.param([0.0, 0.0], [1.0, 1.0], 1e-6, [0.0, 0.0], id="zero-row"),
    ],
)
def test_rms_norm_by_hand(x, scale, eps, expected):
    np.testing.assert_allclose(rms_norm(jnp.array([x]), jnp.array(scale), eps), [expected], rtol=0, atol=FP32_ATOL)


@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 3, 64), (2, 3, 4, 64)])
def test_rms_norm_over_the_last_axis(shape):
    rng = np.random.default_rng(0)
    x, scale = rng.normal(0, 3, shape), rng.uniform(0.5, 1.5, shape[-1])
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale
    actual = rms_norm(jnp.asarray(x, jnp.float32), jnp.asarray(scale, jnp.float32), 1e-5)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=FP32_ATOL)


def test_rms_norm_of_bfloat16_has_fp32_statistics():
    # 1 and 511 numbers of 2^-5: the squares below the ulp of the sum would be lost in bf16 (mean 1/512, not 1.5/512).
    x = jnp.full((1, 512), 2.0**-5).at[0, 0].set(1.0).astype(jnp.bfloat16)
    y = rms_norm(x, jnp.ones((512,), jnp.bfloat16), 0.0)
    assert y.dtype == jnp.bfloat16
    expected = 1 / np.sqrt((1 + 511 * 2.0**-10) / 512)
    assert float(y[0, 0]) == pytest.approx(expected, rel=2**-8)
