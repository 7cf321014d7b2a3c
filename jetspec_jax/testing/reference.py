"""Drafting once more in plain numpy: whole sequences, dense masks, no cache, no batching, one block at a time.

It follows the handbook (1.3, 7.2 to 7.5) and shares no code with the models it checks; weights are read from their
modules in the layout of checkpoints, [out, in].
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jetspec_jax.drafting_config import RefineConfig
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.layers import Attention, DecoderLayer, RMSNorm
from jetspec_jax.models.target import Target


def _array(param) -> np.ndarray:
    return np.asarray(param[...], np.float64)


def _norm(x: np.ndarray, norm: RMSNorm) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + norm.eps) * _array(norm.scale)


def _rope(x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * theta ** -(np.arange(half) / half)  # [T, 1, half]
    low, high = x[..., :half], x[..., half:]
    return np.concatenate(
        [low * np.cos(angles) - high * np.sin(angles), high * np.cos(angles) + low * np.sin(angles)], axis=-1
    )


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _project(attention: Attention, x: np.ndarray, positions: np.ndarray, theta: float):
    """q [T, N, H], k and v [T, K, H], normalised and rotated."""
    shape = attention.shape
    joint = (x @ _array(attention.qkv.weight).T).reshape(len(x), -1, shape.head_dim)
    q, k, v = np.split(joint, [shape.num_heads, shape.num_heads + shape.num_kv_heads], axis=1)
    if shape.qk_norm:
        q, k = _norm(q, attention.q_norm), _norm(k, attention.k_norm)
    return _rope(q, positions, theta), _rope(k, positions, theta), v


def _layer(
    layer: DecoderLayer,
    x: np.ndarray,
    positions: np.ndarray,
    theta: float,
    *,
    extra: tuple[np.ndarray, np.ndarray] | None = None,
    sees: np.ndarray,
) -> np.ndarray:
    """One layer; `sees [T, extra + T]` says which keys (extra ones first) each row attends to."""
    q, k, v = _project(layer.attention, _norm(x, layer.attention_norm), positions, theta)
    if extra is not None:
        k, v = np.concatenate([extra[0], k]), np.concatenate([extra[1], v])
    groups = layer.attention.shape.num_heads // layer.attention.shape.num_kv_heads
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    scores = np.einsum("qnh,knh->nqk", q, k) / np.sqrt(q.shape[-1])
    weights = _softmax(np.where(sees[None], scores, -np.inf))
    x = x + np.einsum("nqk,knh->qnh", weights, v).reshape(len(x), -1) @ _array(layer.attention.out.weight).T
    gate, up = np.split(_norm(x, layer.mlp_norm) @ _array(layer.mlp.gate_up.weight).T, 2, axis=-1)
    return x + (gate / (1 + np.exp(-gate)) * up) @ _array(layer.mlp.down.weight).T


def _stack(layers: Sequence[DecoderLayer], x: np.ndarray, theta: float) -> np.ndarray:
    """Causal layers over a whole sequence that starts at position 0."""
    positions = np.arange(len(x))
    for layer in layers:
        x = _layer(layer, x, positions, theta, sees=positions[None, :] <= positions[:, None])
    return x


@dataclass(frozen=True)
class ReferenceDrafting:
    """Recomputes blocks from the text alone, at temperature 0.

    Args:
        target, draft, adapter: the modules; causal, shifted, token-input draft.
        refine: J and R.
        num_drafts: γ.
    """

    target: Target
    draft: Draft
    adapter: Adapter
    refine: RefineConfig
    num_drafts: int

    def block_after(
        self, tokens: Sequence[int], noise: Sequence[int], verified: Sequence[int] | None, *, refined: bool = True
    ) -> list[list[int]]:
        """Tokens after each pass of the block that continues `tokens`, the last of them being its anchor.

        Args:
            tokens: the text.
            noise: what unknown rows carry, one token per row (the anchor's is not used).
            verified: if the block was drafted ahead, the tokens that were under verification then (the earlier anchor
                and the accepted drafts, `tokens[n : n + k + 1]`); their states are predicted. None: all are true.
            refined: False for a single pass.
        """
        num_true = len(tokens) - 1 - (0 if verified is None else len(verified))
        embedded, true = self._true_states(tokens[:num_true])
        known = list(tokens[num_true:-1])  # rows under verification, none on the critical path
        anchor = tokens[-1]
        states = np.concatenate([true, self._predicted(embedded, true, known)[num_true:]]) if known else true
        context = [self._inject(layer, states, np.arange(len(states))) for layer in self.draft.layers]
        drafts = self._pass(anchor, [anchor, *noise[1:]], context, len(states), 0, None)
        passes, num_fixed, refreshed = [drafts], 0, None
        for index in range(self.refine.num_passes if refined else 0):
            if index < self.refine.num_refreshes:
                rows = [*known, anchor, *drafts[:-1]]
                predicted = self._predicted(embedded, true, rows)
                proxy = np.argmax(self._logits(predicted), axis=-1)[-self.num_drafts :]
                agreed = num_fixed
                while agreed < self.num_drafts and drafts[agreed] == proxy[agreed]:
                    agreed += 1
                if agreed < self.num_drafts:
                    drafts = [*drafts[:agreed], int(proxy[agreed]), *drafts[agreed + 1 :]]
                num_fixed = min(agreed + 1, self.num_drafts)
                refreshed = predicted[-self.num_drafts :]
            new = self._pass(anchor, [anchor, *drafts[:-1]], context, len(states), num_fixed, refreshed)
            drafts = [*drafts[:num_fixed], *new[num_fixed:]]
            passes.append(drafts)
        return passes

    def _true_states(self, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Embeddings [T, D] and tapped states [T, M, D] of a text that the target has run."""
        config = self.target.config
        embedded = x = _array(self.target.embed.weight)[np.asarray(tokens, int)]
        taps = []
        for index in range(config.taps[-1] + 1):
            x = _stack([self.target.layers[index]], x, config.rope_of(index).theta)
            if index in config.taps:
                taps.append(x)
        return embedded, np.stack(taps, axis=1)

    def _predicted(self, embedded: np.ndarray, true: np.ndarray, rows: Sequence[int]) -> np.ndarray:
        """Tapped states [T + rows, M, D]: each module reads true states before the rows and predictions in them."""
        rows_in = _array(self.target.embed.weight)[np.asarray(rows, int)]
        outputs = []
        for index, module in enumerate(self.adapter.chain):
            inputs = embedded if index == 0 else true[:, index - 1]
            out = _stack(module, np.concatenate([inputs, rows_in]), self.adapter.config.rope.theta)
            rows_in = out[len(inputs) :]
            outputs.append(np.concatenate([true[:, index], rows_in]))
        return np.stack(outputs, axis=1)

    def _logits(self, states: np.ndarray) -> np.ndarray:
        """The top of the target over a whole sequence of its deepest tapped states."""
        config, x = self.target.config, states[:, -1]
        for index in range(config.taps[-1] + 1, config.num_layers):
            x = _stack([self.target.layers[index]], x, config.rope_of(index).theta)
        return self._head(_norm(x, self.target.norm))

    def _head(self, hidden: np.ndarray) -> np.ndarray:
        target = self.target
        return hidden @ _array((target.embed if target.lm_head is None else target.lm_head).weight).T

    def _inject(self, layer: DecoderLayer, states: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        features = states.reshape(len(states), -1) @ _array(self.draft.fc.weight).T
        features = _norm(features, self.draft.hidden_norm)
        return _project(layer.attention, features, positions, self.draft.config.rope.theta)[1:]

    def _pass(self, anchor: int, rows: Sequence[int], context, start: int, num_fixed: int, refreshed) -> list[int]:
        """One pass in the effective-anchor form; the arg-max of every row."""
        rows = np.asarray(rows, int)[: self.num_drafts]
        offsets, theta = np.arange(self.num_drafts), self.draft.config.rope.theta
        x = _array(self.target.embed.weight)[rows]
        is_live = offsets >= num_fixed
        causal = offsets[None, :] <= offsets[:, None]
        # Rows before the effective anchor are ignored; they look at themselves to stay finite.
        own = causal & (is_live[None, :] | ~is_live[:, None])
        for layer, keys_values in zip(self.draft.layers, context, strict=True):
            extra, sees = keys_values, np.ones((len(rows), len(keys_values[0])), bool)
            if num_fixed and refreshed is not None:
                more = self._inject(layer, refreshed[:num_fixed], start + np.arange(num_fixed))
                extra = tuple(np.concatenate(pair) for pair in zip(keys_values, more, strict=True))
                sees = np.concatenate([sees, np.repeat(is_live[:, None], len(more[0]), axis=1)], axis=1)
            sees = np.concatenate([sees, own], axis=1)
            x = _layer(layer, x, start + offsets, theta, extra=extra, sees=sees)
        return [int(token) for token in np.argmax(self._head(_norm(x, self.draft.norm)), axis=-1)]
