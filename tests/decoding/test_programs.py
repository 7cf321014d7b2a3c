"""Compiled programs driven directly: cache and draft context move together, old rows do not matter, no recompiling."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_jax.config import draft_config_for
from jetspec_jax.decoding.programs import DecodeState, Programs, bucket
from jetspec_jax.decoding.row_params import SamplingSpec, row_params
from jetspec_jax.drafters import JetSpecPP, StatelessDrafter
from jetspec_jax.drafters.jetspecpp import PLAIN_PASS
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.models.draft import Draft
from jetspec_jax.ops.kernels import Kernels
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import ScriptedDrafter, counting_target

SPEC = SamplingSpec()


class Run:
    """Rounds of one batch, greedy, one call at a time."""

    def __init__(self, programs: Programs, prompts: list[list[int]], *, capacity: int, chunk_len: int):
        self.programs = programs
        self.params = row_params(
            [SamplingParams()] * len(prompts), eos_token_ids=(), vocab_size=97, device=programs.device
        )
        self.active = jnp.ones((len(prompts),), bool)
        tokens = np.zeros((len(prompts), capacity), np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = prompt
        self.prompt_lens = np.array([len(prompt) for prompt in prompts], np.int32)
        self.state = programs.init_state(jnp.asarray(tokens), jnp.asarray(self.prompt_lens))
        last_x = jnp.zeros((len(prompts), programs.target.config.shape.hidden_size), jnp.float32)
        for start in range(0, int(self.prompt_lens.max()), chunk_len):
            self.state, last_x, _ = programs.prefill(self.state, last_x, chunk_len, jnp.int32(start), self.params, SPEC)

    def round(self) -> list[int]:
        """Committed tokens of each row."""
        self.state, output = self.programs.round(self.state, self.active, self.params, SPEC, is_drafting=True)
        return output.num_committed.tolist()

    def texts(self) -> list[list[int]]:
        tokens, lengths = jax.device_get((self.state.target.tokens, self.state.target.length))
        return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]


class ScriptedContextDrafter(JetSpecPP):
    """Keeps the context of a block draft, but proposes by script, so that every rejection can be made to happen."""

    def __init__(self, draft: Draft, scripted: ScriptedDrafter):
        super().__init__(draft, drafting=replace(PLAIN_PASS, num_drafts=scripted.num_drafts))
        self.scripted = scripted

    def place(self, device):
        own = super().place(device)
        self.num_own = len(own)
        return (*own, *self.scripted.place(device))

    def init_state(self, decoder, batch, capacity):
        return super().init_state(decoder, batch, capacity), self.scripted.init_state(decoder, batch, capacity)

    def propose(self, leaves, decoder, state, view):
        drafts, count = self.scripted.propose(leaves[self.num_own :], decoder, state[1], view)
        return drafts, (state[0], count)

    def observe(self, leaves, decoder, state, rows):
        return super().observe(leaves[: self.num_own], decoder, state[0], rows), state[1]


PROMPT_LENS = (5, 20, 33)  # one, two and three chunks of 16


@pytest.fixture(scope="module")
def context_texts(shallow, prompt_of) -> list[list[int]]:
    prompts = [prompt_of(n) for n in PROMPT_LENS]
    outputs = shallow.generate(prompts, max_new_tokens=90)
    return [prompt + output.token_ids for prompt, output in zip(prompts, outputs, strict=True)]


@pytest.fixture(scope="module")
def context_programs(shallow, context_texts) -> Programs:
    draft = Draft(draft_config_for(shallow.config, num_layers=1), dtype=jnp.float32, rngs=nnx.Rngs(0))
    scripted = ScriptedDrafter(context_texts, [0], num_drafts=4, vocab_size=97)
    return shallow.with_drafter(ScriptedContextDrafter(draft, scripted)).programs


def check_lengths(state: DecodeState) -> None:
    target, context = state.target, state.draft[0].context
    assert target.cache.length.tolist() == (target.length - 1).tolist() == context.length.tolist()


@settings(deadline=None, max_examples=10)
@given(script=st.lists(st.integers(0, 4), min_size=1, max_size=10))
def test_draft_context_and_cache_are_one_short_of_the_text(context_programs, context_texts, prompt_of, script):
    """C14: after prefill in several chunks and after every round of any script."""
    drafter = context_programs.drafter
    own = tuple(context_programs.draft_leaves[: drafter.num_own])
    context_programs.set_draft_leaves((*own, *drafter.scripted.follow(context_texts, script)))
    run = Run(context_programs, [prompt_of(n) for n in PROMPT_LENS], capacity=128, chunk_len=16)
    check_lengths(run.state)
    for accepted in script:
        assert run.round() == [accepted + 1] * 3
        check_lengths(run.state)
    assert run.texts() == [text[: len(new)] for text, new in zip(context_texts, run.texts(), strict=True)]


def test_draft_context_is_the_same_however_it_was_filled(context_programs, context_texts, prompt_of):
    """C14: rejected rows leave no trace: a bumpy run ends with the context of a run that accepts everything."""
    drafter = context_programs.drafter
    own = tuple(context_programs.draft_leaves[: drafter.num_own])
    contexts = []
    for script in ([4], [0, 3, 1, 4, 2, 0]):
        context_programs.set_draft_leaves((*own, *drafter.scripted.follow(context_texts, script)))
        run = Run(context_programs, [prompt_of(n) for n in PROMPT_LENS], capacity=128, chunk_len=16)
        while min(run.state.target.length.tolist()) < 45:
            run.round()
        contexts.append(run.state.draft[0].context)
    for row, prompt_len in enumerate(PROMPT_LENS):
        for one, other in zip(contexts[0].keys, contexts[1].keys, strict=True):
            shared = min(int(c.length[row]) for c in contexts)
            assert shared > prompt_len
            np.testing.assert_allclose(one[row, :, :shared], other[row, :, :shared], atol=1e-5)


class OwnContextOracle(StatelessDrafter):
    """Continues a counting text from its own memory alone, kept at its own length; wrong on purpose at first."""

    name, num_drafts, num_wrong = "oracle", 4, 50

    def init_state(self, decoder, batch, capacity):
        return jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((batch,), jnp.int32), jnp.zeros((), jnp.int32)

    def propose(self, leaves, decoder, state, view):
        memory, length, count = state
        last = jnp.take_along_axis(memory, length[:, None] - 1, axis=1)  # the token before the anchor
        drafts = (last + 2 + jnp.arange(4)[None]) % 97
        spoiled = jnp.where(jnp.arange(4)[None] == count % 5, (drafts + 5) % 97, drafts)
        return jnp.where(count < self.num_wrong, spoiled, drafts).astype(jnp.int32), (memory, length, count + 1)

    def observe(self, leaves, decoder, state, rows):
        memory, length, count = state
        for row in range(memory.shape[0]):
            memory = jax.lax.dynamic_update_slice(memory, rows.tokens[row : row + 1], (row, length[row]))
        return memory, length + rows.num_kept, count


@pytest.mark.parametrize(("ops", "slots"), [(("attention",), 7), (("int8_matmul",), 7), (("swiglu",), 0), ((), 0)])
def test_kernels_that_pad_rows_need_slots_for_them(ops, slots):
    """Without the slots the last write of a full cache would move down and destroy older rows (bug case C16)."""
    programs = LanguageModel(counting_target(97), drafter=None).programs
    programs.executables.kernels = {jax.devices()[0]: Kernels(ops)}
    assert programs.padding_rows == slots


def test_acceptance_recovers_after_rejections():
    """C14: 50 rounds with rejections, then 300 rounds that commit everything."""
    model = LanguageModel(counting_target(97, max_len=2048), drafter=OwnContextOracle())
    stats = model.generate([3, 4, 5], max_new_tokens=1651).stats
    assert sum(stats.committed[:50]) == 10 * (1 + 2 + 3 + 4 + 5)
    assert set(stats.committed[50:350]) == {5}


@jax.jit
def poisoned(whole: DecodeState) -> DecodeState:
    """Fills everything beyond the lengths with large values."""
    state = whole.target
    beyond = (jnp.arange(state.cache.capacity)[None, :] >= state.cache.length[:, None])[:, None, :, None]
    fill = lambda side: tuple(jnp.where(beyond, 1e4, rows) for rows in side)  # [B, K, S, H]  # noqa: E731
    tokens = jnp.where(jnp.arange(state.tokens.shape[1])[None, :] >= state.length[:, None], 96, state.tokens)
    cache = replace(state.cache, keys=fill(state.cache.keys), values=fill(state.cache.values))
    return replace(whole, target=replace(state, tokens=tokens, cache=cache))


def test_rows_beyond_the_length_are_never_read(plain, follow, prompt_of):
    """C15: after a rejection, what lies above the length may be anything finite."""
    prompt = prompt_of(16)
    text = prompt + plain.generate(prompt, max_new_tokens=200).token_ids
    programs = follow([text], [0, 15, 3, 1, 7], 15).programs
    run = Run(programs, [prompt], capacity=256, chunk_len=16)
    for _ in range(25):
        run.state = poisoned(run.state)
        run.round()
    (produced,) = run.texts()
    assert len(produced) > 100
    assert produced == text[: len(produced)]


def test_no_recompilation_over_200_rounds(follow, plain, prompt_of):
    """C15: accepted lengths change, shapes do not."""
    prompt = prompt_of(2)
    text = plain.generate(prompt, max_new_tokens=222).token_ids
    model = follow([prompt + text], [0] * 8 + [1, 0], 15)
    model.generate(prompt, max_new_tokens=222)
    compiled = model.programs.num_compiled
    output = model.generate(prompt, max_new_tokens=222)
    assert output.stats.rounds > 200
    assert output.token_ids == text
    assert model.programs.num_compiled == compiled


def test_one_executable_per_bucket_and_spec():
    model = LanguageModel(counting_target(97), drafter=None)
    counts = []
    for prompt_len, options in (
        (1, {}),  # 16 slots: prefill and round
        (9, {}),  # the same bucket
        (9, {"seed": 3}),  # traced or unused options
        (9, {"temperature": 1.0}),  # a program that samples: both again
        (9, {"temperature": 0.3, "seed": 5}),
        (17, {}),  # 32 slots and a longer chunk: both again
    ):
        model.generate(list(range(prompt_len)), max_new_tokens=5, **options)
        counts.append(model.programs.num_compiled)
    assert counts == [3, 3, 3, 5, 5, 8]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 16), (16, 16), (17, 32), (200, 256), (257, 384), (2048, 2048), (2049, 3072), (5000, 5120)],
)
def test_bucket(size, expected):
    assert bucket(size) == expected


def test_draft_leaves_must_keep_their_shapes(follow, plain, prompt_of):
    programs = follow([prompt_of(4)], [0], 15).programs
    old = programs.draft_leaves
    with pytest.raises(ValueError, match=r"int32\[1, 512\].*got \['float32\[3\]'\]"):
        programs.set_draft_leaves((jnp.zeros((3,), jnp.float32),))
    assert programs.draft_leaves is old
