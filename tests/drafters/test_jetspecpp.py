"""The block draft as a drafter: its context, its input rows, its noise; whatever its weights, the text is right."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jetspec_jax.config import DraftConfig, draft_config_for
from jetspec_jax.decoding.state import ContextRows
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafters.jetspecpp import PLAIN_PASS
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.models.draft import Draft
from jetspec_jax.sampling_params import SamplingParams


def draft_of(target, seed: int = 0, **overrides) -> Draft:
    config = draft_config_for(target.config, **({"num_layers": 1} | overrides))
    return Draft(config, dtype=jnp.float32, rngs=nnx.Rngs(seed))


def plain_pass(draft: Draft, num_drafts: int | None = None, **options) -> JetSpecPP:
    return JetSpecPP(draft, drafting=replace(PLAIN_PASS, num_drafts=num_drafts, **options))


def context_rows(target, texts: list[list[int]], width: int = 8) -> ContextRows:
    """What the target tells a drafter of committed texts, the anchor left out."""
    tokens = jnp.asarray([[*text[:-1], *[0] * (width - len(text) + 1)] for text in texts], jnp.int32)
    taps = jax.jit(lambda tokens: target(tokens, target.init_cache(len(texts), 32))[1])(tokens)
    kept = jnp.asarray([len(text) - 1 for text in texts], jnp.int32)
    return ContextRows(tokens, taps, kept * 0, kept)


@pytest.fixture(scope="module")
def propose(target, decoder, view_of):
    """`propose(drafter, **options)` after two texts have been observed; `poison` fills the slots beyond them."""
    texts, compiled = [[5, 6, 7, 8], [9, 3]], {}
    rows = context_rows(target, texts)

    def run(drafter: JetSpecPP, poison: float = 0.0, **options):
        leaves, view = drafter.place(jax.devices()[0]), view_of(texts, **options)

        @jax.jit
        def program(leaves, poison, view):
            caches = drafter.observe(leaves, decoder, drafter.init_state(decoder, 2, 32), rows)
            context = caches.context
            beyond = (jnp.arange(32)[None, :] >= context.length[:, None])[:, None, :, None]
            spoil = lambda side: tuple(jnp.where(beyond, poison, rows) for rows in side)  # noqa: E731
            context = replace(context, keys=spoil(context.keys), values=spoil(context.values))
            return drafter.propose(leaves, decoder, replace(caches, context=context), view)

        program = compiled.setdefault((id(drafter), view.spec), program)
        proposal, caches = program(leaves, poison, view)
        assert caches.context.length.tolist() == [3, 1]  # the anchors are not part of it, the block is not kept
        return proposal.tokens.tolist()

    return run


@pytest.fixture(scope="module")
def coupled(target) -> JetSpecPP:
    return plain_pass(draft_of(target), 4)


def test_context_beyond_the_length_is_not_read(coupled, propose):
    assert propose(coupled) == propose(coupled, poison=1e4)


def test_causal_draft_of_a_small_block_begins_that_of_a_large_one(target, coupled, propose):
    large = plain_pass(draft_of(target), 6)
    assert [row[:4] for row in propose(large)] == propose(coupled)


def test_bidirectional_draft_runs_the_rows_it_was_trained_with(target, propose):
    mask = {"causal": False, "inputs": "mask", "mask_token_id": 96, "block_rows": 5}
    few, all_of_them = (propose(plain_pass(draft_of(target, **mask), count)) for count in (2, 5))
    assert few == [row[:2] for row in all_of_them]


def test_noise_is_shared_with_the_draw_only_when_sampling(target, coupled, propose):
    plain = plain_pass(draft_of(target), 4, couple_noise=False)
    assert propose(plain, temperature=1.0) == propose(coupled)  # the same arg-max
    assert propose(coupled, temperature=1.0) != propose(coupled)


def test_context_cache_grows_by_the_kept_rows_only(target, decoder, coupled):
    leaves, empty = coupled.place(jax.devices()[0]), coupled.init_state(decoder, 1, 32)
    observe = jax.jit(lambda caches, rows: coupled.observe(leaves, decoder, caches, rows))
    rows = context_rows(target, [[5, 6, 7, 8, 9]], width=4)
    whole = observe(empty, rows)
    partly = observe(empty, replace(rows, num_kept=jnp.asarray([2])))
    assert (whole.context.length.tolist(), partly.context.length.tolist()) == ([4], [2])
    # The same rows two positions late: only the first two of them count.
    late = jax.tree.map(lambda x: jnp.roll(x, -2, axis=1), (rows.tokens, rows.taps))
    again = observe(partly, ContextRows(*late, jnp.asarray([2]), jnp.asarray([2]))).context
    whole = whole.context
    assert again.length.tolist() == [4]
    for one, other in zip(whole.keys + whole.values, again.keys + again.values, strict=True):
        np.testing.assert_allclose(one[:, :, :4], other[:, :, :4], atol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "num_drafts", "message"),
    [
        pytest.param({}, 0, "num_drafts=0 must be at least 1", id="none"),
        pytest.param(
            {"causal": False, "block_rows": 4}, 5, "num_drafts=5, bidirectional draft of 4 rows", id="too-many"
        ),
    ],
)
def test_refuses_impossible_numbers_of_drafts(target, overrides, num_drafts, message):
    with pytest.raises(ValueError, match=message):
        plain_pass(draft_of(target, **overrides), num_drafts)


def test_default_number_of_drafts_is_what_one_pass_proposes(target):
    assert plain_pass(draft_of(target, block_rows=8)).num_drafts == 8
    assert plain_pass(draft_of(target, block_rows=8, shift=False)).num_drafts == 7


@pytest.fixture(scope="module")
def plain(target) -> LanguageModel:
    return LanguageModel(target, drafter=None)


PROMPTS = [[5, 6, 7], [9]]
REQUESTS = [SamplingParams(max_new_tokens=55), SamplingParams(max_new_tokens=55, temperature=1.0, seed=4)]


@pytest.fixture(scope="module")
def expected(plain) -> list[list[int]]:
    return [output.token_ids for output in plain.generate(PROMPTS, REQUESTS)]


def nan_weights(draft: Draft) -> Draft:
    draft.norm.scale[...] = jnp.full_like(draft.norm.scale[...], jnp.nan)
    return draft


@pytest.mark.parametrize(
    ("overrides", "couple_noise"),
    [
        pytest.param(
            {"causal": False, "shift": False, "inputs": "mask", "mask_token_id": 96, "block_rows": 5},
            False,
            id="mask-inputs-without-shared-noise",
        ),
    ],
)
@pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")
def test_text_does_not_depend_on_the_draft(target, plain, expected, overrides, couple_noise):
    drafter = plain_pass(draft_of(target, **overrides), 4, couple_noise=couple_noise)
    outputs = plain.with_drafter(drafter).generate(PROMPTS, REQUESTS)
    assert [output.token_ids for output in outputs] == expected


def test_draft_of_nans_is_all_but_rejected(target, plain, expected):
    """C08: the block counts as rejected (a constant guess may be right once in a while); the caller is warned."""
    model = plain.with_drafter(plain_pass(nan_weights(draft_of(target)), 4))
    with pytest.warns(LowAcceptanceWarning, match=r"'parallel' committed 1\.0"):
        outputs = model.generate(PROMPTS, REQUESTS)
    assert [output.token_ids for output in outputs] == expected
    assert [output.finish_reason for output in outputs] == ["length"] * 2
    assert max(output.stats.tau for output in outputs) < 1.1


def test_unread_adapter_rests(target, decoder):
    """One pass reads no predicted state, so the adapter is neither placed nor caught up; refining brings it back."""
    drafting = DraftingConfig(num_drafts=3, num_outcomes=0)
    refining = JetSpecPP.random(target.config, dtype=jnp.dtype("float32"), drafting=drafting)
    plain = refining.with_drafting(refine=RefineConfig.parse("J1"))
    again = plain.with_drafting(refine=drafting.refine)
    device = jax.devices()[0]
    sizes = [len(drafter.place(device)) for drafter in (JetSpecPP(refining.draft), plain, refining, again)]
    assert sizes[0] == sizes[1] < sizes[2] == sizes[3]
    assert plain.init_state(decoder, 1, 32).predictor == ()
    rows = context_rows(target, [[5, 6, 7]])
    leaves = plain.place(device)
    observed = jax.jit(lambda rows: plain.observe(leaves, decoder, plain.init_state(decoder, 1, 32), rows))(rows)
    assert (observed.predictor, observed.context.length.tolist()) == ((), [2])
    assert plain.adapter is again.adapter is refining.adapter is not None


def test_random_draft_has_the_shape_of_the_target(target):
    drafter = JetSpecPP.random(target.config, dtype=jnp.dtype("float32"), drafting=replace(PLAIN_PASS, num_drafts=2))
    config: DraftConfig = drafter.config
    assert config.shape.hidden_size == target.config.shape.hidden_size
    assert config.num_taps == len(target.config.taps)
