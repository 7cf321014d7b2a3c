"""What a drafter is: pure functions that propose tokens and learn from what the target has processed.

Nothing a drafter does can change the text, only how many tokens a round commits. All methods but `place` run inside
traces; a drafter's own attributes are static.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Int

from jetspec_jax.decoding.proposal import Proposal
from jetspec_jax.decoding.row_params import RowParams, SamplingSpec
from jetspec_jax.decoding.state import ContextRows
from jetspec_jax.models.decoder import Decoder
from jetspec_jax.models.functional import Leaves


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DraftView:
    """What a drafter may look at when it proposes.

    Attributes:
        tokens: [B, S], committed tokens up to `length`, garbage after it.
        length: [B], committed tokens; the anchor is the last of them, drafts start at position `length`.
        params: sampling options, with the keys of the position noise.
        spec: their static part.
    """

    tokens: Int[Array, "B S"]
    length: Int[Array, "B"]
    params: RowParams
    spec: SamplingSpec = field(metadata={"static": True})


@runtime_checkable
class Drafter(Protocol):
    """Proposes `num_drafts` tokens a round.

    Attributes:
        name: for people and records.
        num_drafts: γ, static; 0 is plain decoding.
        max_len: longest context in tokens the drafter was made for, None for any. Beyond it nothing is proposed.
    """

    name: str
    num_drafts: int
    max_len: int | None

    def place(self, device: jax.Device) -> Leaves:
        """Arrays the methods need (weights, scripts) on a device; they are passed back as `leaves`, not baked in."""
        ...

    def init_state(self, decoder: Decoder, batch: int, capacity: int) -> Any:
        """State for a batch whose buffers have `capacity` slots; traced, so large arrays belong in `place`."""
        ...

    def propose(
        self, leaves: Leaves, decoder: Decoder, state: Any, view: DraftView
    ) -> tuple[Int[Array, "B G"] | Proposal, Any]:
        """Proposals for positions `view.length ..`, `NO_TOKEN` for none, and the new state.

        `decoder` is the part of the target that a drafter may use: embedding, top layers, head.
        """
        ...

    def observe(self, leaves: Leaves, decoder: Decoder, state: Any, rows: ContextRows) -> Any:
        """Learns from T rows the target has processed; called for prompt chunks and after each verification."""
        ...


class StatelessDrafter:
    """Base of drafters that look at the committed tokens only.

    Attributes:
        leaves: constant arrays; none by default.
    """

    max_len: int | None = None
    leaves: Leaves = ()

    def place(self, device: jax.Device) -> Leaves:
        """The constant arrays on the device."""
        return jax.device_put(self.leaves, device)

    def init_state(self, decoder: Decoder, batch: int, capacity: int) -> Any:
        """No state."""
        return ()

    def observe(self, leaves: Leaves, decoder: Decoder, state: Any, rows: ContextRows) -> Any:
        """Nothing to learn."""
        return state
