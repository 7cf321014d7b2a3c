"""Where the buffers of the decoding programs lie: GPU graphs are launched as they are only while addresses stay."""

from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.decoding.executables import Executables
from jetspec_jax.drafters import JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
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


def text_and_addresses(model: LanguageModel) -> tuple[list[int], dict[tuple[str, int], set]]:
    """The text, and for each result of each program where its buffers were over the rounds."""
    places = defaultdict(set)

    def note(name, device, outputs):
        for index, output in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
            places[name, index].add(tuple(leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(output)))

    model.programs.executables.on_dispatch = note
    text = model.generate([PROMPT], max_new_tokens=NUM_TOKENS)[0].token_ids
    return text, places


@pytest.mark.parametrize("num_outcomes", [0, 2, None], ids=["critical path", "fused", "plain"])
def test_recycled_rounds_have_all_buffers_where_they_were(base, num_outcomes):
    model = base if num_outcomes is None else drafting_ahead(base, num_outcomes)
    name = "plain round" if num_outcomes is None else "round"
    expected = base.generate([PROMPT], max_new_tokens=NUM_TOKENS)[0].token_ids
    executables = model.programs.executables
    executables.recycles, before = {"cpu": True}, executables.recycles
    try:
        text, places = text_and_addresses(model)
        beside = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(list(executables._results.values()))}
        assert text == expected
        assert len(places[name, 0]) == 1
        # What is handed out is a copy, which later rounds leave alone.
        assert beside.isdisjoint(pointer for pointers in places[name, 1] for pointer in pointers)
        again, _ = text_and_addresses(model)
        assert again == expected
        assert beside == {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(list(executables._results.values()))}
    finally:
        executables.recycles, executables.on_dispatch = before, None
        executables.forget_results()


@pytest.mark.parametrize("draft_device", [0, 1], ids=["one device", "two devices"])
def test_recycled_pipelined_rounds_find_and_leave_everything_where_it_was(base, cpu_devices, draft_device):
    expected = base.generate([PROMPT], max_new_tokens=NUM_TOKENS)[0].token_ids
    model = drafting_ahead(base, 2, cpu_devices[draft_device])
    executables = model.programs.executables
    executables.recycles = {"cpu": True}
    run, given, left = executables.run, defaultdict(list), defaultdict(list)

    def places(tree):
        return tuple(leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree))

    def noted(name, key, program, args, **how):
        given[name].append(places((args, how["over"] and how["over"].results)))
        outputs = run(name, key, program, args, **how)
        left[name].append(places(outputs))
        return outputs

    executables.run = noted
    texts = [output.token_ids for _ in range(2) for output in model.generate([PROMPT], max_new_tokens=NUM_TOKENS)]
    assert texts == [expected, expected]
    for name in ("verify", "foresee", "select"):
        one_text = len(given[name]) // 2
        assert one_text > NUM_TOKENS // 2
        # Before the second round nothing has been left to be written over, and what was pending came from elsewhere.
        assert len(set(given[name][2:one_text])) == 1
        assert len(set(left[name][1:one_text])) == 1


def step(state, x):
    return state + 1, {"sum": state + x}


@pytest.fixture
def run():
    """Calls `step`, recycled."""
    executables = Executables()
    executables.recycles = {"cpu": True}

    def call(state, x):
        how = {"donated": (0,), "device": jax.devices()[0], "is_recycled": True}
        return executables.run("step", (state.shape,), step, (state, jnp.full((2,), x, jnp.float32)), **how)

    call.executables = executables
    return call


def test_what_was_handed_out_survives_later_calls(run):
    a, b, seen = jnp.zeros((2,)), jnp.full((2,), 10.0), []
    for x in range(3):
        a, of_a = run(a, x)
        b, of_b = run(b, x)
        seen.append((of_a["sum"], of_b["sum"]))
    np.testing.assert_array_equal([[float(s[0]) for s in pair] for pair in seen], [[0, 10], [2, 12], [4, 14]])
    assert run.executables.num_compiled == 1


def test_a_call_in_the_middle_of_another_takes_nothing_from_it(run):
    """As another thread may, as soon as there are results to be written over."""
    run(jnp.zeros((2,)), 0)  # compiles
    others = []

    class Interrupted(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            if not others:
                others.append(None)
                others[0] = run(jnp.full((2,), 100.0), 5)[1]["sum"]

    run.executables._results = Interrupted(run.executables._results)
    _, mine = run(jnp.full((2,), 1.0), 1)
    assert (float(mine["sum"][0]), float(others[0][0])) == (2, 105)


def test_a_loop_that_fails_leaves_nothing_behind(base):
    """What a failed program leaves to be written over would make all later ones fail."""
    executables = base.programs.executables
    executables._results["left"] = "over"

    run = executables.run

    def fail(name, *args, **how):
        if name == "plain round":
            raise RuntimeError("device lost")
        return run(name, *args, **how)

    executables.run = fail
    try:
        with pytest.raises(RuntimeError, match="device lost"):
            base.generate([PROMPT], max_new_tokens=NUM_TOKENS)
    finally:
        executables.run = run
    assert not executables._results
