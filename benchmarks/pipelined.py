"""The pipelined driver with random weights: milliseconds per round, and of each program alone.

With two devices target and draft side overlap; with one they queue behind each other. Random weights accept next to
nothing, so every round commits one token and (unless the miss policy is `soft_miss`) drafts its block again; nothing
here says anything about acceptance. A round under `soft_miss` is the work of a hit.

`--replay PERIOD` replays acceptance instead: all networks run at their full cost, but the draft's and the decoder's
tokens are taken from the text, the draft's wrong at about one position in PERIOD. Hits and acceptance lengths are then
those of the replay, not of any model.

    python -m benchmarks.pipelined --shape qwen3-8b --rounds 200
"""

import argparse
import json
import statistics
import time
import warnings
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.dispatch import dispatch_ms
from benchmarks.shapes import SHAPES
from jetspec_jax.config import adapter_config_for, draft_config_for
from jetspec_jax.decoding.pipelined_programs import PipelinedPrograms
from jetspec_jax.decoding.row_params import row_params, sampling_spec
from jetspec_jax.drafters import PLAIN_PASS, JetSpecPP
from jetspec_jax.drafting_config import DraftingConfig, RefineConfig
from jetspec_jax.evaluation.record import environment
from jetspec_jax.evaluation.timeline_recorder import record_timeline
from jetspec_jax.language_model import LanguageModel, LowAcceptanceWarning
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.target import Target
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.testing import PeekingJetSpecPP, PeekingPredictor


def measure(model: LanguageModel, prompt: list[int], num_tokens: int) -> dict:
    """Decodes `rounds` rounds, the first time to warm up, then times each program by waiting for it."""
    options = SamplingParams(max_new_tokens=num_tokens, ignore_eos=True)
    stats = [model.generate(prompt, options).stats for _ in range(2)][1]
    record = {"rounds": stats.rounds, "round_ms": stats.decode_ms / stats.rounds, "tau": stats.tau}
    record |= {"tokens_per_s": stats.tokens_per_s, "hit_rate": stats.hit_rate, "compile_ms": model.programs.compile_ms}
    executables, waits = model.programs.executables, {}
    last = [0.0]

    def wait(name, device, outputs):
        jax.block_until_ready(outputs)
        now = time.perf_counter()
        waits.setdefault(name, []).append(1e3 * (now - last[0]))
        last[0] = now

    executables.on_dispatch = wait
    model.generate(prompt, options)
    executables.on_dispatch = None
    # From the end of one program to the end of the next, so host time and transfers are included: not kernel time.
    record["step_by_step_ms"] = {name: statistics.median(times[2:]) for name, times in waits.items() if len(times) > 4}
    record["dispatch_ms"] = dispatch_ms(model, lambda: model.generate(prompt, options))
    return record


def queued_ms(
    model: LanguageModel, programs: PipelinedPrograms, prompt_len: int, repeats: int = 50
) -> dict[str, float]:
    """Verification of γ+1 rows and of one row, queued back to back on the target's device."""
    request = [SamplingParams()]
    spec = sampling_spec(request)
    params = row_params(request, eos_token_ids=(), vocab_size=model.config.vocab_size, device=model.device)
    active = jax.device_put(np.array([True]), model.device)
    times = {}
    for name, num_drafts in (("ar", 0), ("verify", model.drafter.num_drafts)):
        tokens = jax.device_put(np.zeros((1, 2048), np.int32), model.device)
        length = jax.device_put(np.array([prompt_len], np.int32), model.device)
        state = programs.init_state(tokens, length).target

        def verify(leaves, state, drafts, active, params):
            target = programs.definition.merge(leaves)
            after, out, _ = programs.verify(target, state, drafts, active, params, spec)
            return after, out.num_committed

        drafts = jax.device_put(np.zeros((1, num_drafts), np.int32), model.device)
        program = programs.executables.jit(verify, donated=(1,), device=model.device)
        for _ in range(3):
            state, out = program(programs.target_leaves, state, drafts, active, params)
        jax.block_until_ready(out)
        began = time.perf_counter()
        for _ in range(repeats):
            state, out = program(programs.target_leaves, state, drafts, active, params)
        jax.block_until_ready(out)
        times[name] = 1e3 * (time.perf_counter() - began) / repeats
    return times


def main() -> None:
    """Runs the configurations and prints one JSON line each, the whole record last."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--prompt-len", type=int, default=1024)
    parser.add_argument("--num-drafts", type=int, default=16)
    parser.add_argument("--configs", default="J1-R1/B4/soft_miss,J1-R1/B4/fallback,J1-R1/B8/soft_miss,J0/B4/soft_miss")
    parser.add_argument("--replay", type=int, default=None, metavar="PERIOD")
    parser.add_argument("--timeline", type=Path, default=None, help="Chrome trace of the first configuration")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    warnings.simplefilter("ignore", LowAcceptanceWarning)
    config = SHAPES[args.shape]()
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    began = time.perf_counter()
    with jax.default_device(jax.devices()[0]):
        target = Target(config, dtype=dtype, rngs=nnx.Rngs(0))
    with jax.default_device(jax.devices()[-1]):
        draft = Draft(draft_config_for(config), dtype=dtype, rngs=nnx.Rngs(1))
        adapter = Adapter.random(adapter_config_for(config), dtype=dtype, rngs=nnx.Rngs(2))
    base = LanguageModel(target, drafter=None)
    del target
    print(json.dumps({"initialised_s": round(time.perf_counter() - began, 1)}), flush=True)
    prompt = np.random.default_rng(0).integers(0, config.vocab_size, args.prompt_len).tolist()
    record = {**environment(base), "shape": args.shape, "prompt_len": args.prompt_len, "num_drafts": args.num_drafts}
    record |= {"replay_period": args.replay, "pipelined": {}}
    num_tokens, text = args.rounds + 1, None
    if args.replay:
        # About PERIOD tokens a round: a refresh repairs one wrong token, the next one ends the accepted prefix.
        num_tokens = args.rounds * args.replay + 1
        # Not by plain decoding: in bf16 a block and one row break the many near ties of random weights differently.
        blocks = base.with_drafter(JetSpecPP(draft, drafting=replace(PLAIN_PASS, num_drafts=args.num_drafts)))
        text = prompt + blocks.generate(prompt, max_new_tokens=num_tokens, ignore_eos=True).token_ids
    for name in args.configs.split(","):
        refine, outcomes, policy = name.split("/")
        drafting = DraftingConfig(
            num_drafts=args.num_drafts,
            refine=RefineConfig.parse(refine),
            num_outcomes=int(outcomes[1:]),
            miss_policy=policy,
        )
        if text is None:
            drafter = JetSpecPP(draft, adapter, drafting=drafting)
        else:
            replayed = {"texts": [text], "period": args.replay, "runs_draft": True}
            drafter = PeekingJetSpecPP(draft, PeekingPredictor(adapter, [text]), drafting=drafting, **replayed)
        model = base.with_drafter(drafter, draft_device=jax.devices()[-1])
        if "queued_ms" not in record:
            record["queued_ms"] = queued_ms(model, model.programs, args.prompt_len)
            print(json.dumps(record["queued_ms"]), flush=True)
        record["pipelined"][name] = measured = measure(model, prompt, num_tokens)
        print(json.dumps({name: measured}), flush=True)
        if args.timeline and name == args.configs.split(",")[0]:
            timeline = record_timeline(model, prompt, SamplingParams(max_new_tokens=num_tokens, ignore_eos=True))
            measured["timeline"] = timeline.to_dict()
            args.timeline.write_text(json.dumps(timeline.to_chrome_trace()))
    print(json.dumps(record), flush=True)
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
