"""What `jetspec inspect` says about drafter folders."""

from jetspec_jax.checkpoints.inspect_drafter import inspect_drafter, is_drafter_folder


def test_inspects_a_sound_folder(parts, named, saved):
    assert is_drafter_folder(saved)
    report = inspect_drafter(saved)
    assert report.problems == ()
    assert (report.kind, report.architecture) == ("drafter", "JetSpecDraft")
    details = dict(report.details)
    assert details["target"] == "tiny: qwen3, 2 layers, width 32"
    assert details["calibration"] == "T=0 J1-R1 B=4"
    assert {tensor.key.partition("/")[0] for tensor in report.tensors} == {"draft", "adapter"}
    expected = named(draft=parts[0], adapter=parts[1])
    assert report.num_parameters == sum(value.size for value in expected.values())
