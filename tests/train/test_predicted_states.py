import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.drafters.jetspecpp import JetSpecPP
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing.tiny import tiny_config, tiny_target
from train.predicted_states import compare_states


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def test_exact_predictions_are_worth_as_much_as_true_states():
    """An adapter made of the target's own layers, all of them, predicts exactly."""
    target = tiny_target(tiny_config(num_layers=3, taps=(0, 1)))
    draft = Draft(draft_config_for(target.config, num_layers=1, block_rows=4), dtype=jnp.float32, rngs=nnx.Rngs(1))
    adapter = Adapter.from_target(target, adapter_config_for(target.config, layers_per_module=(1, 1)))
    model = LanguageModel(target, drafter="autoregressive", progress=False)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 97, size=size).tolist() for size in (7, 3, 5)]
    report = compare_states(model, JetSpecPP(draft, adapter), prompts, "J1-R1", max_new_tokens=24)
    assert report.known == 1
    assert report.true > 1.5  # refreshes with an exact adapter settle tokens whatever the draft
    assert report.ratio == pytest.approx(1)


def test_refuses_a_drafter_that_predicts_nothing():
    target = tiny_target()
    draft = Draft(draft_config_for(target.config), dtype=jnp.float32, rngs=nnx.Rngs(1))
    model = LanguageModel(target, drafter="autoregressive", progress=False)
    with pytest.raises(ValueError, match="without an adapter"):
        compare_states(model, JetSpecPP(draft), [[1]], "J0", max_new_tokens=4)
