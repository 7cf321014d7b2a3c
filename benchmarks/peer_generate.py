"""transformers' `generate` on given prompts, greedy: tokens a second with a static cache, and with its dynamic one.

The peer of `benchmarks/speed.py`, which starts it; needs torch and nothing of JAX. With the static cache `generate`
compiles the forward by itself on a GPU (CUDA graphs). The cache is one for all calls, so nothing is captured twice.

    python -m benchmarks.peer_generate --model FOLDER --prompts FILE.json

The file holds `{"prompts": [[id, ..], ..], "eos_token_ids": [id, ..]}`. Prints the record after each mode, so that the
last line is good if the process is stopped in the second, slow one; a mode that does not run has its error there.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.turn import Turn


class Peer:
    """A model in transformers.

    Args:
        folder: Hugging Face layout.
        dtype: of the weights, in torch's words.
        eos_token_ids: what ends a text; none: nothing does.
        max_new_tokens: of each text.
        turn: held during each call that is timed; compilation happens before.
    """

    def __init__(self, folder: Path, dtype: str, eos_token_ids: Sequence[int], max_new_tokens: int, turn: Turn):
        import torch
        from transformers import AutoModelForCausalLM

        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model = model.to(self.device).eval()
        # One id pads: texts are generated alone, so nothing is ever padded.
        self.options = {"do_sample": False, "pad_token_id": 0}
        self.model.generation_config.eos_token_id = list(eos_token_ids) or None
        self.max_new_tokens, self.turn = max_new_tokens, turn

    def generate(self, prompt: Sequence[int], num_tokens: int, cache: Any = None) -> list[int]:
        """The continuation; a static cache is emptied first."""
        import torch

        if cache is not None:
            cache.reset()
        ids = torch.tensor([prompt], device=self.device)
        options = self.options | ({} if cache is None else {"past_key_values": cache})
        mask = torch.ones_like(ids)
        output = self.model.generate(ids, attention_mask=mask, max_new_tokens=num_tokens, **options)
        return output[0, len(prompt) :].tolist()

    def static_cache(self, prompts: Sequence[Sequence[int]]) -> Any:
        """A cache for the longest of the texts."""
        from transformers import StaticCache

        longest = max(map(len, prompts)) + self.max_new_tokens
        return StaticCache(config=self.model.config, max_cache_len=longest)

    def measure(self, prompts: Sequence[Sequence[int]], repeats: int, cache: Any = None) -> dict[str, Any]:
        """Texts and medians of their times in milliseconds: of the call, and of a call for the first token alone."""
        texts, call_ms, first_ms = [], [], []
        for _ in range(2):  # compiles, and captures
            self.generate(prompts[0], self.max_new_tokens, cache)
        for prompt in prompts:
            times = [self._timed(lambda: self.generate(prompt, self.max_new_tokens, cache)) for _ in range(repeats)]  # noqa: B023
            texts.append(times[0][0])
            call_ms.append(statistics.median(ms for _, ms in times))
            times = [self._timed(lambda: self.generate(prompt, 1, cache)) for _ in range(repeats)]  # noqa: B023
            first_ms.append(statistics.median(ms for _, ms in times))
        return {"tokens": texts, "call_ms": call_ms, "first_ms": first_ms, **speeds(texts, call_ms, first_ms)}

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """Result and milliseconds; `generate` gives ids to the host, so nothing is left to wait for."""
        with self.turn:
            began = time.perf_counter()
            result = call()
            return result, 1e3 * (time.perf_counter() - began)


def speeds(texts: Sequence[Sequence[int]], call_ms: Sequence[float], first_ms: Sequence[float]) -> dict[str, float]:
    """Tokens a second: of whole calls, and of decoding without the first tokens and their time."""
    num_tokens, decode_ms = sum(map(len, texts)), sum(call_ms) - sum(first_ms)
    decoded = num_tokens - len(texts)
    return {
        "call_tokens_per_s": 1e3 * num_tokens / sum(call_ms),
        "tokens_per_s": 1e3 * decoded / decode_ms if decode_ms > 0 else 0.0,
    }


def main() -> None:
    """Measures both caches and prints the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--turn", type=Path, default=None, help="lock file shared with others who use the device")
    args = parser.parse_args()
    given = json.loads(args.prompts.read_text())
    peer = Peer(args.model, args.dtype, given["eos_token_ids"], args.max_new_tokens, Turn(args.turn))
    record: dict[str, Any] = {name: version(name) for name in ("transformers", "torch")}
    for name, make_cache in (("static", peer.static_cache), ("dynamic", lambda _: None)):
        try:
            record[name] = peer.measure(given["prompts"], args.repeats, make_cache(given["prompts"]))
        except Exception as error:  # the other mode is still of interest
            record[name] = {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
