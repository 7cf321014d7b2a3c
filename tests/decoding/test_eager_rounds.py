"""The paper's own check: draft rounds of the fused path against an eager recomputation, here 492 of them, in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.decoding.draft_side import noise_tokens
from jetspec_jax.decoding.row_params import row_params
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import tiny_config, tiny_target
from jetspec_jax.testing.reference import ReferenceDrafting

pytestmark = pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")

NUM_ROUNDS = 492
NUM_DRAFTS = 5


@pytest.mark.parametrize("refine", [pytest.param("J0", marks=pytest.mark.slow), "J3-R3"])
def test_492_draft_rounds_match_eager_recomputation(refine):
    # Three target layers, two of them tapped, one in the decoder; an adapter that is not exact; one more layer in it.
    config = tiny_config(num_layers=3, taps=(0, 1))
    target = tiny_target(config, sharpness=5.0)
    draft = Draft(draft_config_for(config, num_layers=2), dtype=jnp.float32, rngs=nnx.Rngs(1))
    adapter = Adapter.from_target(target, adapter_config_for(config, layers_per_module=(2, 1)))
    drafting = DraftingConfig(num_drafts=NUM_DRAFTS, refine=RefineConfig.parse(refine), num_outcomes=3, keep_trace=True)
    plain = LanguageModel(target, drafter=None)
    model = plain.with_drafter(JetSpecPP(draft, adapter, drafting=drafting))
    reference = ReferenceDrafting(target, draft, adapter, drafting.refine, NUM_DRAFTS)

    @jax.jit
    def noise_for(key, tokens, anchor, start):
        return noise_tokens(key, tokens[None], anchor[None, None], start[None, None], NUM_DRAFTS)[0, 0]

    checked, num_hits, seed = 0, 0, 0
    while checked < NUM_ROUNDS:
        prompt = np.random.default_rng(seed).integers(0, 97, 3 + seed % 5).tolist()
        key = row_params([SamplingParams(seed=seed)], eos_token_ids=(), vocab_size=97, device=jax.devices()[0]).key
        chunks = list(model.stream(prompt, max_new_tokens=56, seed=seed))
        assert chunks[-1].output.token_ids == plain.generate(prompt, max_new_tokens=56).token_ids
        tokens, verified = prompt + chunks[0].token_ids, None
        for chunk in chunks[1:]:
            trace = chunk.trace
            padded = jnp.asarray(tokens + [0] * (64 - len(tokens)), jnp.int32)
            noise = noise_for(key, padded, jnp.int32(tokens[-1]), jnp.int32(len(tokens) - 1)).tolist()
            blocks = reference.block_after(tokens, noise, verified if trace.is_hit else None, refined=trace.is_hit)
            # On a miss one pass was made; it stands for all of them.
            blocks += [blocks[-1]] * (len(trace.passes) - len(blocks))
            assert [list(tokens_of_pass) for tokens_of_pass in trace.passes] == blocks, (seed, len(tokens))
            checked, num_hits = checked + 1, num_hits + trace.is_hit
            verified = [tokens[-1], *trace.committed[:-1]]
            tokens = tokens + list(trace.committed)
            if checked == NUM_ROUNDS:
                break
        seed += 1
    assert 50 < num_hits < NUM_ROUNDS - 10
