"""A view of a batch for drafters that are called directly."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.decoding.row_params import row_params, sampling_spec
from jetspec_jax.drafters import DraftView
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.target import Target
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import tiny_config, tiny_target

GARBAGE = 96


@pytest.fixture(scope="session")
def target() -> Target:
    return tiny_target(tiny_config(num_layers=1, taps=(0,)))


@pytest.fixture(scope="session")
def decoder(target) -> Decoder:
    """What drafters see of the target."""
    return target.decoder()


@pytest.fixture(scope="session")
def view_of() -> Callable[..., DraftView]:
    """`view_of(texts, **options)`: committed texts of a batch in buffers of 32 slots, garbage after them."""

    def build(texts: list[list[int]], *, garbage: int = GARBAGE, **options) -> DraftView:
        tokens = np.full((len(texts), 32), garbage, np.int32)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = text
        requests = [SamplingParams(seed=5 + row, **options) for row in range(len(texts))]
        params = row_params(requests, eos_token_ids=(), vocab_size=97, device=jax.devices()[0])
        lengths = jnp.asarray([len(text) for text in texts], jnp.int32)
        return DraftView(jnp.asarray(tokens), lengths, params, sampling_spec(requests))

    return build
