"""transformers on a target's shape with random bf16 weights: milliseconds a forward, eager and compiled.

The peer that `benchmarks/round.py --peer` and the documents compare with; needs torch and nothing of JAX. A forward is
`Qwen3ForCausalLM` over a static cache of 2,048 slots, arg-max included, queued without waiting as in a decoding loop.
Compiled is `torch.compile(mode="reduce-overhead")`, CUDA graphs that is, the setting of transformers' own `generate`.

    python -m benchmarks.peer --context 1024 --rows 1,17

Prints the record after each measurement, so that the last line is good if the process is stopped; what does not
compile is null there, with the reason under `compile_errors`.
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

CAPACITY, CALLS = 2048, 10

# Of `benchmarks/shapes.py`, in transformers' words and without importing JAX.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": False,
    },
    "tiny": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "vocab_size": 97,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "tie_word_embeddings": False,
    },
}


class Peer:
    """The model, and a cache that holds a context.

    Args:
        shape: a key of `SHAPES`.
        context_len: tokens in the cache before the rows that are timed.
        turn: held while the device is used, but for what compiles on the way.
    """

    def __init__(self, shape: str, context_len: int, turn: Turn):
        import torch
        from transformers import AutoModelForCausalLM, Qwen3Config, StaticCache

        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.turn = turn
        config = Qwen3Config(**SHAPES[shape])
        torch.manual_seed(0)
        with turn, torch.device(self.device):
            self.model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
            self.tokens = torch.randint(0, config.vocab_size, (1, CAPACITY))
        self.cache = StaticCache(config=config, max_cache_len=CAPACITY)
        self.context_len = context_len
        with turn:  # also allocates the cache, which must not happen in a compiled call
            self.step(self.tokens[:, :context_len])
            self._wait()

    def step(self, ids):
        """Next tokens of ids [1, T], which stay in the cache."""
        return self.model(input_ids=ids, past_key_values=self.cache, use_cache=True).logits.argmax(dim=-1)

    def measure(self, num_rows: int, repeats: int, *, is_compiled: bool) -> float:
        """Median milliseconds a forward of `num_rows` rows over queues of ten; the context grows within a queue."""
        import torch

        torch.compiler.reset()
        mode = {"mode": "reduce-overhead", "dynamic": False}
        step: Callable = torch.compile(self.step, **mode) if is_compiled else self.step
        ids = self.tokens[:, :num_rows].clone()
        self._queue(step, ids)  # compiles and captures
        with self.turn:
            return statistics.median(self._queue(step, ids) for _ in range(repeats))

    def _queue(self, step: Callable, ids) -> float:
        import torch

        self._rewind()
        self._wait()
        began = time.perf_counter()
        for _ in range(CALLS):
            torch.compiler.cudagraph_mark_step_begin()
            step(ids)
        self._wait()
        return 1e3 * (time.perf_counter() - began) / CALLS

    def _rewind(self) -> None:
        """Back to the context: what is beyond it is written anew."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.context_len)

    def _wait(self) -> None:
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()


def measure(shape: str, rows: Sequence[int], context_len: int, repeats: int, turn: Turn) -> None:
    """Prints the record, as JSON types, whenever it has grown."""
    import torch

    torch.set_grad_enabled(False)
    peer = Peer(shape, context_len, turn)
    record: dict[str, Any] = {name: version(name) for name in ("transformers", "torch")}
    record |= {"device": torch.cuda.get_device_name() if peer.device == "cuda" else "cpu", "shape": shape}
    record |= {"context": context_len, "repeats": repeats, "eager": {}, "compiled": {}, "compile_errors": {}}
    for form in ("eager", "compiled"):
        for num_rows in rows:
            try:
                record[form][str(num_rows)] = peer.measure(num_rows, repeats, is_compiled=form == "compiled")
            except Exception as error:  # a compiler that is not there, or an operation that it does not take
                if form == "eager":
                    raise
                record[form][str(num_rows)] = None
                record["compile_errors"][str(num_rows)] = f"{type(error).__name__}: {str(error).strip()[:300]}"
            print(json.dumps(record), flush=True)


def main() -> None:
    """Measures and prints the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--context", type=int, default=1024, help="tokens in the cache")
    parser.add_argument("--rows", default="1,17", help="rows of a forward, with commas")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--turn", type=Path, default=None, help="lock file shared with others who use the device")
    args = parser.parse_args()
    rows = [int(part) for part in args.rows.split(",")]
    if args.context + CALLS * max(rows) > CAPACITY:
        parser.error(f"{CALLS} calls of {max(rows)} rows after {args.context} tokens do not fit {CAPACITY} slots")
    measure(args.shape, rows, args.context, args.repeats, Turn(args.turn))


if __name__ == "__main__":
    main()
