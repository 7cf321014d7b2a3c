"""The pipelined driver: no wait for a device inside a round, no recompiling, results read one round late."""

import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.drafting_config import DraftingConfig
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.testing import PeekingJetSpecPP, tiny_config, tiny_target

PROMPT, NUM_TOKENS = [5, 6, 7], 230


@pytest.fixture(scope="module")
def model(cpu_devices) -> LanguageModel:
    config = tiny_config(taps=(0,))
    target = tiny_target(config)
    plain = LanguageModel(target, drafter=None)
    text = plain.generate(PROMPT, max_new_tokens=NUM_TOKENS).token_ids
    drafter = PeekingJetSpecPP(
        Draft(draft_config_for(config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0)),
        Adapter.from_target(target, adapter_config_for(config, layers_per_module=(1,))),
        drafting=DraftingConfig(num_drafts=2, num_outcomes=2),
        texts=[PROMPT + text],
        period=2,
    )
    model = plain.with_drafter(drafter, draft_device=cpu_devices[1])
    model.text = text
    model.generate(PROMPT, max_new_tokens=NUM_TOKENS)  # compiles
    return model


@pytest.fixture
def events(model, monkeypatch):
    """What happens on the host, in order: dispatches, explicit reads, and any other wait for a device."""
    log = []
    model.programs.executables.on_dispatch = lambda name, device, outputs: log.append(name)
    read = jax.device_get
    reading = []

    def device_get(tree):
        log.append("read")
        reading.append(True)
        try:
            return read(tree)
        finally:
            reading.pop()

    monkeypatch.setattr(jax, "device_get", device_get)
    array_type = type(jnp.zeros(()))
    value = array_type._value

    def wait(self):
        if not reading:
            log.append("wait")
        return value.__get__(self)

    def block(self):
        log.append("wait")
        return self

    monkeypatch.setattr(array_type, "_value", property(wait))
    monkeypatch.setattr(array_type, "block_until_ready", block)
    monkeypatch.setattr(jax, "block_until_ready", lambda tree: log.append("wait"))
    yield log
    model.programs.executables.on_dispatch = None


def test_the_counter_of_waits_counts(events):
    float(jnp.ones(()))
    (jnp.ones(3) * 2).tolist()
    bool(jnp.ones(()) > 0)
    jnp.ones(2).block_until_ready()
    assert events.count("wait") >= 4


def test_the_host_never_waits_inside_a_round(model, events):
    """One read a round and device, of the round before, once the next is queued; the guard forbids hidden transfers."""
    output = model.generate(PROMPT, max_new_tokens=NUM_TOKENS)
    assert output.token_ids == model.text
    rounds = events.count("verify")
    assert rounds >= output.stats.rounds > 70
    assert "wait" not in events
    assert events.count("read") == 2 * rounds + 1  # and the first token, from prefill
    assert events.count("foresee") == events.count("select") == rounds
    # The order of any round but the first and the last ones: all of round t + 1 is queued, then round t is read.
    start = events.index("verify", events.index("verify") + 1)
    steady = events[start : start + 5 * (rounds - 3)]
    assert steady == ["verify", "foresee", "select", "read", "read"] * (rounds - 3)


def test_no_recompilation_over_the_rounds_of_many_requests(model):
    compiled = model.programs.num_compiled
    stats = [model.generate(PROMPT, max_new_tokens=NUM_TOKENS).stats for _ in range(3)]
    assert sum(s.rounds for s in stats) > 200
    assert stats[0].hit_rate > 0.5
    assert model.programs.num_compiled == compiled
    # Each was traced for one set of shapes: empty state and side, prefill, observe, anchor, first block, and the three
    # of a round.
    assert compiled == 9


def test_each_side_lives_on_its_device(model, cpu_devices):
    programs = model.programs
    assert all(leaf.devices() == {cpu_devices[0]} for leaf in programs.target_leaves)
    assert all(leaf.devices() == {cpu_devices[1]} for leaf in (*programs.draft_leaves, *programs.decoder_leaves))
    # Of the target only embedding, top layer, norm and head are copied.
    assert len(programs.decoder_leaves) < len(programs.target_leaves)


@pytest.mark.parametrize("name", ["verify", "foresee", "select"])
def test_no_cache_is_copied(model, name):
    """States are donated and handed through, on hits and on misses: a round writes rows, it moves no caches."""
    (text,) = model.programs.executables.hlo(name)
    shape = model.target.config.shape
    cache = rf"f32\[1,{shape.num_kv_heads},\d\d+,{shape.head_dim}\]"
    assert re.search(rf"{cache}\S* (parameter|get-tuple-element)", text)
    assert not re.search(rf"{cache}\S* copy\(", text)


def test_one_device_for_both_sides(model, cpu_devices):
    same = model.with_drafter(model.drafter, draft_device=cpu_devices[0])
    assert same.generate(PROMPT, max_new_tokens=40).token_ids == model.text[:40]


def test_a_drafter_that_does_not_draft_ahead_needs_no_second_device(model, cpu_devices):
    with pytest.raises(ValueError, match="does not draft ahead"):
        model.with_drafter("ngram", draft_device=cpu_devices[1])
