import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from benchmarks.replay import error_positions, replaying
from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import tiny_config, tiny_target


def test_each_round_takes_one_error_more_than_it_has_refreshes():
    assert error_positions(9, 18, 4.0, 1) == [10, 13, 14, 17]
    assert error_positions(9, 18, 4.0, 0) == [13, 17]


def test_rounds_end_at_the_wanted_mean_length():
    ends = np.array(error_positions(100, 4000, 8.94, 3))[3::4]
    lengths = np.diff([100, *ends])
    assert set(lengths) == {8, 9}
    np.testing.assert_allclose(lengths.mean(), 8.94, atol=0.01)


def test_refuses_rounds_too_short_for_their_repairs():
    with pytest.raises(ValueError, match="3 repaired errors"):
        error_positions(0, 100, 4.0, 3)


def test_a_replayed_round_runs_every_product_of_a_real_one():
    config = tiny_config(num_layers=4, taps=(0, 1, 2))
    draft = Draft(draft_config_for(config), dtype=jnp.float32, rngs=nnx.Rngs(1))
    adapter = Adapter.random(adapter_config_for(config), dtype=jnp.float32, rngs=nnx.Rngs(2))
    drafting = DraftingConfig(num_drafts=4, refine=RefineConfig.parse("J1-R1"), num_outcomes=2)
    prompt = list(range(1, 9))
    drafters = (
        JetSpecPP(draft, adapter, drafting=drafting),
        replaying(draft, adapter, prompt + [3] * 20, len(prompt), 3.5, drafting),
    )
    products = []
    for drafter in drafters:
        model = LanguageModel(tiny_target(config), drafter=drafter)
        model.generate(prompt, max_new_tokens=6)
        [program] = model.programs.executables.hlo("round")
        products.append(len(re.findall(r" dot\(", program)))
    assert products[0] == products[1] > 50
