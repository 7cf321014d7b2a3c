"""Fixed outcome caches: how many anchors F_k each acceptance length k gets when a law P(k) is all that is known.

The surrogate of handbook 6.4 says that F_k anchors of length k hold the right one with probability 1 - F_k^-ρ.
Everything here is host arithmetic on a handful of numbers, done once per configuration; per-round selection is
`outcomes.py`.
"""

import numpy as np
from jaxtyping import Bool, Float, Int


def length_prior(acceptance_rate: float, num_drafts: int) -> Float[np.ndarray, "T"]:
    """P(k) of k accepted drafts when each is accepted with the same probability: α^k (1 - α), and α^γ for k = γ.

    Example: α = .6, γ = 4 -> [.4, .24, .144, .0864, .1296].
    """
    if not 0 < acceptance_rate < 1 or num_drafts < 0:
        raise ValueError(f"need 0 < acceptance_rate < 1 and num_drafts >= 0, got {acceptance_rate}, {num_drafts}")
    probs = acceptance_rate ** np.arange(num_drafts + 1)
    probs[:-1] *= 1 - acceptance_rate
    return probs


def surrogate_hit_rate(
    probs: Float[np.ndarray, "T"], fan_out: Float[np.ndarray, "T"] | Int[np.ndarray, "T"], power: float
) -> float:
    """Σ P(k) (1 - F_k^-ρ) over the lengths with F_k > 0; a length without anchors is never hit."""
    _check(probs, power)
    used = fan_out > 0
    return float(np.sum(probs[used] * (1 - fan_out[used] ** -float(power))))


def geometric_fan_out(
    probs: Float[np.ndarray, "T"], budget: int, power: float, active: Bool[np.ndarray, "T"] | None = None
) -> Float[np.ndarray, "T"]:
    """The real F_k that maximise the surrogate on the active lengths (all by default) with Σ F_k = budget.

    F_k ∝ P(k)^(1/(1+ρ)): under `length_prior` a geometric series whose last term is capped. Inactive lengths get 0.
    """
    _check(probs, power)
    weights = probs ** (1 / (1 + power))
    if active is not None:
        weights = np.where(active, weights, 0.0)
    if budget <= 0 or not weights.sum() > 0:
        raise ValueError(f"need budget > 0 and an active length with P(k) > 0, got {budget=}, {probs=}, {active=}")
    return budget * weights / weights.sum()


def best_active_set(probs: Float[np.ndarray, "T"], budget: int, power: float) -> Bool[np.ndarray, "T"]:
    """The active lengths on which `geometric_fan_out` reaches the largest surrogate.

    With w = P^(1/(1+ρ)) and W the sum of w over the set, the optimum on a set is Σ P - budget^-ρ W^(1+ρ). As a function
    of one w it first falls, then rises: a length that is worth having would be worth more if it were likelier. So the
    best set holds the m likeliest lengths for some m, and T sets are compared instead of 2^T.
    """
    _check(probs, power)
    if budget <= 0:
        raise ValueError(f"need budget > 0, got {budget}")
    likeliest_first = np.argsort(-probs, kind="stable")
    ranked = probs[likeliest_first]
    weight = np.cumsum(ranked ** (1 / (1 + power)))
    values = np.cumsum(ranked) - float(budget) ** -power * weight ** (1 + power)
    active = np.zeros(probs.shape, bool)
    active[likeliest_first[: np.argmax(values) + 1]] = True
    return active


def integer_fan_out(probs: Float[np.ndarray, "T"], budget: int, power: float) -> Int[np.ndarray, "T"]:
    """The whole numbers F_k that maximise the surrogate with Σ F_k = budget.

    The first anchor of a length is worth nothing in the surrogate, so greedy gains alone never open a length. Once it
    is open the gains fall with F_k, and greedy is exact. Open are the m likeliest lengths for some m (giving the larger
    F to the likelier length is never worse), and every m is tried.
    """
    _check(probs, power)
    if budget < 1:
        raise ValueError(f"need budget >= 1, got {budget}")
    likeliest_first = np.argsort(-probs, kind="stable")
    steps = np.arange(1, budget + 1, dtype=np.float64)
    gains = probs[likeliest_first, None] * (steps**-power - (steps + 1) ** -power)  # of going from F to F + 1

    best, best_value = np.zeros(probs.shape, np.int64), -np.inf
    for num_open in range(1, min(len(probs), budget) + 1):
        taken = np.argsort(-gains[:num_open], axis=None, kind="stable")[: budget - num_open]
        fan_out = np.zeros(probs.shape, np.int64)
        fan_out[likeliest_first[:num_open]] = 1 + np.bincount(taken // budget, minlength=num_open)
        value = surrogate_hit_rate(probs, fan_out, power)
        if value > best_value:
            best, best_value = fan_out, value
    return best


def _check(probs: Float[np.ndarray, "T"], power: float) -> None:
    if not np.all(probs >= 0) or not power > 0:
        raise ValueError(f"need probabilities >= 0 and power > 0, got {probs=}, {power=}")
