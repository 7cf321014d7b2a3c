"""Predicts what the target would compute for rows it has not run: adapter and decoder as one replaceable part."""

from copy import copy
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float, Int

from jetspec_jax.config import DraftConfig
from jetspec_jax.decoding.state import ContextRows
from jetspec_jax.drafting_config import DraftWeights
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.cache import KVCache
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.functional import Leaves, place, split
from jetspec_jax.models.quantize import quantized
from jetspec_jax.models.stack import Segment


@runtime_checkable
class Predictor(Protocol):
    """Tapped states and next-token logits of unverified rows. All methods but the first two run inside traces.

    The state holds true rows below its length and, after `foresee`, predicted ones above it.
    """

    def place(self, device: jax.Device) -> Leaves:
        """The weights on a device."""
        ...

    def init_state(self, decoder: Decoder, batch: int, capacity: int) -> Any:
        """Empty caches."""
        ...

    def observe(self, leaves: Leaves, decoder: Decoder, state: Any, rows: ContextRows) -> Any:
        """Takes in rows with true states."""
        ...

    def foresee(
        self, leaves: Leaves, decoder: Decoder, state: Any, rows: ContextRows, block: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T M D"], Float[Array, "B T V"], Any]:
        """Takes in rows and, in the same read of the weights, predicts the block that follows the kept ones."""
        ...

    def predict(
        self, leaves: Leaves, decoder: Decoder, state: Any, blocks: Int[Array, "B R T"], start: Int[Array, "B R"]
    ) -> tuple[Float[Array, "B R T M D"], Float[Array, "B R T V"]]:
        """Predicts blocks that stand at `start` and see everything below it; nothing is kept."""
        ...


class AdapterPredictor:
    """The trained way: the adapter predicts the tapped states, the frozen top of the target their logits.

    Attributes:
        adapter: as given.
        weights: the form in which its weights are read.
    """

    def __init__(self, adapter: Adapter, weights: DraftWeights = "given"):
        self.adapter, self.weights = adapter, weights
        self._definition, self._leaves = split(adapter if weights == "given" else quantized(adapter, weights))

    def merge(self, leaves: Leaves) -> Adapter:
        """The adapter over placed leaves."""
        return self._definition.merge(leaves)

    def with_weights(self, weights: DraftWeights) -> "AdapterPredictor":
        """The same with weights read in another form."""
        if weights == self.weights:
            return self
        changed = copy(self)
        AdapterPredictor.__init__(changed, self.adapter, weights)  # a subclass has more than that to keep
        return changed

    def place(self, device: jax.Device) -> Leaves:
        """The adapter's weights on a device; the decoder's belong to the target."""
        return place(self._leaves, device)

    def init_state(self, decoder: Decoder, batch: int, capacity: int) -> tuple[KVCache, KVCache]:
        """Empty caches of adapter and decoder layers."""
        adapter = self.merge(self._leaves)
        return adapter.init_cache(batch, capacity), decoder.init_cache(batch, capacity)

    def observe(
        self, leaves: Leaves, decoder: Decoder, state: tuple[KVCache, KVCache], rows: ContextRows
    ) -> tuple[KVCache, KVCache]:
        """Catches up without predicting anything."""
        return self._run(leaves, decoder, state, rows, None)[2]

    def foresee(
        self,
        leaves: Leaves,
        decoder: Decoder,
        state: tuple[KVCache, KVCache],
        rows: ContextRows,
        block: Int[Array, "B T"],
    ) -> tuple[Float[Array, "B T M D"], Float[Array, "B T V"], tuple[KVCache, KVCache]]:
        """Catch-up and foresight in one read of the weights."""
        taps, x, state = self._run(leaves, decoder, state, rows, block)
        return taps, decoder.logits(x), state

    def predict(
        self,
        leaves: Leaves,
        decoder: Decoder,
        state: tuple[KVCache, KVCache],
        blocks: Int[Array, "B R T"],
        start: Int[Array, "B R"],
    ) -> tuple[Float[Array, "B R T M D"], Float[Array, "B R T V"]]:
        """Adapter, then decoder, over every block."""
        taps, hidden = self.predict_hidden(leaves, decoder, state, blocks, start)
        return taps, decoder.head(hidden)

    def predict_hidden(
        self,
        leaves: Leaves,
        decoder: Decoder,
        state: tuple[KVCache, KVCache],
        blocks: Int[Array, "B R T"],
        start: Int[Array, "B R"],
    ) -> tuple[Float[Array, "B R T M D"], Float[Array, "B R T D"]]:
        """The same, up to what the head reads."""
        adapter_cache, decoder_cache = state
        taps = self.merge(leaves).predict(decoder.embed(blocks), adapter_cache, start)
        return taps, decoder.hidden(taps[:, :, :, -1].astype(decoder.dtype), decoder_cache, start)

    def _run(self, leaves, decoder: Decoder, state, rows: ContextRows, block):
        adapter = self.merge(leaves)
        adapter_cache, decoder_cache = state
        end = rows.start + rows.num_kept
        segment = None if block is None else Segment(decoder.embed(block), end)
        taps, adapter_cache = adapter.extend(decoder.embed(rows.tokens), rows.taps, rows.start, adapter_cache, segment)
        segments = [Segment(rows.taps[:, :, -1].astype(decoder.dtype), rows.start)]
        if taps is not None:
            segments.append(Segment(taps[:, :, -1].astype(decoder.dtype), end))
        x, decoder_cache = decoder.extend(segments, decoder_cache)
        return taps, x, (adapter_cache.with_length(end), decoder_cache.with_length(end))


def as_predictor(adapter: Any, draft: DraftConfig, weights: DraftWeights = "given") -> Predictor | None:
    """A predictor for a draft from an `Adapter`, a `Predictor` or None; `weights` says how an adapter's are read.

    Raises:
        ValueError: something else, or an adapter of another number or width of taps.
    """
    if isinstance(adapter, AdapterPredictor):
        return adapter.with_weights(weights)
    if isinstance(adapter, Adapter):
        shape = (len(adapter.chain), adapter.config.shape.hidden_size)
        if shape != (draft.num_taps, draft.shape.hidden_size):
            raise ValueError(
                f"the draft reads {draft.num_taps} taps of width {draft.shape.hidden_size}, "
                f"the adapter predicts {shape[0]} of width {shape[1]}"
            )
        return AdapterPredictor(adapter, weights)
    if adapter is not None and not isinstance(adapter, Predictor):
        raise ValueError(f"adapter must be an Adapter or a Predictor, got {type(adapter).__name__}")
    return adapter
