"""The target's draw: arg-max of filtered logits plus noise that depends on seed and position alone."""

import ast
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jetspec_jax
from jetspec_jax.decoding.draft_side import INPUT_NOISE_STREAM
from jetspec_jax.decoding.filters import Prefix
from jetspec_jax.decoding.row_params import row_params, sampling_spec
from jetspec_jax.decoding.sampling import Draw, draw, position_noise
from jetspec_jax.sampling_params import GREEDY_BELOW, SamplingParams

_draw = jax.jit(draw, static_argnames="spec")


def draw_rows(logits: list[list[float]], *requests: SamplingParams, start: int = 1) -> Draw:
    """Draws rows at positions `start, start + 1, ..`, the same logits for each request."""
    batch = len(requests)
    values = jnp.asarray(np.broadcast_to(np.float32(logits), (batch, *np.shape(logits))))
    positions = jnp.asarray(np.broadcast_to(np.arange(start, start + len(logits), dtype=np.int32), values.shape[:2]))
    prefix = Prefix(jnp.asarray(np.zeros((batch, 64), np.int32)), positions, jnp.asarray(np.ones(batch, np.int32)))
    params = row_params(requests, eos_token_ids=(), vocab_size=values.shape[2], device=jax.devices()[0])
    return _draw(values, prefix, params, sampling_spec(requests))


GREEDY = SamplingParams()


@pytest.mark.parametrize(
    ("logits", "token"),
    [
        pytest.param([2.0, 5.0, 5.0], 1, id="C06-first-of-two"),
        pytest.param([5.0, 5.0, 5.0], 0, id="C06-all-tied"),
        pytest.param([-1.0, 0.0, -0.0], 1, id="C06-minus-zero-is-zero"),
        pytest.param([1.0, 2.0, 3.0], 2, id="last"),
        pytest.param([-np.inf, -7.0, -np.inf], 1, id="only-one-allowed"),
    ],
)
def test_greedy_takes_the_first_maximum(logits, token):
    assert draw_rows([logits], GREEDY).tokens.tolist() == [[token]]
    # The same in a program that also samples, and on the host.
    assert draw_rows([logits], GREEDY, SamplingParams(temperature=1.0)).tokens[0].tolist() == [token]
    assert int(np.argmax(np.array(logits))) == token


@pytest.mark.parametrize(
    ("logits", "is_finite"),
    [
        pytest.param([1.0, 2.0, 3.0], True, id="finite"),
        pytest.param([1.0, -np.inf, 3.0], True, id="a-banned-token-is-fine"),
        pytest.param([1.0, np.nan, 3.0], False, id="C08-nan"),
        pytest.param([np.nan] * 3, False, id="C08-all-nan"),
        pytest.param([1.0, np.inf, 3.0], False, id="C08-inf"),
        pytest.param([-np.inf] * 3, False, id="nothing-left"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_logits_are_reported(logits, is_finite, temperature):
    params = SamplingParams(temperature=temperature, seed=1)
    assert draw_rows([[0.0, 1.0, 2.0], logits], params).finite.tolist() == [[True, is_finite]]


def test_a_filter_that_spoils_the_logits_is_reported():
    nan = SamplingParams(logits_processors=[lambda tokens, length, logits: logits * jnp.nan])
    assert not draw_rows([[1.0, 2.0]], nan).finite.item()
    ban_all = SamplingParams(logit_bias={0: -np.inf, 1: -np.inf})
    assert not draw_rows([[1.0, 2.0]], ban_all).finite.item()


def test_draw_is_the_argmax_of_logits_over_temperature_plus_keyed_gumbel():
    params = SamplingParams(temperature=0.5, seed=7)
    logits = [[0.1, 0.4, -0.3, 0.2]] * 20
    drawn = draw_rows(logits, params, start=30).tokens[0].tolist()
    key = jax.random.fold_in(jax.random.key(7), 0)
    for row, token in enumerate(drawn):
        noise = jax.random.gumbel(jax.random.fold_in(key, 30 + row), (4,))
        assert token == int(jnp.argmax(jnp.asarray(logits[row], jnp.float32) / 0.5 + noise))
    assert len(set(drawn)) > 1


def test_a_row_is_drawn_the_same_alone_and_in_a_block():
    """Losslessness hangs on this: position 12 is row 0 of one block and row 3 of another."""
    params = SamplingParams(temperature=1.0, seed=3)
    logits = np.random.default_rng(0).normal(size=(8, 50)).tolist()
    block = draw_rows(logits, params, start=9).tokens[0].tolist()
    assert [draw_rows([row], params, start=9 + i).tokens.item() for i, row in enumerate(logits)] == block


def test_seeds_use_all_their_63_bits():
    logits = [[0.0] * 1000] * 4
    seeds = [5, 6, 5 + 2**32, 2**63 - 1]
    rows = draw_rows(logits, *(SamplingParams(temperature=1.0, seed=seed) for seed in seeds)).tokens.tolist()
    assert len({tuple(row) for row in rows}) == len(seeds)


def test_requests_without_a_seed_differ():
    rows = draw_rows([[0.0] * 1000] * 4, *[SamplingParams(temperature=1.0)] * 4).tokens.tolist()
    assert len({tuple(row) for row in rows}) == 4


@pytest.mark.parametrize(
    ("temperature", "is_greedy"),
    [
        pytest.param(0.0, True, id="C24-0"),
        pytest.param(1e-40, True, id="C24-1e-40"),
        pytest.param(1e-6, True, id="C24-1e-6"),
        pytest.param(1e-5, False, id="C24-1e-5"),
        pytest.param(1e-3, False, id="C24-1e-3"),
    ],
)
def test_one_greedy_threshold(temperature, is_greedy):
    assert GREEDY_BELOW == 1e-5
    request = SamplingParams(temperature=temperature)
    params = row_params([request], eos_token_ids=(), vocab_size=3, device=jax.devices()[0])
    assert request.is_greedy == is_greedy == (not sampling_spec([request]).samples)
    assert (params.temperature.item() == 0.0) == is_greedy


@pytest.mark.parametrize("temperature", [1e-5, 100.0, 3e38, 1e300])
def test_extreme_temperatures_draw_allowed_tokens(temperature):
    """C24: no NaN, and a banned token stays banned however hot."""
    params = SamplingParams(temperature=temperature, seed=1, logit_bias={2: -np.inf})
    drawn = draw_rows([[1.0, 3.0, 30.0]] * 40, params)
    assert drawn.finite.all()
    assert set(drawn.tokens[0].tolist()) == ({1} if temperature < 1 else {0, 1})


def test_logprobs_are_those_of_the_drawn_token():
    logits = np.log([0.5, 0.3, 0.2])
    drawn = draw_rows([logits.tolist()] * 8, SamplingParams(temperature=0.5, seed=2, logprobs=2))
    tokens = np.asarray(drawn.tokens[0])
    cooled = np.log(np.array([0.25, 0.09, 0.04]) / 0.38)
    np.testing.assert_allclose(drawn.logprobs.raw[0], logits[tokens], atol=1e-6)
    np.testing.assert_allclose(drawn.logprobs.processed[0], cooled[tokens], atol=1e-6)
    assert drawn.logprobs.top_ids[0].tolist() == [[0, 1]] * 8
    np.testing.assert_allclose(drawn.logprobs.top_raw[0], [logits[:2]] * 8, atol=1e-6)


def test_more_logprobs_than_tokens_give_all_tokens():
    drawn = draw_rows([[1.0, 2.0, 3.0]], SamplingParams(logprobs=20))
    assert drawn.logprobs.top_ids[0, 0].tolist() == [2, 1, 0]


def test_noise_streams_never_meet():
    """C05: what a drafter draws for itself has keys that no position's draw has."""
    assert 2**31 <= INPUT_NOISE_STREAM < 2**32  # positions are non-negative int32
    request = jax.random.key(0)
    own = jax.random.fold_in(request, jnp.uint32(INPUT_NOISE_STREAM))
    counts = jnp.arange(2000, dtype=jnp.uint32)
    keys = [jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, counts) for key in (request, own)]
    data = np.concatenate([np.asarray(jax.random.key_data(k)) for k in keys])
    assert len(np.unique(data, axis=0)) == len(data)


def test_noise_of_a_position_does_not_depend_on_its_neighbours():
    keys = jax.random.split(jax.random.key(1), 2)
    both = position_noise(keys, jnp.asarray([[3, 4], [3, 9]]), 11)
    assert jnp.array_equal(both[:, :1], position_noise(keys, jnp.asarray([[3], [3]]), 11))
    assert len(np.unique(np.asarray(both).reshape(-1))) == both.size


def test_every_fold_in_of_the_library_is_known():
    """C05: a new stream needs a tag that is checked above to be disjoint; then add its file here."""
    folder = Path(jetspec_jax.__file__).parent
    calls = Counter()
    for room in ("decoding", "drafters"):
        for path in sorted((folder / room).glob("*.py")):
            nodes = ast.walk(ast.parse(path.read_text()))
            calls[path.name] += sum(isinstance(node, ast.Attribute) and node.attr == "fold_in" for node in nodes)
    # row_params: the upper half of the seed. sampling: the position. draft_side: its own stream, then the length.
    assert +calls == {"row_params.py": 1, "sampling.py": 1, "draft_side.py": 2}


def test_positions_beyond_the_first_2_to_the_16_still_differ():
    key = jax.random.key(0)[None]
    positions = jnp.asarray([[0, 2**16, 2**24, 2**31 - 1]], jnp.int32)
    assert len(np.unique(np.asarray(position_noise(key, positions, 3))[0], axis=0)) == 4


def test_greedy_rows_of_a_sampling_batch_ignore_filters_of_the_others():
    requests = [GREEDY, SamplingParams(temperature=1.0, seed=1, top_k=1), SamplingParams(temperature=1.0, seed=1)]
    drawn = draw_rows([[0.0, 0.5, 0.1]] * 30, *requests)
    assert set(drawn.tokens[0].tolist()) == {1}
    assert set(drawn.tokens[1].tolist()) == {1}
    assert set(drawn.tokens[2].tolist()) == {0, 1, 2}
    alone = replace(requests[2])
    assert drawn.tokens[2].tolist() == draw_rows([[0.0, 0.5, 0.1]] * 30, alone).tokens[0].tolist()
