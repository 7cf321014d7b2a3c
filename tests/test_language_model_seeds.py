"""The same seed gives the same text, whatever happens beside it or how it is decoded."""

import pytest

from jetspec_jax.drafters import NgramDrafter
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import tiny_config, tiny_target

pytestmark = pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")

# 32 tokens: of the 16-token texts of this model two in 120 are equal once in about 400 tries; of 30 million pairs of
# 32-token texts none was.
PROMPT, NUM_TOKENS = [5, 6, 7], 32


def request(seed: int | None, temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(max_new_tokens=NUM_TOKENS, temperature=temperature, seed=seed)


@pytest.fixture(scope="module")
def plain() -> LanguageModel:
    return LanguageModel(tiny_target(tiny_config(num_layers=1, taps=(0,))), drafter=None)


@pytest.fixture(scope="module")
def speculating(plain) -> LanguageModel:
    return plain.with_drafter(NgramDrafter(4, min_ngram=1))


@pytest.fixture(scope="module")
def expected(plain) -> list[int]:
    return plain.generate(PROMPT, request(42)).token_ids


def test_twice_in_a_row_and_after_other_requests(speculating, expected):
    """C21."""
    assert speculating.generate(PROMPT, request(42)).token_ids == expected
    for seed in (1, 2, None, 3, None):
        speculating.generate([9, 9], request(seed))
    assert speculating.generate(PROMPT, request(42)).token_ids == expected


def test_other_numbers_of_drafts(plain, expected):
    """C21."""
    model = plain.with_drafter(NgramDrafter(9, min_ngram=1))
    assert model.generate(PROMPT, request(42)).token_ids == expected


def test_other_seeds_give_other_texts(speculating, expected):
    """C21."""
    texts = [expected] + [speculating.generate(PROMPT, request(seed)).token_ids for seed in (43, 42 + 2**32, 2**63 - 1)]
    assert len({tuple(text) for text in texts}) == 4


def test_one_seed_for_a_list_is_each_prompts_seed(speculating, expected):
    outputs = speculating.generate([PROMPT] * 8, request(42))
    assert [output.token_ids for output in outputs] == [expected] * 8


def test_greedy_seeded_and_unseeded_requests_do_not_disturb_each_other(plain, speculating, expected):
    """C22: 16 requests of three kinds, twenty times."""
    greedy = plain.generate(PROMPT, request(None, 0.0)).token_ids
    kinds = ["greedy", "seeded", "unseeded", "unseeded", "greedy", "seeded", "unseeded", "greedy"] * 2
    seeds = [42 if i % 2 else 100 + i for i in range(16)]
    solo = {seed: speculating.generate(PROMPT, request(seed)).token_ids for seed in set(seeds)}
    assert solo[42] == expected
    params = [
        request(seeds[i] if kind == "seeded" else None, 0.0 if kind == "greedy" else 1.0)
        for i, kind in enumerate(kinds)
    ]
    unseeded = {}
    for call in range(20):
        for i, output in enumerate(speculating.generate([PROMPT] * 16, params)):
            if kinds[i] == "unseeded":
                text = tuple(output.token_ids)
                assert text not in unseeded, f"row {i} of call {call} has the text of {unseeded[text]}: {text}"
                unseeded[text] = f"row {i} of call {call}"
            else:
                assert output.token_ids == (greedy if kinds[i] == "greedy" else solo[seeds[i]])
