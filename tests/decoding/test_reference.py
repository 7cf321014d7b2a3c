"""Plain decoding against a second implementation: one full pass over the finished text, filters in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.sampling_params import SamplingParams

PADDED_LEN = 128


@pytest.fixture(scope="module")
def full_pass(shallow):
    """Logits of every position of a text, from a single call of the target on an empty cache."""

    target = shallow.target

    @jax.jit
    def logits_of(tokens):
        x, _, _ = target(tokens[None], target.init_cache(1, PADDED_LEN))
        return target.logits(x)[0]

    def logits(tokens: list[int]) -> np.ndarray:
        padded = np.array([*tokens, *[0] * (PADDED_LEN - len(tokens))], np.int32)
        return np.asarray(logits_of(jnp.asarray(padded)), np.float64)[: len(tokens)]

    return logits


def filtered(logits: np.ndarray, prompt: list[int], output: list[int], params: SamplingParams) -> np.ndarray:
    """Penalties and bias, then, for a sampling request, temperature, top-k, top-p and min-p by sorting."""
    logits = logits.copy()
    for token in set(prompt + output):
        logits[token] = (
            (logits[token] / params.repetition_penalty)
            if logits[token] > 0
            else (logits[token] * params.repetition_penalty)
        )
    for token in set(output):
        logits[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if params.is_greedy:
        return logits
    logits /= params.temperature
    if params.top_k:
        logits[logits < np.sort(logits)[-params.top_k]] = -np.inf
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    order = np.argsort(-probs)
    # A token stays if the likelier ones do not reach top_p by themselves.
    before = np.concatenate([[0.0], np.cumsum(probs[order])[:-1]])
    logits[order[(before >= params.top_p) & (params.top_p < 1)]] = -np.inf
    logits[probs < params.min_p * probs.max()] = -np.inf
    return logits


def test_plain_text_is_the_argmax_of_a_full_pass(full_pass, option_prompts, option_texts, option_requests):
    for name, prompt, text, params in zip(
        option_texts, option_prompts, option_texts.values(), option_requests(), strict=True
    ):
        logits = full_pass(prompt + text)
        key = jax.random.fold_in(jax.random.key(params.seed), 0)  # the upper half of the seed is 0
        for i, token in enumerate(text):
            position = len(prompt) + i
            scores = filtered(logits[position - 1], prompt, text[:i], params)
            if not params.is_greedy:
                scores = scores + np.asarray(jax.random.gumbel(jax.random.fold_in(key, position), scores.shape))
            assert token == np.argmax(scores), (name, i)
