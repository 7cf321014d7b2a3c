"""JetSpec++ gives the text of plain decoding: every refinement, cache size, miss policy and driver, every option.

A real target, draft geometry, adapter, decoder and cache; only what the draft would have learnt is replaced by a draft
that knows the text and errs at chosen places, so that every accepted length, hit and miss happens.
"""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import PeekingJetSpecPP, tiny_config, tiny_target

pytestmark = pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")

# The matrix and the variants take four of the eight options, for half the compile time; the other tests take all.
MATRIX_OPTIONS = (0, 2, 4, 7)  # greedy, T=1, top-p, everything
REFINEMENTS = ("J0", "J1-R1", "J3-R3")
POLICIES = ("fallback", "refined_fallback", "soft_miss")


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    """Some sixty programs are compiled here and run for a moment each; the other tests use the optimised ones."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def base() -> LanguageModel:
    return LanguageModel(tiny_target(tiny_config(taps=(0,))), drafter=None)


@pytest.fixture(scope="module")
def plain_texts(base, option_prompts, option_requests) -> list[list[int]]:
    return [output.token_ids for output in base.generate(option_prompts, option_requests())]


@pytest.fixture(scope="module")
def draft(base) -> Draft:
    return Draft(draft_config_for(base.config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def adapter(base) -> Adapter:
    return Adapter.from_target(base.target, adapter_config_for(base.config, layers_per_module=(1,)))


@pytest.fixture(scope="module")
def peeking(base, draft, adapter, option_prompts, plain_texts):
    texts = [prompt + text for prompt, text in zip(option_prompts, plain_texts, strict=True)]

    def model(drafting: DraftingConfig, draft_device: jax.Device | None = None, options=range(8)) -> LanguageModel:
        drafter = PeekingJetSpecPP(draft, adapter, drafting=drafting, texts=[texts[i] for i in options])
        return base.with_drafter(drafter, draft_device=draft_device)

    return model


# Compiling is what the matrix costs: the longest programs are made for one cache size, the others in the slow suite.
MATRIX = [
    pytest.param(
        refine,
        num_outcomes,
        policy,
        driver,
        id=f"{refine}-{num_outcomes}-{policy}-{driver}",
        marks=[pytest.mark.slow] if refine == "J3-R3" and num_outcomes != 4 else [],
    )
    for refine in REFINEMENTS
    for num_outcomes in (1, 4, 8)
    for policy in POLICIES
    for driver in ("fused", "pipelined")
]


@pytest.mark.parametrize(("refine", "num_outcomes", "policy", "driver"), MATRIX)
def test_matrix(
    peeking, plain_texts, option_prompts, option_requests, cpu_devices, refine, num_outcomes, policy, driver
):
    drafting = DraftingConfig(
        num_drafts=4, refine=RefineConfig.parse(refine), num_outcomes=num_outcomes, miss_policy=policy
    )
    model = peeking(drafting, cpu_devices[1] if driver == "pipelined" else None, MATRIX_OPTIONS)
    requests = option_requests()
    outputs = model.generate([option_prompts[i] for i in MATRIX_OPTIONS], [requests[i] for i in MATRIX_OPTIONS])
    assert [output.token_ids for output in outputs] == [plain_texts[i] for i in MATRIX_OPTIONS]
    # Both paths were taken, and blocks of many accepted lengths were verified.
    hits = [hit for output in outputs for hit in output.stats.hits]
    assert 10 < sum(hits) < len(hits)
    assert sum(any(output.stats.histogram[k] for output in outputs) for k in range(5)) >= 4


@pytest.mark.parametrize("refine", REFINEMENTS)
def test_critical_path(peeking, plain_texts, option_prompts, option_requests, refine):
    model = peeking(DraftingConfig(num_drafts=4, refine=RefineConfig.parse(refine), num_outcomes=0))
    outputs = model.generate(option_prompts, option_requests())
    assert [output.token_ids for output in outputs] == plain_texts
    assert all(output.stats.hit_rate is None for output in outputs)
    assert sum(output.stats.accepted for output in outputs) > 100


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"refine": RefineConfig(num_passes=2, num_refreshes=1, replace_anchor=False)}, id="refresh-alone"),
        pytest.param({"refine": RefineConfig(conditioning="double")}, id="double"),
        pytest.param({"refine": RefineConfig(rewritten="renoise")}, id="renoise"),
        pytest.param({"refine": RefineConfig.parse("J3")}, id="J3"),
        pytest.param({"couple_noise": False}, id="uncoupled"),
        pytest.param({"draft_weights": "int8"}, id="int8"),
        pytest.param({"outcome_rule": "draft_model"}, id="draft-model"),
        pytest.param({"outcome_rule": "geometric"}, id="geometric"),
    ],
)
def test_variants_with_an_untrained_draft(base, draft, adapter, plain_texts, option_prompts, option_requests, changes):
    drafter = JetSpecPP(draft, adapter, drafting=DraftingConfig(**({"num_drafts": 4, "num_outcomes": 2} | changes)))
    requests = option_requests()
    outputs = base.with_drafter(drafter).generate(
        [option_prompts[i] for i in MATRIX_OPTIONS], [requests[i] for i in MATRIX_OPTIONS]
    )
    assert [output.token_ids for output in outputs] == [plain_texts[i] for i in MATRIX_OPTIONS]


@pytest.mark.parametrize(
    "config", [{"causal": False, "shift": False, "inputs": "mask", "mask_token_id": 96}, {"shift": False}]
)
def test_other_drafts(base, adapter, plain_texts, option_prompts, option_requests, config):
    """DFlash's draft (bidirectional, mask inputs) and in-place prediction, under refinement and foresight."""
    config = draft_config_for(base.config, num_layers=1, block_rows=5, **config)
    draft = Draft(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    drafter = JetSpecPP(draft, adapter, drafting=DraftingConfig(num_drafts=4, num_outcomes=2))
    requests = option_requests()
    outputs = base.with_drafter(drafter).generate(
        [option_prompts[i] for i in MATRIX_OPTIONS], [requests[i] for i in MATRIX_OPTIONS]
    )
    assert [output.token_ids for output in outputs] == [plain_texts[i] for i in MATRIX_OPTIONS]


def test_rows_that_end_early_do_not_disturb_the_others(peeking, plain_texts, option_prompts, option_requests):
    stops = [text[min(5 * row, len(text) - 1)] for row, text in enumerate(plain_texts)]
    outputs = peeking(DraftingConfig(num_drafts=4, num_outcomes=4)).generate(option_prompts, option_requests(stops))
    for text, stop, output in zip(plain_texts, stops, outputs, strict=True):
        assert output.token_ids == text[: text.index(stop) + 1]
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)


def test_fused_and_pipelined_draft_the_same_blocks(peeking, plain_texts, option_prompts, option_requests, cpu_devices):
    """All options in one batch: the text, and every pass of every block."""
    drafting = DraftingConfig(num_drafts=4, num_outcomes=4, keep_trace=True)
    runs = []
    for device in (None, cpu_devices[1]):
        chunks = list(peeking(drafting, device).stream(option_prompts, option_requests()))
        assert {c.index: c.output.token_ids for c in chunks if c.output} == dict(enumerate(plain_texts))
        runs.append([(chunk.index, chunk.token_ids, chunk.trace) for chunk in chunks])
    assert runs[0] == runs[1]
    assert sum(trace is not None for _, _, trace in runs[0]) > 50
