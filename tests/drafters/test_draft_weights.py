"""Draft-side weights of 8 bits: other arrays and nearly the same proposals, the same text, the target untouched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.models.functional import split
from jetspec_jax.models.quantize import quantized
from jetspec_jax.testing import tiny_config, tiny_target

pytestmark = pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")
QUICK = RefineConfig.parse("J0")


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base(request) -> LanguageModel:
    return LanguageModel(tiny_target(tiny_config(taps=(0,), tie_word_embeddings=request.param)), drafter=None)


def random_drafter(base, **options) -> JetSpecPP:
    drafting = DraftingConfig(num_drafts=3, num_outcomes=2, refine=QUICK, **options)
    return JetSpecPP.random(base.config, dtype=jnp.float32, drafting=drafting)


def matrices(leaves) -> set[str]:
    return {leaf.dtype.name for leaf in leaves if leaf.ndim == 2}


FORMATS = {"int8": "int8", "fp8": "float8_e4m3fn"}


@pytest.mark.parametrize("weights", FORMATS)
def test_every_matrix_of_draft_and_adapter_has_8_bits_and_given_weights_come_back(base, weights):
    given = random_drafter(base)
    small = given.with_drafting(draft_weights=weights)
    device = jax.devices()[0]
    assert matrices(small.place(device)) == {FORMATS[weights]}
    back = small.with_drafting(draft_weights="given").place(device)
    assert all(np.array_equal(a, b) for a, b in zip(back, given.place(device), strict=True))


@pytest.mark.parametrize(
    ("where", "weights"), [("fused", "int8"), ("pipelined", "int8"), ("critical path", "int8"), ("fused", "fp8")]
)
def test_text_is_that_of_plain_decoding(base, cpu_devices, where, weights):
    drafter = random_drafter(base, draft_weights=weights)
    if where == "critical path":
        drafter = drafter.with_drafting(num_outcomes=0)
    model = base.with_drafter(drafter, draft_device=cpu_devices[1] if where == "pipelined" else None)
    before = [np.asarray(leaf) for leaf in base.programs.target_leaves]
    plain, output = (m.generate([5, 6, 7], max_new_tokens=12).token_ids for m in (base, model))
    assert output == plain
    assert all(np.array_equal(a, b) for a, b in zip(before, model.programs.target_leaves, strict=True))
    # The decoder is a copy of the draft side's own; a table that is only looked up stays as it was.
    looked_up = set() if base.config.tie_word_embeddings else {"float32"}
    kinds = {leaf.dtype.name for leaf in model.programs.decoder_leaves if leaf.ndim > 1}
    assert kinds == {FORMATS[weights]} | looked_up


@pytest.mark.parametrize(("weights", "most"), [("int8", 0.03), ("fp8", 0.12)])
def test_decoder_predicts_nearly_the_same(base, weights, most):
    decoder = base.target.decoder()
    small = quantized(decoder, weights)
    assert small.dtype == decoder.dtype
    x = jax.random.normal(jax.random.key(0), (1, 2, 4, base.config.shape.hidden_size))
    start = jnp.zeros((1, 2), jnp.int32)
    a, b = (of.predict(x, of.init_cache(1, 8), start) for of in (decoder, small))
    error = jnp.linalg.norm(a - b) / jnp.linalg.norm(a)
    assert 0 < error < most


def test_only_projections_are_copied(base):
    decoder = base.target.decoder()
    shared = {id(leaf) for leaf in split(decoder)[1]} & {id(leaf) for leaf in split(quantized(decoder))[1]}
    assert len(shared) >= 2 * len(decoder.layers) + 1  # two norms a layer, one at the end
