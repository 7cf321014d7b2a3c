"""What `drafter=` accepts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jetspec_jax.drafters import (
    AutoregressiveDrafter,
    CallableDrafter,
    Drafter,
    JetSpecPP,
    NgramDrafter,
    as_drafter,
)
from jetspec_jax.drafters.jetspecpp import PLAIN_PASS
from jetspec_jax.drafting_config import DraftingConfig
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.testing import NoisyDrafter, ScriptedDrafter, counting_target, random_drafter, tiny_config


def drafter_of(spec, num_drafts=None, drafting=None) -> Drafter:
    options = {"num_drafts": num_drafts, "drafting": drafting}
    return as_drafter(spec, target=tiny_config(), dtype=jnp.dtype("float32"), **options)


@pytest.mark.parametrize(
    ("spec", "num_drafts", "kind", "expected"),
    [
        pytest.param(None, None, AutoregressiveDrafter, 0, id="none"),
        pytest.param("autoregressive", None, AutoregressiveDrafter, 0, id="name-of-plain"),
        pytest.param("ngram", None, NgramDrafter, 8, id="default-number"),
        pytest.param("ngram", 3, NgramDrafter, 3, id="chosen-number"),
        pytest.param("auto", None, NgramDrafter, 8, id="auto-without-weights"),
        pytest.param("auto", 0, AutoregressiveDrafter, 0, id="I02-gamma-0-is-plain-for-auto"),
        pytest.param("parallel", 5, JetSpecPP, 5, id="parallel"),
        pytest.param("parallel", None, JetSpecPP, 16, id="parallel-default"),
        pytest.param("jetspec++", 5, JetSpecPP, 5, id="jetspecpp"),
        pytest.param("ngram", 0, AutoregressiveDrafter, 0, id="I02-gamma-0-is-plain"),
        pytest.param("parallel", 0, AutoregressiveDrafter, 0, id="I02-gamma-0-is-plain-for-any-name"),
        pytest.param(NgramDrafter(2), None, NgramDrafter, 2, id="object"),
        pytest.param(NgramDrafter(2), 2, NgramDrafter, 2, id="object-and-its-own-number"),
        pytest.param(lambda tokens, length: tokens[:4], 4, CallableDrafter, 4, id="function"),
        pytest.param(random_drafter(97, 3), 3, CallableDrafter, 3, id="function-of-the-test-kit"),
    ],
)
def test_accepts(spec, num_drafts, kind, expected):
    drafter = drafter_of(spec, num_drafts)
    assert isinstance(drafter, kind)
    assert isinstance(drafter, Drafter)
    assert drafter.num_drafts == expected


@pytest.mark.parametrize(
    ("spec", "num_drafts", "message"),
    [
        pytest.param("ngramm", None, "unknown drafter 'ngramm'; known: autoregressive, ngram", id="unknown-name"),
        pytest.param(3, None, "unknown drafter 3", id="not-a-drafter"),
        pytest.param("ngram", -1, "num_drafts=-1 must not be negative", id="negative"),
        pytest.param("autoregressive", 2, "num_drafts=2, but plain decoding drafts nothing", id="plain-with-drafts"),
        pytest.param(NgramDrafter(2), 3, "num_drafts=3, but the drafter proposes 2", id="two-numbers"),
        pytest.param(lambda tokens, length: tokens[:4], None, "a function as drafter needs num_drafts", id="no-number"),
    ],
)
def test_refuses(spec, num_drafts, message):
    with pytest.raises(ValueError, match=message):
        drafter_of(spec, num_drafts)


def test_parallel_is_one_pass_and_jetspecpp_drafts_as_told():
    assert (drafter_of("parallel").name, drafter_of("parallel").drafting) == ("parallel", PLAIN_PASS)
    defaults = DraftingConfig(outcome_rule="uncalibrated", decision_temperature=0.25)
    assert (drafter_of("jetspec++").name, drafter_of("jetspec++").drafting) == ("jetspec++", defaults)
    drafting = replace(defaults, num_drafts=4, num_outcomes=2)
    assert drafter_of("jetspec++", drafting=drafting).drafting == drafting
    assert drafter_of("jetspec++", 6, drafting).drafting == replace(drafting, num_drafts=6)


@pytest.mark.parametrize("spec", [None, "ngram", "parallel", NgramDrafter(2)])
def test_drafting_options_belong_to_jetspecpp(spec):
    with pytest.raises(ValueError, match=r"drafting is for the drafter 'jetspec\+\+', not for"):
        drafter_of(spec, drafting=DraftingConfig())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        pytest.param(lambda t, n: t[:3], r"must return 4 integer tokens per row, got shape \(3,\)", id="too-few"),
        pytest.param(lambda t, n: t[:4] / 2, "dtype float32", id="no-integers"),
    ],
)
def test_function_with_a_wrong_result(decoder, view_of, function, message):
    with pytest.raises(ValueError, match=message):
        CallableDrafter(function, 4).propose((), decoder, (), view_of([[1, 2]]))


def test_function_sees_each_row_with_its_length(decoder, view_of):
    drafter = CallableDrafter(lambda tokens, length: jnp.stack([length, tokens[length - 1]]), 2)
    drafts, _ = drafter.propose((), decoder, (), view_of([[7, 8, 9], [5]]))
    assert drafts.tolist() == [[3, 9], [1, 5]]


def test_function_that_cannot_be_traced_goes_through_a_callback():
    def look_up(tokens, length):
        """Plain Python on the host."""
        last = np.asarray(tokens).tolist()[int(length) - 1]
        return np.array([last + 1, last + 2, 0], np.int32)

    def draft(tokens, length):
        shape = jax.ShapeDtypeStruct((3,), jnp.int32)
        return jax.pure_callback(look_up, shape, tokens, length, vmap_method="sequential")

    output = LanguageModel(counting_target(97), drafter=draft, num_drafts=3).generate([5], max_new_tokens=10)
    assert output.token_ids == list(range(6, 16))
    assert output.stats.committed == [3, 3, 3]


def test_function_keeps_its_name():
    def guess(tokens, length):
        return tokens[:1]

    assert CallableDrafter(guess, 1).name == "guess"


def test_scripted_drafter_follows_texts_and_script(decoder, view_of):
    drafter = ScriptedDrafter([[1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4]], [1, 2], num_drafts=2, vocab_size=97)
    leaves, state = drafter.leaves, drafter.init_state(decoder, 2, 32)
    view = view_of([[1, 2, 3], [9, 8]])
    drafts, state = drafter.propose(leaves, decoder, state, view)
    assert drafts.tolist() == [[4, 6], [7, 7]]  # one right, then one too high
    drafts, state = drafter.propose(leaves, decoder, state, view)
    assert drafts.tolist() == [[4, 5], [7, 6]]
    drafts, _ = drafter.propose(drafter.follow([[1, 2, 3, 4, 5, 96]], [0]), decoder, state, view)
    assert drafts.tolist() == [[5, 5], [4, 4]]  # one text for all rows, another script


@pytest.mark.parametrize("script", [[], [3], [-1]])
def test_scripted_drafter_refuses_impossible_scripts(script):
    with pytest.raises(ValueError, match=r"must hold lengths in 0\.\.2"):
        ScriptedDrafter([[1, 2]], script, num_drafts=2, vocab_size=97)


def test_noisy_drafter_draws_with_the_noise_of_the_positions(decoder, view_of):
    drafter = NoisyDrafter(jnp.zeros((97, 97)), num_drafts=3)
    drafts, _ = drafter.propose(drafter.leaves, decoder, (), view_of([[1, 2]], temperature=1.0))
    shifted, _ = drafter.propose(drafter.leaves, decoder, (), view_of([[1]], temperature=1.0))
    assert drafts[0, :2].tolist() == shifted[0, 1:].tolist()  # the same positions, the same noise
