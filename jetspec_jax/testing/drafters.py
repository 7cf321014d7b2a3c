"""Drafters for tests: scripted acceptance, random proposals, and proposals that share the draw's noise."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jetspec_jax.decoding.sampling import position_noise
from jetspec_jax.drafters.protocol import DraftView, StatelessDrafter
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.functional import Leaves


class ScriptedDrafter(StatelessDrafter):
    """Knows the text and a script of accepted lengths; drives every accept and reject path on purpose.

    Round r proposes the true continuation with the token after `script[r % len(script)]` accepted ones corrupted.

    Example: text [.., 4, 5, 6], two drafts, script [1] -> proposes [4, 6]: one draft is accepted.

    Texts and scripts are arguments of the compiled programs, padded to common shapes: `follow` gives a model other ones
    without compiling anything.

    Args:
        texts: token ids of prompt and continuation, one row per request (or one for all).
        script: accepted lengths, each in 0..num_drafts.
        num_drafts: γ.
        vocab_size: to corrupt tokens within the vocabulary.
    """

    name = "scripted"

    def __init__(self, texts: Sequence[Sequence[int]], script: Sequence[int], *, num_drafts: int, vocab_size: int):
        self.num_drafts = num_drafts
        self.vocab_size = vocab_size
        self.leaves = self.follow(texts, script)

    def follow(self, texts: Sequence[Sequence[int]], script: Sequence[int]) -> Leaves:
        """Leaves for other texts and another script, for `Programs.set_draft_leaves`."""
        if not script or any(not 0 <= length <= self.num_drafts for length in script):
            raise ValueError(f"script={list(script)} must hold lengths in 0..{self.num_drafts}")
        padded = _padded(texts, 512), _padded([script], 64)[0]
        return (*(jnp.asarray(array) for array in padded), jnp.asarray(len(script), jnp.int32))

    def init_state(self, decoder: Decoder, batch: int, capacity: int) -> Int[Array, ""]:
        """Rounds so far."""
        return jnp.zeros((), jnp.int32)

    def propose(
        self, leaves: Leaves, decoder: Decoder, state: Int[Array, ""], view: DraftView
    ) -> tuple[Int[Array, "B G"], Any]:
        """The scripted block of this round."""
        texts, script, script_len = leaves
        offsets = jnp.arange(self.num_drafts, dtype=jnp.int32)[None, :]
        texts = jnp.broadcast_to(texts, (view.tokens.shape[0], texts.shape[1]))
        true = jnp.take_along_axis(texts, view.length[:, None] + offsets, axis=1, mode="clip")
        accepted = script[state % script_len]
        return jnp.where(offsets == accepted, (true + 1) % self.vocab_size, true), state + 1


class NoisyDrafter(StatelessDrafter):
    """Samples its proposals from fixed logits `[V, V]` of the last token, with the very noise of the draw.

    The worst case for independence between draft and verification (bug case C05): the law must still be exact.
    """

    name = "noisy"

    def __init__(self, logits: Float[Array, "V V"], *, num_drafts: int):
        self.num_drafts = num_drafts
        self.leaves = (jnp.asarray(logits, jnp.float32),)

    def propose(self, leaves: Leaves, decoder: Decoder, state: Any, view: DraftView) -> tuple[Int[Array, "B G"], Any]:
        """Draws left to right."""
        (table,) = leaves
        token = jnp.take_along_axis(view.tokens, view.length[:, None] - 1, axis=1)[:, 0]
        drafts = []
        for offset in range(self.num_drafts):
            noise = position_noise(view.params.key, view.length[:, None] + offset, table.shape[1])[:, 0]
            token = jnp.argmax(table[token] + noise, axis=-1).astype(jnp.int32)
            drafts.append(token)
        return jnp.stack(drafts, axis=1), state


def _padded(rows: Sequence[Sequence[int]], multiple: int) -> np.ndarray:
    """Rows filled with zeros to a common length, a multiple of `multiple`."""
    width = -(-max(len(row) for row in rows) // multiple) * multiple
    return np.array([[*row, *[0] * (width - len(row))] for row in rows], np.int32)


def random_drafter(vocab_size: int, num_drafts: int, seed: int = 0) -> Callable:
    """A traceable function that proposes uniformly random tokens, different at every length."""

    def propose_random(tokens: Int[Array, "S"], length: Int[Array, ""]) -> Int[Array, "G"]:
        key = jax.random.fold_in(jax.random.key(seed), length)
        return jax.random.randint(key, (num_drafts,), 0, vocab_size)

    return propose_random
