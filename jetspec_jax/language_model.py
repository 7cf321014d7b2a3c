"""A loaded target with its drafter and tokenizer: prompts in, outputs out."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from flax import nnx

from jetspec_jax.decoding.drivers import Delivery, Driver
from jetspec_jax.decoding.foresight_programs import FusedPrograms
from jetspec_jax.decoding.pipelined_programs import PipelinedPrograms
from jetspec_jax.decoding.programs import Programs
from jetspec_jax.decoding.row_params import sampling_spec
from jetspec_jax.decoding.stats import DecodeStats
from jetspec_jax.decoding.walk import TextWalk
from jetspec_jax.drafters import JetSpecPP, as_drafter
from jetspec_jax.drafters.naming import AUTO
from jetspec_jax.drafting_config import DraftingConfig
from jetspec_jax.models.functional import place, split
from jetspec_jax.models.target import Target
from jetspec_jax.outputs import GenerationOutput, StreamChunk, TokenLogprob
from jetspec_jax.progress import Progress
from jetspec_jax.sampling_params import SamplingParams, sampling_params
from jetspec_jax.text.chat import Prompt, encode_prompt, is_batch
from jetspec_jax.text.streaming import IncrementalDetokenizer
from jetspec_jax.text.tokenizer import NoTokenizer, Tokenizer

# A draft that commits hardly more than the bonus token over this many rounds is probably broken (bug case C25).
_WARN_ROUNDS, _WARN_TAU = 50, 1.05


class LowAcceptanceWarning(UserWarning):
    """Speculation commits about one token a round: the text is right, the draft is useless."""


class DraftLimitWarning(UserWarning):
    """The context outgrew what the drafter was made for; the rest was decoded without drafts."""


class LanguageModel:
    """Target, drafter and tokenizer, ready to generate.

    Args:
        target: the target model.
        tokenizer: None if prompts are ids and no text is wanted.
        drafter: a name, the folder or Hugging Face id of trained weights, a `Drafter`, or a traceable function
            `(tokens [S], length []) -> [num_drafts]`. Names are `autoregressive`, `ngram`, `parallel` and `jetspec++`
            (these two with the weights that are shipped for the target, random ones without), and `auto`: `jetspec++`
            if there are such weights, else `ngram`.
        num_drafts: tokens to draft per round; None takes the drafter's own default.
        drafting: refinement, foresight and miss policy of `jetspec++`; None takes the drafter's defaults, which draft
            ahead only with a `draft_device`; those of `auto` on CPU are one pass and small blocks.
        max_len: longest prompt plus output in tokens; None takes the target's limit.
        max_batch: most requests decoded together; longer lists are decoded in groups.
        device: where the target lives; None takes the first device.
        draft_device: where the next block is drafted while the target verifies; None: in one program on `device`.
        kernels: operations that run as Pallas kernels on GPU: `auto` (what `ops/kernels.MEASURED` has for the device,
            for targets of 2 GB or more, from jax 0.12 on), `all`, `none`, or names of its `OPS`. The text may differ in
            bf16 where two tokens nearly tie.
        progress: show compiling and token progress on stderr; None shows them if stderr is a terminal.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: Tokenizer | None = None,
        *,
        drafter: Any = AUTO,
        num_drafts: int | None = None,
        drafting: DraftingConfig | None = None,
        max_len: int | None = None,
        max_batch: int = 8,
        device: jax.Device | None = None,
        draft_device: jax.Device | None = None,
        kernels: str | Sequence[str] = "auto",
        progress: bool | None = None,
    ):
        limit = target.config.max_position_embeddings
        if max_len is not None and not 1 <= max_len <= limit:
            raise ValueError(f"max_len={max_len} must be in 1..{limit}, the target's limit")
        if max_batch < 1:
            raise ValueError(f"max_batch={max_batch} must be at least 1")
        self.config = target.config
        self.tokenizer = tokenizer
        # Some configs leave the end of text to the tokenizer.
        self.eos_token_ids = self.config.eos_token_ids or (() if tokenizer is None else tokenizer.eos_token_ids)
        self.max_len = limit if max_len is None else max_len
        self.max_batch = max_batch
        self.device = jax.devices()[0] if device is None else device
        self.dtype = target.dtype
        self.kernels = kernels
        self.progress = progress
        self._definition, leaves = split(target)
        self._leaves = place(leaves, self.device)
        self._use(drafter, num_drafts, drafting, draft_device)

    def with_drafter(
        self,
        drafter: Any,
        *,
        num_drafts: int | None = None,
        drafting: DraftingConfig | None = None,
        draft_device: jax.Device | None = None,
    ) -> "LanguageModel":
        """The same target (weights shared) with another drafter; see the class for the arguments."""
        model = object.__new__(type(self))
        model.__dict__.update(self.__dict__)
        model._use(drafter, num_drafts, drafting, draft_device)
        return model

    def _use(self, drafter: Any, num_drafts: int | None, drafting: DraftingConfig | None, draft_device) -> None:
        with jax.default_device(draft_device or self.device):  # random weights are made where they will be used
            options = {"num_drafts": num_drafts, "drafting": drafting, "drafts_ahead": draft_device is not None}
            options |= {"on_cpu": self.device.platform == "cpu", "target": self.config, "dtype": self.dtype}
            drafter = as_drafter(drafter, **options)
        if drafter.num_drafts >= self.max_len:
            raise ValueError(f"num_drafts={drafter.num_drafts} does not fit a context of {self.max_len} tokens")
        self.drafter = drafter
        parts = (self._definition, self._leaves, drafter, self.device)
        if isinstance(drafter, JetSpecPP) and drafter.foresees:
            kind = FusedPrograms if draft_device is None else PipelinedPrograms
            self.programs = kind(*parts, draft_device, self.kernels)
        elif draft_device is not None:
            raise ValueError(f"draft_device={draft_device}, but drafter {drafter.name!r} does not draft ahead")
        else:
            self.programs = Programs(*parts, kernels=self.kernels)

    @property
    def target(self) -> Target:
        """The target as a module; arrays are shared, on CPU in the layout of `ops/project.py`."""
        return self._definition.merge(self._leaves)

    @property
    def num_parameters(self) -> int:
        """Parameters of the target, a tied head counted once."""
        return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(self.target)))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> GenerationOutput | list[GenerationOutput]:
        """Generates a continuation of one prompt or of each prompt of a list.

        Args:
            prompts: a string, token ids, chat messages, or a list of any of them.
            params: options for all prompts, or one per prompt; or give `options` as keywords.
            chat_template_kwargs: passed to the chat template, for example `{"enable_thinking": False}`.
            **options: fields of `SamplingParams`.

        Returns:
            One output for one prompt, a list for a list.

        Raises:
            ValueError: bad prompt or option; nothing has been computed then.
        """
        encoded, requests = self._prepare(prompts, params, chat_template_kwargs, options)
        outputs: dict[int, GenerationOutput] = {}
        num_tokens, most = 0, sum(self._limit(*pair) for pair in zip(encoded, requests, strict=True))
        with Progress(self.progress) as progress:
            self.programs.executables.on_compile = progress.note
            report = progress.tokens("generating")
            for chunk in self._stream(encoded, requests):
                num_tokens += len(chunk.token_ids)
                report(num_tokens, most)
                if chunk.output is not None:
                    outputs[chunk.index] = chunk.output
        ordered = [outputs[index] for index in sorted(outputs)]
        self._warn(ordered)
        return ordered if is_batch(prompts) else ordered[0]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Iterator[StreamChunk]:
        """Like `generate`, yielding text as it becomes certain; the last chunk of each prompt carries its output.

        Prompts and options are checked here, before the first chunk is asked for. Closing the iterator stops decoding.
        """
        self.programs.executables.on_compile = Progress(self.progress).note
        return self._stream_and_warn(*self._prepare(prompts, params, chat_template_kwargs, options))

    def _prepare(self, prompts, params, template_kwargs, options) -> tuple[list[list[int]], list[SamplingParams]]:
        """Checks and encodes everything a call needs, before anything is computed."""
        batch = list(prompts) if is_batch(prompts) else [prompts]
        requests = self._requests(batch, params, options)
        return [self._encode(i, prompt, template_kwargs or {}) for i, prompt in enumerate(batch)], requests

    def _requests(self, batch, params, options) -> list[SamplingParams]:
        if isinstance(params, Sequence):
            if options or len(params) != len(batch):
                raise ValueError(f"{len(params)} SamplingParams for {len(batch)} prompts, options {sorted(options)}")
            requests = list(params)
        else:
            requests = [sampling_params(params, **options)] * len(batch)
        for request in requests:
            if not isinstance(request, SamplingParams):
                raise ValueError(f"params must be SamplingParams, got {request!r}")
            request.check_vocab(self.config.vocab_size)
            if request.stop and self.tokenizer is None:
                raise ValueError(f"stop={request.stop} needs a tokenizer")
        sampling_spec(requests)  # refuses requests that cannot share a program
        return requests

    def _encode(self, index: int, prompt: Prompt, template_kwargs: Mapping[str, Any]) -> list[int]:
        ids = encode_prompt(
            NoTokenizer() if self.tokenizer is None else self.tokenizer,
            prompt,
            chat_template_kwargs=template_kwargs,
            vocab_size=self.config.vocab_size,
            name=f"prompt {index}",
        )
        if bad := [token for token in ids if token >= self.config.vocab_size]:
            raise ValueError(
                f"prompt {index} holds token id {bad[0]}, but the target has {self.config.vocab_size} ids: "
                "the tokenizer does not belong to it"
            )
        if len(ids) > self.max_len:
            raise ValueError(f"prompt {index} has {len(ids)} tokens, the context holds {self.max_len}")
        return ids

    def _stream_and_warn(self, encoded, requests) -> Iterator[StreamChunk]:
        outputs = []
        for chunk in self._stream(encoded, requests):
            outputs += [] if chunk.output is None else [chunk.output]
            yield chunk
        self._warn(outputs)

    def _stream(self, encoded: list[list[int]], requests: list[SamplingParams]) -> Iterator[StreamChunk]:
        for start in range(0, len(encoded), self.max_batch):
            group = slice(start, start + self.max_batch)
            for chunk in self._stream_group(encoded[group], requests[group]):
                yield replace(chunk, index=start + chunk.index)

    def _stream_group(self, encoded: list[list[int]], requests: list[SamplingParams]) -> Iterator[StreamChunk]:
        walks = [self._walk(ids, request) for ids, request in zip(encoded, requests, strict=True)]
        stats = [DecodeStats(self.drafter.num_drafts) for _ in encoded]
        logprobs: list[list[TokenLogprob]] = [[] for _ in encoded]

        def output_of(row: int) -> GenerationOutput:
            return GenerationOutput.of_walk(encoded[row], walks[row], logprobs[row], stats[row])

        for row, walk in enumerate(walks):
            if walk.is_finished:  # max_new_tokens = 0, or a prompt that fills the context
                yield StreamChunk(row, "", [], 0, output_of(row))
        for deliveries in Driver(self.programs).decode(encoded, walks, stats):
            for delivery in deliveries:
                logprobs[delivery.row] += _logprobs(delivery)
                output = output_of(delivery.row) if walks[delivery.row].is_finished else None
                new = (delivery.text, delivery.token_ids, delivery.num_accepted)
                yield StreamChunk(delivery.row, *new, output, delivery.trace)

    def _limit(self, ids: list[int], request: SamplingParams) -> int:
        """Most tokens a request may generate: its own limit or what the context leaves."""
        room = self.max_len - len(ids)
        return room if request.max_new_tokens is None else min(request.max_new_tokens, room)

    def _walk(self, ids: list[int], request: SamplingParams) -> TextWalk:
        detokenizer = None
        if self.tokenizer is not None:
            detokenizer = IncrementalDetokenizer(self.tokenizer, stop=request.stop, include_stop=request.include_stop)
        return TextWalk(request, self.eos_token_ids, self._limit(ids, request), detokenizer, len(ids))

    def _warn(self, outputs: Sequence[GenerationOutput]) -> None:
        """At most one warning per call, after everything has been delivered."""
        stopped = [o.stats.drafting_stopped_at for o in outputs if o.stats.drafting_stopped_at is not None]
        if stopped:
            warnings.warn(
                f"drafting was switched off at {min(stopped)} tokens in {len(stopped)} of {len(outputs)} texts: "
                f"drafter {self.drafter.name!r} was made for {self.drafter.max_len}",
                DraftLimitWarning,
                stacklevel=3,
            )
            return
        rounds = sum(output.stats.rounds for output in outputs)
        committed = sum(sum(output.stats.committed) for output in outputs)
        if self.drafter.num_drafts and rounds >= _WARN_ROUNDS and committed < _WARN_TAU * rounds:
            warnings.warn(
                f"drafter {self.drafter.name!r} committed {committed / rounds:.2f} tokens per round over {rounds} "
                "rounds; the text is right, but speculation costs more than it brings",
                LowAcceptanceWarning,
                stacklevel=3,
            )


def _logprobs(delivery: Delivery) -> list[TokenLogprob]:
    entries = delivery.logprobs or []
    return [
        TokenLogprob(token, raw, processed, tuple(top))
        for token, (raw, processed, top) in zip(delivery.token_ids, entries, strict=bool(entries))
    ]
