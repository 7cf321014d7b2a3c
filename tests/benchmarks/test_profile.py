from benchmarks.profile import CALLS, summary


def test_kernels_are_summed_by_name_and_gaps_counted():
    one_call = [(0, 1000, "product"), (1500, 500, "norm"), (2000, 2000, "product")]  # 500 ns between the first two
    events = [(start + 4000 * call, duration, name) for call in range(CALLS) for start, duration, name in one_call]
    head, *lines = summary("verify:17", events, wall_ms=0.0045, top=1).splitlines()
    assert head == "verify:17: 3 kernels a call, 3.5 us in them, 0.5 us between them; wall 4.5 us"
    assert [line.split() for line in lines] == [["3.0", "us", "=", "2.0", "x", "1.50", "product"]]
