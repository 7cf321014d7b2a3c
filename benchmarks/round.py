"""What a round costs at the Qwen3-8B shape, with random weights: its parts, their byte floors, and rounds as a whole.

Parts are timed alone, queued behind each other. A *pipelined* round runs on two devices; `exposed` is what it takes
beyond a verification. Rounds replay an acceptance length (`--simulate-accept-len`): all networks run at their full cost
and every prepared outcome comes true, so a round is a hit; nothing here says anything about acceptance. What is
replayed are the guessed tokens (`replay.py`). `round_ms` is the median time between rounds in mid-text, `tokens_per_s`
all tokens over all decoding time.

    python -m benchmarks.round --out benchmarks/results/round_h200.json

With one device the rounds are fused ones and there is no `exposed`. `--peer` also times transformers in a process of
its own; `--processes` hands all to `round_record.py`, which compiles side by side. Prints JSON lines as it goes; the
last one is the whole record.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.dispatch import dispatch_ms
from benchmarks.headlines import with_headlines
from benchmarks.parts import Part, Parts
from benchmarks.replay import replaying
from benchmarks.round_task import written
from benchmarks.shapes import SHAPES
from benchmarks.timing import read_bandwidth
from benchmarks.turn import Turn
from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.drafters import PLAIN_PASS, JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, DraftWeights, RefineConfig
from jetspec_jax.evaluation.record import environment
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.target import Target
from jetspec_jax.sampling_params import SamplingParams


def say(**record) -> None:
    """One JSON line for whoever watches."""
    print(json.dumps(record), flush=True)


STEPS = ("parts", "ar", "rounds", "foresight", "more_parts")
CONFIGS = "J0/B4,J1-R1/B4,J1-R1/B8,J3-R3/B4,J1-R1/B1,J3-R3/B1"  # what matters most comes first
SHORT = 16  # rounds of a run that compiles, and of one that times the host


class Bench:
    """The models of one run, and what has been measured.

    Args:
        args: the command line.
        turn: held from here on; filling a device with random weights takes seconds, in which nothing can be timed.
    """

    def __init__(self, args: argparse.Namespace, turn: Turn):
        self.args = args
        config = SHAPES[args.shape]()
        dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
        self.device, self.draft_device = jax.devices()[0], jax.devices()[-1]
        turn.take()
        with jax.default_device(self.device):
            target = Target(config, dtype=dtype, rngs=nnx.Rngs(0))
        with jax.default_device(self.draft_device):
            self.draft = Draft(draft_config_for(config), dtype=dtype, rngs=nnx.Rngs(1))
            self.adapter = Adapter.random(adapter_config_for(config), dtype=dtype, rngs=nnx.Rngs(2))
        kernels = args.kernels if args.kernels in ("auto", "all", "none") else args.kernels.split(",")
        self.base = LanguageModel(target, drafter=None, kernels=kernels)
        rng = np.random.default_rng(0)
        self.prompt = rng.integers(0, config.vocab_size, args.context).tolist()
        jax.block_until_ready(jax.live_arrays())
        # Floors of other steps are computed anew when records are merged: no time, and no memory, is spent on them.
        size, repeats = (args.bandwidth_bytes, args.repeats) if "parts" in args.only else (args.bandwidth_bytes // 8, 3)
        self.bandwidth = read_bandwidth(self.device, size, repeats)
        self.record = {**environment(self.base), "shape": args.shape, "context": args.context}
        self.record |= {"num_drafts": args.num_drafts, "simulated_accept_len": args.simulate_accept_len}
        self.record |= {"draft_weights": args.draft_weights, "kernels": args.kernels}
        self.record |= {"read_bandwidth_tb_s": self.bandwidth / 1e12, "parts": {}, "host_ms": {}}
        self.record |= {name: {} for name in ("round_ms", "exposed_ms", "fused_ms", "tau", "tokens_per_s", "hit_rate")}
        say(initialised=True, read_bandwidth_tb_s=self.bandwidth / 1e12)

    def drafting(self, name: str) -> DraftingConfig:
        """From a name such as `J1-R1/B4`."""
        refine, outcomes = name.split("/B")
        return DraftingConfig(
            num_drafts=self.args.num_drafts,
            refine=RefineConfig.parse(refine),
            num_outcomes=int(outcomes),
            draft_weights=self.args.draft_weights,
        )

    def parts(self, model: LanguageModel, kind: type[Parts] = Parts) -> Parts:
        """The parts of this model's round."""
        capacity = 2 ** int(np.ceil(np.log2(self.args.context + 4 * self.args.num_drafts)))
        return kind(model, context_len=self.args.context, capacity=capacity, repeats=self.args.repeats)

    def note(self, name: str, part: Part, model: LanguageModel) -> None:
        """Keeps and prints a part."""
        self.record["parts"][name] = part.to_dict(self.bandwidth)
        say(part=name, **self.record["parts"][name])
        self.note_refused(model)
        self.save()

    def save(self) -> None:
        """Writes what there is: a run that is stopped keeps it."""
        if self.args.out is not None:
            written(self.summary(), self.args.out)

    def measure_parts(self) -> None:
        """Verification, AR step, and the passes of the draft side over the first number of blocks."""
        self._measure_parts((self.args.num_drafts + 1, 1), self._blocks[:1])

    def measure_more_parts(self) -> None:
        """The other parts, which are compared less."""
        self._measure_parts((self.args.num_drafts,), self._blocks[1:])

    @property
    def _blocks(self) -> list[int]:
        return [int(blocks) for blocks in self.args.blocks.split(",")]

    def _measure_parts(self, rows: Sequence[int], blocks: Sequence[int]) -> None:
        drafter = JetSpecPP(self.draft, self.adapter, drafting=self.drafting("J1-R1/B4"))
        model = self.base.with_drafter(drafter, draft_device=self.draft_device)
        parts = self.parts(model)
        for num_rows in rows:
            self.note(f"verify {num_rows}", parts.verification(num_rows), model)
        for num_blocks in blocks:
            self.note(f"draft x{num_blocks}", parts.draft_pass(num_blocks), model)
            self.note(f"adapter x{num_blocks}", parts.adapter_pass(num_blocks), model)
            self.note(f"decoder x{num_blocks}", parts.decoder_pass(num_blocks), model)

    def measure_foresight(self) -> None:
        """Everything the draft side does in a round, for each configuration."""
        for name in self.args.configs.split(","):
            drafter = JetSpecPP(self.draft, self.adapter, drafting=self.drafting(name))
            model = self.base.with_drafter(drafter, draft_device=self.draft_device)
            self.note(f"foresight {name}", self.parts(model).foresight(), model)

    def text(self) -> list[int]:
        """Prompt and greedy continuation; from blocks, because a block and one row may break near ties differently."""
        drafter = JetSpecPP(self.draft, drafting=replace(PLAIN_PASS, num_drafts=self.args.num_drafts))
        num_tokens = int(self.args.rounds * self.args.simulate_accept_len)
        output = self.base.with_drafter(drafter).generate(self.prompt, max_new_tokens=num_tokens, ignore_eos=True)
        return self.prompt + output.token_ids

    def measure_ar(self) -> None:
        """Plain decoding."""
        options = SamplingParams(max_new_tokens=self.args.ar_tokens, ignore_eos=True)
        self.record["ar_tokens_per_s"] = self._round_ms(self.base, options)[1].tokens_per_s
        say(ar_tokens_per_s=self.record["ar_tokens_per_s"])
        self.save()

    def measure_rounds(self) -> None:
        """Rounds of every configuration over the same text: pipelined ones on two devices, fused ones on one."""
        text = self.text()
        options = SamplingParams(max_new_tokens=len(text) - len(self.prompt), ignore_eos=True)
        is_pipelined = self.device != self.draft_device
        drivers = {"round_ms": self.draft_device} if is_pipelined else {}
        if self.args.fused or not is_pipelined:
            drivers["fused_ms"] = None
        for name in self.args.configs.split(","):
            for key, draft_device in drivers.items():
                drafter = replaying(
                    self.draft, self.adapter, text, len(self.prompt), self.args.simulate_accept_len, self.drafting(name)
                )
                model = self.base.with_drafter(drafter, draft_device=draft_device)
                ms, stats, dispatch = self._round_ms(model, options)
                self.record[key][name] = ms
                say(config=name, driver=key, ms=ms, tau=stats.tau, hit_rate=stats.hit_rate, dispatch_ms=dispatch)
                if key == "round_ms" or not is_pipelined:
                    self.record["tau"][name], self.record["hit_rate"][name] = stats.tau, stats.hit_rate
                    self.record["tokens_per_s"][name] = stats.tokens_per_s
                    self.record["host_ms"][name] = dispatch
                self.save()

    def _round_ms(self, model: LanguageModel, options: SamplingParams):
        """Median time between rounds in mid-text, statistics, and how long each call keeps the host."""
        arrivals, output = [], None
        self._decode_some(model, options)  # compiles
        for chunk in model.stream(self.prompt, options):
            arrivals.append(time.perf_counter())
            output = chunk.output or output
        intervals = np.diff(arrivals)[2:-2]
        self.note_refused(model)
        host_ms = dispatch_ms(model, lambda: self._decode_some(model, options))
        return 1e3 * statistics.median(intervals), output.stats, host_ms

    def _decode_some(self, model: LanguageModel, options: SamplingParams) -> None:
        """The first rounds of a text, with the programs of the whole: fewer tokens could have smaller caches."""
        chunks = model.stream(self.prompt, options)
        for _ in zip(range(SHORT), chunks):  # noqa: B905
            pass
        chunks.close()

    def note_refused(self, model: LanguageModel) -> None:
        """Keeps which kernels were asked for and not taken, and why."""
        found = self.record.setdefault("refused", {})
        for kernels in model.programs.executables.kernels.values():
            for op, why in kernels.refused.items():
                found[op] = sorted({*found.get(op, ()), *why})

    def summary(self) -> dict:
        """The record with the headline numbers under the names that are compared."""
        return with_headlines(self.record, self.args.num_drafts)


def peer(args: argparse.Namespace) -> dict:
    """transformers on the same shape, in a process of its own so that two frameworks do not share the memory."""
    command = [args.peer_python, "-m", "benchmarks.peer", "--shape", args.shape, "--context", str(args.context)]
    command += ["--repeats", str(args.repeats), "--rows", f"1,{args.num_drafts + 1}"]
    command += [] if args.turn is None else ["--turn", str(args.turn)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=args.peer_seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {args.peer_seconds} s"}
    if result.returncode:
        return {"error": result.stderr.strip().splitlines()[-1:]}
    return json.loads(result.stdout.strip().splitlines()[-1])


def arguments_parser() -> argparse.ArgumentParser:
    """The command line of one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--context", type=int, default=1024, help="tokens before the first round")
    parser.add_argument("--num-drafts", type=int, default=16)
    parser.add_argument("--configs", default=CONFIGS)
    parser.add_argument("--blocks", default="4,1,8", help="blocks of the passes of the draft side")
    parser.add_argument("--draft-weights", choices=get_args(DraftWeights), default="int8")
    parser.add_argument("--kernels", default="auto", help="auto, all, none, or names with commas")
    parser.add_argument("--simulate-accept-len", type=float, default=8.94)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--ar-tokens", type=int, default=256, help="tokens of plain decoding")
    parser.add_argument("--fused", action="store_true", help="also fused rounds where there are two devices")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--bandwidth-bytes", type=int, default=2**31)
    parser.add_argument("--only", default=",".join(STEPS), help="some of %(default)s")
    parser.add_argument("--processes", action="store_true", help="as benchmarks.round_record, which has more options")
    parser.add_argument("--turn", type=Path, default=None, help="lock file shared with others who use the devices")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter with torch and transformers")
    parser.add_argument("--peer-seconds", type=int, default=240)
    parser.add_argument("--out", type=Path, default=None)
    return parser


def main() -> None:
    """Measures what is asked for and prints the record."""
    if "--processes" in sys.argv:
        from benchmarks import round_record  # which imports this module

        round_record.main([argument for argument in sys.argv[1:] if argument != "--processes"])
        return
    parser = arguments_parser()
    args = parser.parse_args()
    args.only = args.only.split(",")
    if unknown := sorted(set(args.only) - set(STEPS)):
        parser.error(f"unknown {unknown}; there are {list(STEPS)}")
    warnings.simplefilter("ignore", LowAcceptanceWarning)
    turn = Turn(args.turn)
    turn.pause_compilation()
    bench = Bench(args, turn)
    for name in args.only:
        getattr(bench, f"measure_{name}")()
    turn.give_up()
    if args.peer:
        bench.record["peer_ms"] = peer(args)
    bench.save()
    print(json.dumps(bench.summary()))


if __name__ == "__main__":
    main()
