"""Where the buffers of the decoding programs lie: GPU graphs are launched as they are only while addresses stay."""

from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.decoding.executables import Executables, Over
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.language_model import DraftLimitWarning, LanguageModel, LowAcceptanceWarning
from jetspec_jax.testing import tiny_config, tiny_target

pytestmark = pytest.mark.filterwarnings(f"ignore::{LowAcceptanceWarning.__module__}.LowAcceptanceWarning")
PROMPT, NUM_TOKENS = [5, 6, 7], 16


@pytest.fixture(scope="module")
def base() -> LanguageModel:
    return LanguageModel(tiny_target(tiny_config(taps=(0,))), drafter=None)


def drafting_ahead(base, num_outcomes: int, draft_device=None) -> LanguageModel:
    drafting = DraftingConfig(num_drafts=3, num_outcomes=num_outcomes, refine=RefineConfig.parse("J0"))
    drafter = JetSpecPP.random(base.config, dtype=jnp.float32, drafting=drafting)
    return base.with_drafter(drafter, draft_device=draft_device)


def model_of(base, kind: str, cpu_devices) -> tuple[LanguageModel, tuple[str, ...]]:
    """A model and the names of the programs of its rounds."""
    if kind == "plain":
        return base, ("plain round",)
    if kind in ("critical path", "fused"):
        return drafting_ahead(base, 0 if kind == "critical path" else 2), ("round",)
    return drafting_ahead(base, 2, cpu_devices[int(kind == "two devices")]), ("verify", "foresee", "select")


def places(tree) -> tuple[int, ...]:
    return tuple(leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("kind", ["plain", "critical path", "fused", "one device", "two devices"])
def test_recycled_rounds_find_and_leave_all_buffers_where_they_were(base, kind, cpu_devices):
    expected = base.generate([PROMPT], max_new_tokens=NUM_TOKENS)[0].token_ids
    model, names = model_of(base, kind, cpu_devices)
    executables = model.programs.executables
    run, before, given, left = executables.run, executables.recycles, defaultdict(list), defaultdict(list)

    def noted(name, key, program, args, **how):
        given[name].append(places((args, how.get("over") and how["over"].results)))
        outputs = run(name, key, program, args, **how)
        left[name].append(places(outputs))
        return outputs

    executables.recycles, executables.run = {"cpu": True}, noted
    try:
        texts = [output.token_ids for _ in range(2) for output in model.generate([PROMPT], max_new_tokens=NUM_TOKENS)]
    finally:
        executables.recycles, executables.run = before, run
    assert texts == [expected, expected]
    for name in names:
        one_text = len(given[name]) // 2
        assert one_text > NUM_TOKENS // 2
        # Before the second round nothing has been left to be written over, and what was pending came from elsewhere.
        assert len(set(given[name][2:one_text])) == 1
        assert len(set(left[name][1:one_text])) == 1


def outputs_of(model, *, recycles: bool) -> list[tuple]:
    """Texts and log-probabilities of two prompts; on CPU rounds are recycled only if asked for."""
    options = {"max_new_tokens": NUM_TOKENS, "temperature": 0.7, "seed": 3, "logprobs": 2}
    executables = model.programs.executables
    before, executables.recycles = executables.recycles, {"cpu": recycles}
    try:
        return [(output.token_ids, output.logprobs) for output in model.generate([PROMPT, [9, 8]], **options)]
    finally:
        executables.recycles = before


@pytest.mark.filterwarnings(f"ignore::{DraftLimitWarning.__module__}.DraftLimitWarning")
@pytest.mark.parametrize("kind", ["plain", "critical path"])
def test_recycling_changes_neither_texts_nor_log_probabilities(base, kind, cpu_devices):
    model, _ = model_of(base, kind, cpu_devices)
    if kind == "critical path":
        model.drafter.max_len = len(PROMPT) + NUM_TOKENS // 2  # plain rounds behind it, with smaller results
    expected = outputs_of(model, recycles=False)
    assert outputs_of(model, recycles=True) == expected
    assert [len(token_ids) for token_ids, _ in expected] == [NUM_TOKENS, NUM_TOKENS]
    assert all(entry.top for _, entries in expected for entry in entries)
    if kind == "critical path":
        assert model.programs.executables.hlo("plain round")


def step(state, x):
    return state + 1, {"sum": state + x}


def test_results_are_written_over_those_that_are_given():
    executables = Executables()
    executables.recycles, seen = {"cpu": True}, []
    executables.on_dispatch = lambda name, device, outputs: seen.append(outputs[1]["sum"])
    state, over, at = jnp.zeros((2,)), Over(None), set()
    for x in range(3):
        args, how = (state, jnp.full((2,), x, jnp.float32)), {"donated": (0,), "device": jax.devices()[0]}
        state, beside = executables.run("step", (state.shape,), step, args, over=over, **how)
        over = Over(beside)
        at.add(places(beside))
    assert len(at) == 1
    assert executables.num_compiled == 1
    # Whoever watches is told of copies, which later calls leave alone.
    np.testing.assert_array_equal([float(watched[0]) for watched in seen], [0, 2, 4])


def test_where_nothing_is_recycled_results_are_new():
    executables = Executables()
    state, over, kept = jnp.zeros((2,)), Over(None), []
    for x in range(3):
        args, how = (state, jnp.full((2,), x, jnp.float32)), {"donated": (0,), "device": jax.devices()[0]}
        state, beside = executables.run("step", (state.shape,), step, args, over=over, **how)
        over = Over(beside)
        kept.append(beside["sum"])
    np.testing.assert_array_equal([float(each[0]) for each in kept], [0, 2, 4])
