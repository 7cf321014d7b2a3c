"""Shared models. Compiling is what these tests pay for: models are built once, scripts are swapped in."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.target import Target
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import ScriptedDrafter, tiny_config, tiny_target

VOCAB_SIZE = 97

Follow = Callable[..., LanguageModel]


@pytest.fixture(scope="session")
def target() -> Target:
    return tiny_target()


@pytest.fixture(scope="session")
def plain(target) -> LanguageModel:
    """Decodes one token a round, the reference for everything else."""
    return LanguageModel(target, drafter=None)


@pytest.fixture(scope="session")
def shallow() -> LanguageModel:
    """Plain decoding again, with a one-layer target: for programs that are expensive to compile as it is."""
    return LanguageModel(tiny_target(tiny_config(num_layers=1, taps=(0,))), drafter=None)


@pytest.fixture(scope="session")
def follow(plain) -> Follow:
    """`follow(texts, script, num_drafts)`: a plain model with a drafter that knows these texts."""
    models: dict[tuple[int, int, int], LanguageModel] = {}

    def model_for(
        texts: Sequence[Sequence[int]], script: Sequence[int], num_drafts: int, base: LanguageModel = plain
    ) -> LanguageModel:
        key = (id(base), num_drafts, len(texts))
        if key not in models:
            drafter = ScriptedDrafter(texts, script, num_drafts=num_drafts, vocab_size=VOCAB_SIZE)
            models[key] = base.with_drafter(drafter)
        model = models[key]
        model.programs.set_draft_leaves(model.drafter.follow(texts, script))
        return model

    return model_for


@pytest.fixture(scope="session")
def prompt_of() -> Callable[[int], list[int]]:
    """A prompt of the wanted length; different lengths share no beginning."""

    def prompt(length: int) -> list[int]:
        return [int(token) for token in np.random.default_rng(length).integers(0, VOCAB_SIZE, length)]

    return prompt


@pytest.fixture(scope="session")
def random_text() -> Callable[[int], list[int]]:
    """Tokens that have nothing to do with any answer."""
    return lambda seed: [int(token) for token in np.random.default_rng(1000 + seed).integers(0, VOCAB_SIZE, 300)]


# One row each, so that one program serves them all; prompts, limits and seeds differ too.
OPTIONS = {
    "greedy": {"prompt_len": 1, "max_new_tokens": 60},
    "T=0.7": {"prompt_len": 2, "max_new_tokens": 60, "temperature": 0.7},
    "T=1": {"prompt_len": 15, "max_new_tokens": 40, "temperature": 1.0},
    "top-k": {"prompt_len": 16, "max_new_tokens": 60, "temperature": 1.0, "top_k": 5},
    "top-p": {"prompt_len": 17, "max_new_tokens": 25, "temperature": 0.7, "top_p": 0.8},
    "min-p": {"prompt_len": 64, "max_new_tokens": 60, "temperature": 1.0, "min_p": 0.1},
    "greedy-penalties": {
        "prompt_len": 3,
        "max_new_tokens": 60,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
    },
    "everything": {
        "prompt_len": 31,
        "max_new_tokens": 60,
        "temperature": 1.0,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.3,
        "logit_bias": {3: 2.0, 18: -100.0},
        "min_new_tokens": 10,
    },
}


@pytest.fixture(scope="session")
def option_requests() -> Callable[..., list[SamplingParams]]:
    """The request of each option; stop ids, if given, end the rows early."""

    def requests(stops: Sequence[int] | None = None) -> list[SamplingParams]:
        return [
            SamplingParams(
                seed=11 + row,
                stop_token_ids=(stops[row],) if stops else (),
                **{key: value for key, value in options.items() if key != "prompt_len"},
            )
            for row, options in enumerate(OPTIONS.values())
        ]

    return requests


@pytest.fixture(scope="session")
def option_prompts(prompt_of) -> list[list[int]]:
    return [prompt_of(options["prompt_len"]) for options in OPTIONS.values()]


@pytest.fixture(scope="session")
def option_texts(shallow, option_prompts, option_requests) -> dict[str, list[int]]:
    """Plain decoding's answer to each option, all in one batch."""
    outputs = shallow.generate(option_prompts, option_requests())
    return dict(zip(OPTIONS, (output.token_ids for output in outputs), strict=True))
