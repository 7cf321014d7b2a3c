"""The driver: two rounds in flight at most, read one round late, no hidden transfer, stops when told."""

import jax
import numpy as np
import pytest

from jetspec_jax.decoding.drivers import Delivery, Driver
from jetspec_jax.decoding.programs import Programs
from jetspec_jax.decoding.stats import DecodeStats
from jetspec_jax.decoding.walk import TextWalk
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import ScriptedDrafter, counting_target

NUM_DRAFTS, VOCAB_SIZE = 3, 97


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """Counts from the prompt on; rounds accept 3, 0, 1 drafts in turn."""
    count = [i % VOCAB_SIZE for i in range(400)]
    drafter = ScriptedDrafter([count], [3, 0, 1], num_drafts=NUM_DRAFTS, vocab_size=VOCAB_SIZE)
    return LanguageModel(counting_target(VOCAB_SIZE), drafter=drafter)


def decode(programs: Programs, prompts, limits, **options):
    """Iterator over deliveries, with the walks and stats it updates."""
    walks = [
        TextWalk(SamplingParams(max_new_tokens=limit, **options), (), limit, None, len(prompt))
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    stats = [DecodeStats(NUM_DRAFTS) for _ in prompts]
    return Driver(programs).decode(prompts, walks, stats), walks, stats


def flat(rounds: list[list[Delivery]], row: int) -> list[int]:
    return [token for deliveries in rounds for d in deliveries if d.row == row for token in d.token_ids]


@pytest.fixture
def events(model, monkeypatch) -> list[str]:
    """What the host does, in order: `dispatch` a prefill or round, `read` the result of one."""
    log: list[str] = []
    executables, device_get = model.programs.executables, jax.device_get
    run = executables.run

    def noted(name, *args, **how):
        if name != "empty state":
            log.append("dispatch")
        return run(name, *args, **how)

    monkeypatch.setattr(executables, "run", noted)
    monkeypatch.setattr(jax, "device_get", lambda tree: (log.append("read"), device_get(tree))[1])
    return log


def test_host_reads_one_round_late(model, events):
    iterator, walks, stats = decode(model.programs, [[0]], [40])
    list(iterator)
    assert walks[0].token_ids == list(range(1, 41))
    # Prefill and the first round are queued before anything is read, and so on until the text could be complete.
    num_dispatched = events.count("dispatch")
    assert events[:2] == ["dispatch", "dispatch"]
    in_flight = 0
    for i, event in enumerate(events):
        in_flight += 1 if event == "dispatch" else -1
        assert 0 <= in_flight <= 2
        # While the text surely needs more, a result is read only when the next round is already queued.
        if event == "read" and i < len(events) - 4:
            assert in_flight == 1
    assert events.count("read") == num_dispatched
    # One round too many at most: the one queued before the last result was known.
    assert num_dispatched - 1 - stats[0].rounds in (0, 1)


def test_no_round_is_queued_that_the_limit_makes_useless(model, events):
    iterator, _, _ = decode(model.programs, [[0]], [1])
    list(iterator)
    assert events == ["dispatch", "read"]  # prefill gives the one token
    events.clear()
    iterator, _, _ = decode(model.programs, [[0]], [2])
    list(iterator)
    assert events == ["dispatch", "dispatch", "read", "read"]


def test_nothing_is_computed_for_finished_requests(model, events):
    iterator, _, _ = decode(model.programs, [[0], [5]], [0, 0])
    assert list(iterator) == []
    assert events == []


def test_deliveries_tell_drafts_from_the_targets_own_tokens(model):
    iterator, _, stats = decode(model.programs, [[0]], [9])
    deliveries = [d for deliveries in iterator for d in deliveries]
    # Prefill, then 3 + 1, 0 + 1, 1 + 1 and the beginning of 3 + 1, cut by the limit.
    assert [(d.token_ids, d.num_accepted) for d in deliveries] == [
        ([1], 0),
        ([2, 3, 4, 5], 3),
        ([6], 0),
        ([7, 8], 1),
        ([9], 1),
    ]
    assert stats[0].committed == [4, 1, 2, 1]
    assert stats[0].accepted_at == [3, 1, 1]


def test_rows_end_on_their_own(model):
    iterator, walks, _ = decode(model.programs, [[0], [50, 51], [9]], [3, 30, 17])
    rounds = list(iterator)
    for row, (last, limit) in enumerate([(0, 3), (51, 30), (9, 17)]):
        assert flat(rounds, row) == walks[row].token_ids == [(last + 1 + i) % VOCAB_SIZE for i in range(limit)]
        assert walks[row].finish_reason == "length"


def test_finished_rows_are_inactive_on_the_device_within_two_rounds(model, monkeypatch):
    seen, round_ = [], model.programs.round

    def watched(state, active, params, spec, **options):
        seen.append(jax.device_get(active).tolist())
        return round_(state, active, params, spec, **options)

    monkeypatch.setattr(model.programs, "round", watched)
    iterator, _, _ = decode(model.programs, [[0], [50]], [5, 30])
    list(iterator)
    # The first row has its five tokens after the first round; the second round was queued before that was known.
    assert seen[:2] == [[True, True]] * 2
    assert seen[2:] == [[False, True]] * len(seen[2:])


def test_cancelled_row_stops_and_the_others_go_on(model):
    iterator, walks, _ = decode(model.programs, [[0], [50]], [60, 60])
    rounds = []
    for deliveries in iterator:
        rounds.append(deliveries)
        if len(rounds) == 3:
            walks[0].cancel()
    assert walks[0].finish_reason == "cancelled"
    assert flat(rounds, 0) == flat(rounds[:3], 0) == walks[0].token_ids
    assert flat(rounds, 1) == [(51 + i) % VOCAB_SIZE for i in range(60)]


def test_cancelling_all_rows_queues_nothing_more(model, events):
    """C36: the rounds in flight are let go, within two rounds."""
    iterator, walks, _ = decode(model.programs, [[0], [50]], [60, 60])
    next(iterator)
    for walk in walks:
        walk.cancel()
    dispatched = events.count("dispatch")
    assert list(iterator) == []
    assert events.count("dispatch") == dispatched
    assert events.count("read") == dispatched


def test_closing_the_iterator_queues_nothing_more(model, events):
    iterator, _, _ = decode(model.programs, [[0]], [60])
    next(iterator)
    dispatched = events.count("dispatch")
    iterator.close()
    assert events.count("dispatch") == dispatched <= 2
    # The next request is not disturbed.
    iterator, walks, _ = decode(model.programs, [[20]], [5])
    list(iterator)
    assert walks[0].token_ids == [21, 22, 23, 24, 25]


def test_an_implicit_transfer_in_the_loop_raises(model, monkeypatch):
    round_ = model.programs.round

    def careless(state, active, params, spec, **options):
        return round_(state, active & np.ones((1,), bool), params, spec, **options)  # takes a host array along

    monkeypatch.setattr(model.programs, "round", careless)
    iterator, _, _ = decode(model.programs, [[0]], [10])
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        list(iterator)


def test_code_between_rounds_is_not_guarded(model):
    """The guard must not leak to the caller of a stream."""
    iterator, _, _ = decode(model.programs, [[0]], [10])
    for _ in iterator:
        assert (jax.numpy.ones((2,)) + np.ones((2,), np.float32)).tolist() == [2.0, 2.0]


def test_times_leave_compilation_out():
    model = LanguageModel(counting_target(VOCAB_SIZE), drafter=None)
    first, second = (model.generate([1], max_new_tokens=4).stats for _ in range(2))
    assert first.compile_ms > 0
    assert second.compile_ms == 0
    assert 0 < first.prefill_ms < first.compile_ms
    assert first.decode_ms > 0


def test_prompt_of_many_chunks(monkeypatch):
    monkeypatch.setattr("jetspec_jax.decoding.drivers.PREFILL_CHUNK", 16)
    model = LanguageModel(counting_target(VOCAB_SIZE), drafter=None)
    prompts = [list(range(40)), [5], list(range(50, 67))]
    outputs = model.generate(prompts, max_new_tokens=3)
    assert [output.token_ids for output in outputs] == [[40, 41, 42], [6, 7, 8], [67, 68, 69]]
    assert model.programs.num_compiled == 3  # empty state, three calls of one prefill program, round


def test_second_device(cpu_devices):
    model = LanguageModel(counting_target(VOCAB_SIZE), drafter="ngram", device=cpu_devices[1])
    assert model.generate([1], max_new_tokens=4, temperature=1e-3, seed=0).token_ids == [2, 3, 4, 5]
    assert all(leaf.devices() == {cpu_devices[1]} for leaf in model.programs.target_leaves)
