"""The numbers of a round's record that are compared, under names of their own."""

from typing import Any

PASSES = ("draft", "adapter", "decoder")
HEADLINE = "J1-R1/B4"


def with_headlines(record: dict[str, Any], num_drafts: int) -> dict[str, Any]:
    """A record with its headline numbers, those that it has.

    `tokens_per_s_replayed` is that of J1-R1 / B4 (the best there is where that was not measured) and `speedup_over_ar`
    its ratio to plain decoding; a round's `exposed_ms` is what it takes beyond a verification.

    Args:
        record: of `benchmarks/round.py`.
        num_drafts: γ; a verification has one row more.
    """
    parts, record, verify = record["parts"], dict(record), f"verify {num_drafts + 1}"
    headlines = {f"verify{num_drafts + 1}": verify, "ar": "verify 1", **{name: f"{name} x4" for name in PASSES}}
    record |= {f"{name}_ms": parts[part]["ms"] for name, part in headlines.items() if part in parts}
    if "verify 1" in parts:
        record["ar_floor_ms"] = parts["verify 1"]["floor_ms"]
    if verify in parts:
        record["floor_ms"] = parts[verify]["floor_ms"]
        record["exposed_ms"] = {name: ms - parts[verify]["ms"] for name, ms in record["round_ms"].items()}
    if found := record["tokens_per_s"]:
        record["tokens_per_s_replayed"] = found.get(HEADLINE, max(found.values()))
        if "ar_tokens_per_s" in record:
            record["speedup_over_ar"] = record["tokens_per_s_replayed"] / record["ar_tokens_per_s"]
    return record
