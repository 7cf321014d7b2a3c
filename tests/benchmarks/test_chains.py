"""Chains compute what their calls do, as often as they say."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.chains import MAX_SETS, MIN_SETS, Chain, Inputs, num_loops, num_sets


def test_every_call_has_its_own_arrays_and_all_share_the_rest():
    seen = []

    def call(x, offset):
        seen.append(None)
        return x + offset, ()

    inputs = [Inputs((jnp.full((2,), float(i)),), (jnp.float32(10),)) for i in range(3)]
    chain = Chain(call, inputs, loops=4)
    results, _ = chain.run()
    assert results.tolist() == [10, 10]
    assert chain.num_calls == 12
    assert len(seen) == 1  # traced once for all calls


def test_state_goes_from_iteration_to_iteration_and_the_callers_is_kept():
    inputs = [Inputs((jnp.float32(2),), state=(jnp.zeros(()),)) for _ in range(2)]
    chain = Chain(lambda step, total: (total, (total + step,)), inputs, loops=3)
    assert [float(leaf) for leaf in jax.tree.leaves(chain.run())] == [4, 6]
    assert [float(leaf) for leaf in jax.tree.leaves(chain.run())] == [10, 12]
    assert float(inputs[0].state[0]) == 0


def test_times_are_those_of_a_call():
    inputs = [Inputs((jnp.ones((64, 64)),)) for _ in range(2)]
    few, many = (Chain(lambda x: (x @ x, ()), inputs, loops).measure(3) for loops in (50, 200))
    # Four times the calls, not four times the time of one; the machine may be busy with something else.
    assert many["ms"] < 3 * few["ms"]
    assert few["host_share"] > 0


@pytest.mark.parametrize(
    ("num_bytes", "sets"),
    [
        pytest.param(10**3, MAX_SETS, id="small"),
        pytest.param(32 * 2**20, 8, id="some"),
        pytest.param(10**9, MIN_SETS, id="large"),
    ],
)
def test_sets_exceed_the_cache_within_bounds(num_bytes, sets):
    assert num_sets(num_bytes) == sets


def test_a_program_lasts_about_a_millisecond():
    assert num_loops(floor_us=0.1, num_calls=32) == 16  # 2 us a call
    assert num_loops(floor_us=300, num_calls=4) == 1
