"""Stand-ins for trained weights: a predictor that is the target itself, and a draft that knows the text.

They make every path of JetSpec++ happen on purpose: with a perfect predictor outcome scores are exact, with a peeking
draft blocks are right except where they shall be wrong.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jetspec_jax.decoding.draft_side import DraftSide
from jetspec_jax.decoding.state import ContextRows
from jetspec_jax.drafters.jetspecpp import JetSpecPP
from jetspec_jax.drafters.predictor import AdapterPredictor
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.functional import Leaves, place, split
from jetspec_jax.models.target import Target


class KnownOutcomes(AdapterPredictor):
    """Adapter and decoder that are certain of every verification's outcome; what is drafted for it is their own.

    With one outcome a round the prepared block is always the right one, drafted from predicted states alone: what it
    commits, against drafting on the critical path, is what the predicted states are worth.

    Args:
        adapter: of any quality.
        texts: as for `PeekingJetSpecPP`.
    """

    def __init__(self, adapter: Adapter, texts: Sequence[Sequence[int]]):
        super().__init__(adapter)
        self.texts = _padded(texts)

    def foresee(self, leaves, decoder, state, rows, block):
        """The block's states from the adapter, its logits from the text."""
        taps, logits, state = super().foresee(leaves, decoder, state, rows, block)
        first = rows.start + rows.num_kept + 1
        return taps, self._certain(logits, first[:, None] + jnp.arange(block.shape[1], dtype=jnp.int32)[None]), state

    def _certain(self, logits: Float[Array, "B *rows V"], positions: Int[Array, "B *rows"]):
        return 50.0 * jax.nn.one_hot(_peek(self.texts, positions), logits.shape[-1]) + _TRACE_OF_THE_REAL * logits


class PeekingPredictor(KnownOutcomes):
    """Adapter and decoder at their full cost, with logits that are certain of the true continuation everywhere."""

    def predict(self, leaves, decoder, state, blocks, start):
        """The same for blocks of outcomes."""
        taps, logits = super().predict(leaves, decoder, state, blocks, start)
        offsets = jnp.arange(1, blocks.shape[2] + 1, dtype=jnp.int32)[None, None]
        return taps, self._certain(logits, start[:, :, None] + offsets)


def _padded(texts: Sequence[Sequence[int]]) -> np.ndarray:
    width = max(len(text) for text in texts)
    return np.array([[*text, *[0] * (width - len(text))] for text in texts], np.int32)


class OraclePredictor:
    """A `Predictor` that runs the whole target: as right, and as expensive, as the verification itself."""

    def __init__(self, target: Target):
        self._definition, self._leaves = split(target)

    def place(self, device: jax.Device) -> Leaves:
        """The target's weights."""
        return place(self._leaves, device)

    def init_state(self, decoder: Decoder, batch: int, capacity: int) -> KVCache:
        """An empty cache of the target."""
        return self._definition.merge(self._leaves).init_cache(batch, capacity)

    def observe(self, leaves: Leaves, decoder: Decoder, state: KVCache, rows: ContextRows) -> KVCache:
        """Runs the rows again; their true states are not even looked at."""
        _, _, state = self._definition.merge(leaves)(rows.tokens, state.with_length(rows.start))
        return state.commit(rows.num_kept)

    def foresee(
        self, leaves: Leaves, decoder: Decoder, state: KVCache, rows: ContextRows, block: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T M D"], Float[Array, "B T V"], KVCache]:
        """What the verification of the block will compute."""
        target = self._definition.merge(leaves)
        state = self.observe(leaves, decoder, state, rows)
        x, taps, state = target(block, state)
        return taps, target.logits(x), state

    def predict(
        self, leaves: Leaves, decoder: Decoder, state: KVCache, blocks: Int[Array, "B R T"], start: Int[Array, "B R"]
    ) -> tuple[Float[Array, "B R T M D"], Float[Array, "B R T V"]]:
        """Each block on its own copy of the cache."""
        target = self._definition.merge(leaves)
        copies = jax.tree.map(lambda rows: jnp.repeat(rows, blocks.shape[1], axis=0), state)
        flat = blocks.reshape(-1, blocks.shape[2])
        x, taps, _ = target(flat, copies.with_length(start.reshape(-1)))
        return taps.reshape(*blocks.shape, *taps.shape[2:]), target.logits(x).reshape(*blocks.shape, -1)


def _peek(table: np.ndarray, positions: Int[Array, "B *rows"]) -> jax.Array:
    """`table[b, position]`; a table of one row serves all requests."""
    table = jnp.broadcast_to(jnp.asarray(table), (positions.shape[0], table.shape[1]))
    return jax.vmap(lambda row, at: jnp.take(row, at, mode="clip"))(table, positions)


# Keeps a network's own logits in the program, and so its cost, without letting them decide anything.
_TRACE_OF_THE_REAL = 1e-6


class _PeekingSide(DraftSide):
    """Logits that are certain of the true continuation, or of a wrong token at the chosen positions."""

    texts: np.ndarray  # [rows, width]
    is_wrong: np.ndarray  # [rows, width]
    runs_draft: bool

    def draft_logits(self, rows, start, num_fixed, states, config) -> Float[Array, "B R G V"]:
        vocab_size = self.decoder.config.vocab_size
        offsets = jnp.arange(1, self.num_drafts + 1, dtype=jnp.int32)
        positions = start[:, :, None] + offsets[None, None, :]
        true, is_wrong = _peek(self.texts, positions), _peek(self.is_wrong, positions)
        logits = 50.0 * jax.nn.one_hot(jnp.where(is_wrong, (true + 1) % vocab_size, true), vocab_size)
        if not self.runs_draft:
            return logits
        return logits + _TRACE_OF_THE_REAL * super().draft_logits(rows, start, num_fixed, states, config)


class PeekingJetSpecPP(JetSpecPP):
    """JetSpec++ whose draft knows the texts and is wrong at chosen positions.

    Args:
        texts: token ids of prompt and continuation, one row per request (or one for all).
        wrong_at: absolute positions where it errs; None errs at about one position in `period`.
        period: see `wrong_at`; 1 is always.
        runs_draft: run the draft network too, for its cost (replayed acceptance in benchmarks).
        **options: as for `JetSpecPP`.
    """

    def __init__(
        self,
        *args: Any,
        texts: Sequence[Sequence[int]],
        wrong_at: Sequence[int] | None = None,
        period: int = 5,
        runs_draft: bool = False,
        **options: Any,
    ):
        super().__init__(*args, **options)
        rows = _padded(texts)
        positions = np.arange(rows.shape[1])
        # Any pattern will do that neither block length nor acceptance length divides evenly.
        pattern = (positions * positions + positions // 3) % period == 0
        is_wrong = pattern if wrong_at is None else np.isin(positions, np.asarray(wrong_at, int))
        self.side_type = type(
            "PeekingSide", (_PeekingSide,), {"texts": rows, "is_wrong": is_wrong[None], "runs_draft": runs_draft}
        )
