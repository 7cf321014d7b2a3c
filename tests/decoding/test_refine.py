"""Refinement of blocks, on scripted passes and refreshes; `test_draft_side.py` has a real draft."""

from collections.abc import Sequence
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_jax.decoding.refine import RENOISE, Guess, refine
from jetspec_jax.drafting_config import RefineConfig

# What the scripted authors think of a token: who wrote it can be read from its log-probability.
DRAFT_THINKS, DECODER_THINKS = -1.0, -2.0


def run_script(
    config: RefineConfig | str, drafts: Sequence, proxies: Sequence = (), *, with_logprobs: bool = False
) -> SimpleNamespace:
    """Refines with passes and refreshes that answer from scripts [call, *rows, G], rows being nothing or [B, R].

    Returns:
        The proposal's arrays, and what each pass (`asked`) and each refresh (`verified`) was given.
    """
    config = RefineConfig.parse(config) if isinstance(config, str) else config
    asked, verified = [], []
    rows = np.shape(drafts)[1:-1]

    def guess(script, calls: list, thinks: float, states=None) -> Guess:
        tokens = jnp.asarray(script[len(calls) - 1], jnp.int32).reshape(*(rows or (1, 1)), -1)
        return Guess(tokens, thinks - tokens / 1000 if with_logprobs else None, states)

    def draft_pass(tokens, num_fixed, states) -> Guess:
        asked.append((tokens, num_fixed, states))
        return guess(drafts, asked, DRAFT_THINKS)

    def refresh(tokens) -> Guess:
        verified.append(tokens)
        return guess(proxies, verified, DECODER_THINKS, f"states of refresh {len(verified)}")

    proposal = refine(draft_pass, refresh if len(proxies) else None, config)

    def plain(tree):
        return jax.tree.map(lambda x: x if isinstance(x, str) else np.asarray(x if rows else x[0, 0]).tolist(), tree)

    return SimpleNamespace(
        tokens=plain(proposal.tokens),
        logprobs=plain(proposal.logprobs),
        is_hit=plain(proposal.is_hit),
        **{name: plain(getattr(proposal.trace, name)) for name in ("passes", "num_fixed", "proxies")},
        asked=plain(asked),
        verified=plain(verified),
    )


def test_figure_4_of_the_paper():
    """γ = 7: agreement at 1..3, replacement at 4; the next refresh agrees at 5, 6 and fixes 7."""
    drafts = [[1, 2, 3, 40, 50, 60, 70], [9, 9, 9, 9, 5, 6, 71], [9] * 7]
    proxies = [[1, 2, 3, 4, 90, 91, 92], [1, 2, 3, 4, 5, 6, 7]]
    out = run_script("J2-R2", drafts, proxies)
    assert out.passes == [[1, 2, 3, 40, 50, 60, 70], [1, 2, 3, 4, 5, 6, 71], [1, 2, 3, 4, 5, 6, 7]]
    assert out.num_fixed == [0, 4, 7]
    assert (out.tokens, out.proxies, out.is_hit) == (out.passes[-1], proxies, False)
    assert out.verified == out.passes[:2]
    assert out.asked == [
        (None, None, None),
        ([1, 2, 3, 4, 50, 60, 70], 4, "states of refresh 1"),
        ([1, 2, 3, 4, 5, 6, 7], 7, "states of refresh 2"),
    ]


def test_passes_alone_fix_nothing():
    out = run_script("J2", [[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert out.passes == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert (out.tokens, out.num_fixed, out.proxies) == ([7, 8, 9], [0, 0, 0], [])
    assert out.asked == [(None, None, None), ([1, 2, 3], 0, None), ([4, 5, 6], 0, None)]


def test_one_pass_is_the_draft():
    out = run_script("J0", [[1, 2, 3]])
    assert (out.tokens, out.passes, out.num_fixed, out.logprobs) == ([1, 2, 3], [[1, 2, 3]], [0], None)


def test_agreement_on_everything_changes_nothing():
    out = run_script("J2-R2", [[1, 2, 3], [9, 9, 9], [8, 8, 8]], [[1, 2, 3], [4, 4, 4]])
    assert (out.passes, out.num_fixed) == ([[1, 2, 3]] * 3, [0, 3, 3])


def test_what_is_fixed_stays_whatever_the_decoder_thinks_later():
    out = run_script("J2-R2", [[1, 2, 3], [9, 5, 6], [9, 9, 8]], [[1, 4, 3], [7, 7, 6]])
    # The second refresh objects to 1 and 4, which are fixed; 6 agrees.
    assert (out.passes, out.num_fixed) == ([[1, 2, 3], [1, 4, 6], [1, 4, 6]], [0, 2, 3])


def test_refresh_alone_fixes_agreement_only():
    config = RefineConfig(num_passes=2, num_refreshes=2, replace_anchor=False)
    out = run_script(config, [[1, 2, 3], [9, 5, 6], [9, 9, 7]], [[1, 4, 3], [1, 5, 8]])
    assert (out.passes, out.num_fixed) == ([[1, 2, 3], [1, 5, 6], [1, 5, 7]], [0, 1, 2])


def test_passes_after_the_last_refresh_keep_what_it_said():
    out = run_script("J3-R1", [[1, 2, 3], [9, 5, 6], [9, 7, 8], [9, 3, 2]], [[4, 2, 3]])
    assert out.passes == [[1, 2, 3], [4, 5, 6], [4, 7, 8], [4, 3, 2]]
    assert (out.num_fixed, len(out.verified)) == ([0, 1, 1, 1], 1)
    assert out.asked[1:] == [([4, *rest], 1, "states of refresh 1") for rest in ([2, 3], [5, 6], [7, 8])]


def test_renoised_rows_ask_for_noise_after_a_refresh_only():
    config = RefineConfig(num_passes=2, num_refreshes=1, rewritten="renoise")
    out = run_script(config, [[1, 2, 3], [9, 5, 6], [9, 7, 8]], [[4, 2, 3]])
    assert [tokens for tokens, *_ in out.asked] == [None, [4, RENOISE, RENOISE], [4, 5, 6]]
    assert out.passes == [[1, 2, 3], [4, 5, 6], [4, 7, 8]]


def test_log_probability_is_its_authors():
    out = run_script("J1-R1", [[1, 2, 3], [9, 5, 6]], [[1, 4, 3]], with_logprobs=True)
    # 1 by the draft's first pass, 4 by the decoder, 6 by the second pass.
    assert out.tokens == [1, 4, 6]
    np.testing.assert_allclose(out.logprobs, [DRAFT_THINKS - 0.001, DECODER_THINKS - 0.004, DRAFT_THINKS - 0.006])


def reference(config: RefineConfig, drafts, proxies) -> tuple[list, list, list]:
    """One block with plain lists: passes, num_fixed, and whether the decoder wrote each token."""
    tokens, fixed, size = list(drafts[0]), 0, len(drafts[0])
    passes, num_fixed, is_decoders = [list(tokens)], [0], [False] * size
    for index in range(config.num_passes):
        if index < config.num_refreshes:
            while fixed < size and tokens[fixed] == proxies[index][fixed]:
                fixed += 1
            if config.replace_anchor and fixed < size:
                tokens[fixed], is_decoders[fixed] = proxies[index][fixed], True
                fixed += 1
        tokens[fixed:] = drafts[index + 1][fixed:]
        passes.append(list(tokens))
        num_fixed.append(fixed)
    return passes, num_fixed, is_decoders


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_is_the_rule_in_plain_python(data):
    size, num_passes = 4, 3
    config = RefineConfig(
        num_passes=num_passes,
        num_refreshes=data.draw(st.integers(1, num_passes)),
        replace_anchor=data.draw(st.booleans()),
    )
    tables = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).integers(0, 2, (7, 2, 2, size)))
    drafts, proxies = np.split(data.draw(tables), [num_passes + 1])
    out = run_script(config, drafts, proxies, with_logprobs=True)
    for b, r in np.ndindex(2, 2):
        passes, num_fixed, is_decoders = reference(config, drafts[:, b, r].tolist(), proxies[:, b, r].tolist())
        assert (out.passes[b][r], out.num_fixed[b][r], out.tokens[b][r]) == (passes, num_fixed, passes[-1])
        assert [value < DECODER_THINKS + 0.5 for value in out.logprobs[b][r]] == is_decoders
        assert num_fixed == sorted(num_fixed)
        for before, after, fixed in zip(passes, passes[1:], num_fixed, strict=False):
            assert before[:fixed] == after[:fixed]


@pytest.mark.parametrize(
    ("name", "counts"),
    [("J0", (0, 0)), ("J3", (3, 0)), ("J1-R1", (1, 1)), ("J3-R1", (3, 1)), ("J12-R3", (12, 3))],
)
def test_names_of_refinements(name, counts):
    config = RefineConfig.parse(name)
    assert (config.num_passes, config.num_refreshes) == counts
    assert config.name == name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: RefineConfig.parse("J1-R2"), "J1-R2: need 0 <= refreshes <= passes", id="more-refreshes"),
        pytest.param(lambda: RefineConfig.parse("J-1"), "'J-1' is not of the form", id="negative"),
        pytest.param(lambda: RefineConfig.parse("j3"), "'j3' is not of the form", id="small-letter"),
        pytest.param(lambda: RefineConfig.parse("J3-R3 "), "'J3-R3 ' is not of the form", id="space"),
        pytest.param(lambda: run_script("J1-R1", [[1], [2]]), "J1-R1 needs predicted target states", id="no-adapter"),
    ],
)
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()
