"""Is this text the target's own? Teacher-forces it through the one-token path and tells a near tie from a bug.

In bf16 a block and a single row are summed in different orders, so two nearly equal logits may change places: no bug.
A wrong cache or position gives a token far below the maximum: a bug (bug case C07).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jetspec_jax.decoding.filters import Prefix
from jetspec_jax.decoding.programs import bucket
from jetspec_jax.decoding.row_params import row_params, sampling_spec
from jetspec_jax.decoding.sampling import score
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams

# How far below the maximum a token may be and still count as a tie, in units of the last place of the dtype.
TIE_STEPS = {"bfloat16": 2, "float16": 16, "float32": 128}


@dataclass(frozen=True)
class Difference:
    """A position where the text is not the one-token path's arg-max.

    Attributes:
        position: absolute position; `index`: offset in the generated text.
        token_id: the text's token; `expected_id`: the one-token path's.
        gap_steps: distance of the two scores in units of the last place of the model's dtype.
        is_tie: within tolerance.
    """

    position: int
    index: int
    token_id: int
    expected_id: int
    gap_steps: float
    is_tie: bool


@dataclass(frozen=True)
class LosslessReport:
    """Outcome of a check.

    Attributes:
        num_tokens: tokens checked.
        dtype: of the model.
        tie_steps: tolerance in units of the last place.
        differences: all positions that differ, in order.
    """

    num_tokens: int
    dtype: str
    tie_steps: int
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_lossless(self) -> bool:
        """Whether every difference is a tie."""
        return all(difference.is_tie for difference in self.differences)

    @property
    def verdict(self) -> str:
        """One line for people."""
        if not self.differences:
            return f"lossless: all {self.num_tokens} tokens equal plain decoding"
        first = self.differences[0]
        where = f"first at position {first.position}: {first.token_id} instead of {first.expected_id}"
        if self.is_lossless:
            return (
                f"lossless up to {len(self.differences)} {self.dtype} near ties ({where}, {first.gap_steps:.1f} steps)"
            )
        bug = next(difference for difference in self.differences if not difference.is_tie)
        return (
            f"NOT lossless: at position {bug.position} token {bug.token_id} instead of {bug.expected_id}, "
            f"{bug.gap_steps:.1f} {self.dtype} steps below the maximum (a tie is within {self.tie_steps})"
        )


def check_lossless(
    model: LanguageModel, prompt: Sequence[int], token_ids: Sequence[int], params: SamplingParams
) -> LosslessReport:
    """Feeds prompt and text through the target one token at a time and compares each draw.

    Args:
        model: the target is used, the drafter is not.
        prompt: prompt ids.
        token_ids: generated ids to check.
        params: the options they were generated with; sampling needs the seed.

    Raises:
        ValueError: sampled text without a seed cannot be checked.
    """
    if not params.is_greedy and params.seed is None:
        raise ValueError("sampled text can only be checked with the seed it was generated with")
    dtype = jnp.dtype(model.dtype).name
    report = LosslessReport(len(token_ids), dtype, TIE_STEPS[dtype])
    if len(token_ids) == 0:
        return report
    # Written out here and not taken from the driver: the check must not share the code it checks.
    text = np.array([[*prompt, *token_ids]], np.int32)
    drawn, best_score, own_score = _teacher_force(model, text, len(prompt), params)
    scale = 1.0 if params.is_greedy else params.temperature
    step = jnp.finfo(model.dtype).eps
    for index, expected in enumerate(drawn):
        if expected == token_ids[index]:
            continue
        best = max(abs(float(best_score[index])), 1e-6) * scale
        ulp = float(step) * 2.0 ** np.floor(np.log2(best))
        gap = float(best_score[index] - own_score[index]) * scale / ulp
        is_tie = bool(gap <= report.tie_steps)
        difference = Difference(len(prompt) + index, index, int(token_ids[index]), int(expected), gap, is_tie)
        report.differences.append(difference)
    return report


def _teacher_force(model: LanguageModel, text: np.ndarray, prompt_len: int, params: SamplingParams):
    """Per generated token: the one-token path's draw, its score, and the score of the text's token."""
    spec = sampling_spec([params])
    options = row_params(
        [params],
        eos_token_ids=model.eos_token_ids,
        vocab_size=model.config.vocab_size,
        device=model.device,
    )
    length = text.shape[1]
    padded = np.zeros((1, bucket(length + 1)), np.int32)
    padded[:, :length] = text
    tokens = jax.device_put(padded, model.device)
    prompt_lens = jax.device_put(np.array([prompt_len], np.int32), model.device)

    def one_token(leaves, tokens, cache, options):
        target = model.programs.definition.merge(leaves)
        position = cache.length[0]
        row = jax.lax.dynamic_slice(tokens, (0, position), (1, 1))
        x, _, cache = target(row, cache)
        prefix = Prefix(tokens, cache.length[:, None] + 1, prompt_lens)
        scores: Float[Array, V] = score(target.logits(x), prefix, options, spec)[0][0, 0]
        drawn = jnp.argmax(scores)
        own = jax.lax.dynamic_slice(tokens, (0, position + 1), (1, 1))[0, 0]
        return cache.commit(jnp.ones((1,), jnp.int32)), (drawn, scores[drawn], scores[own])

    step = jax.jit(one_token, donate_argnums=(2,))
    cache = jax.device_put(model.target.init_cache(1, padded.shape[1]), model.device)
    results = []
    for position in range(length - 1):
        cache, result = step(model.programs.target_leaves, tokens, cache, options)
        if position >= prompt_len - 1:
            results.append(result)
    drawn, best, own = (np.array(column) for column in zip(*jax.device_get(results), strict=True))
    return drawn, best, own
