"""`jetspec convert`."""

import argparse

from jetspec_jax.checkpoints.gguf import open_gguf
from jetspec_jax.checkpoints.gguf_config import hf_config_from_gguf
from jetspec_jax.checkpoints.hf_config import read_hf_config, target_config_from_hf
from jetspec_jax.checkpoints.public_drafts import convert_draft, target_layer_ids
from jetspec_jax.checkpoints.resolve import resolve


def run(args: argparse.Namespace) -> int:
    """Converts a public draft; the target's config alone is read, with the draft's layers as taps."""
    source, checkpoint = resolve(args.source), resolve(args.target)
    if source.kind != "safetensors":
        raise ValueError(f"{args.source}: a draft must be a folder with config.json and safetensors")
    is_gguf = checkpoint.kind == "gguf"
    hf_config = hf_config_from_gguf(open_gguf(checkpoint.path)) if is_gguf else read_hf_config(checkpoint.path)
    target = target_config_from_hf(hf_config, taps=target_layer_ids(read_hf_config(source.path)))
    config = convert_draft(
        source,
        args.out,
        target,
        target_name=checkpoint.name,
        storage=args.storage,
        max_shard_mb=args.max_shard_mb,
    )
    kind = "causal (JetSpec)" if config.causal else "bidirectional (DFlash)"
    print(f"{args.out}: {config.num_layers} {kind} layers, blocks of {config.block_rows}, taps {target.taps}")
    return 0
