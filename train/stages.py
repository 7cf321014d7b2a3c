"""The stages of a recipe over one folder: prompts, answers, draft, adapter, export.

RUN/prompts.npz      tokenised prompts              python -m train prompts
RUN/answers/         the target's answers           python -m train data
RUN/draft/           checkpoints, metrics.jsonl     python -m train draft
RUN/adapter/         the same for the adapter       python -m train adapter
RUN/drafter/         what `jetspec_jax.load(..., drafter="RUN/drafter")` takes

Calibration and evaluation of the result are in `assess.py`.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jetspec_jax.checkpoints.drafter_files import save_drafter
from jetspec_jax.checkpoints.loading import load_target
from jetspec_jax.checkpoints.resolve import Checkpoint, resolve
from jetspec_jax.models.adapter import Adapter
from jetspec_jax.models.draft import Draft
from jetspec_jax.models.functional import Leaves
from jetspec_jax.models.target import Target
from jetspec_jax.text.tokenizer import Tokenizer, load_tokenizer
from train.adapter_task import AdapterTask
from train.answers import AnswerSource
from train.data import DataReport, make_answers
from train.devices import is_primary
from train.draft_task import DraftTask
from train.export import best_checkpoint, best_params, has_checkpoint, load_modules, master_weights, result_facts
from train.folders import Folders, split_records
from train.loop import RunResult, run
from train.mask_report import mask_report
from train.measure import Measure
from train.presets import Preset, Schedule
from train.prompt_set import PromptSet
from train.run_config import RunConfig
from train.tiny import TARGET, tiny_prompts, tiny_target_folder


class Recipe:
    """A preset over a folder, with the target loaded when it is needed.

    Args:
        preset: what to do.
        folder: where to.
        dtype: of the target; None takes bfloat16 on accelerators, float32 on CPU.
        target: instead of the preset's, with `tokenizer`.
    """

    def __init__(
        self,
        preset: Preset,
        folder: Path,
        *,
        dtype: DTypeLike | None = None,
        target: Target | None = None,
        tokenizer: Tokenizer | None = None,
    ):
        self.preset, self.folders = preset, Folders(Path(folder))
        self._dtype = dtype
        if target is not None:
            self.target = target
        if tokenizer is not None:
            self.tokenizer = tokenizer

    @cached_property
    def target(self) -> Target:
        """The frozen model."""
        dtype = self._dtype
        if dtype is None:
            dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
        return load_target(self._checkpoint, dtype=dtype, taps=self.preset.taps)

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        if self.preset.target == TARGET:
            return resolve(tiny_target_folder(self.folders.root))
        return resolve(self.preset.target)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer."""
        return load_tokenizer(self._checkpoint.path)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """What ends a turn."""
        return tuple(self.target.config.eos_token_ids or self.tokenizer.eos_token_ids)

    def make_prompts(self) -> PromptSet:
        """Collects, deduplicates and tokenises prompts, and writes them."""
        from train.prompts.collect import collect_prompts  # needs the packages of the extra `data`

        if self.preset.target == TARGET:
            return self.keep_prompts(tiny_prompts())
        if self.preset.prompts is None:
            raise ValueError(
                f"preset {self.preset.name!r} takes its prompts from {', '.join(self.preset.hub_datasets)}; write "
                f"them to a JSON-lines file of source and text and give it with --prompts"
            )
        return self.keep_prompts(collect_prompts(self.preset.prompts))

    def keep_prompts(self, prompts: list) -> PromptSet:
        """Tokenises prompts and writes them."""
        encoded = PromptSet.encode(prompts, self.tokenizer, max_len=self.preset.data.engine.max_prompt_len)
        split_records(len(encoded.token_ids), self.preset.held_out)  # refuses too few
        self.folders.root.mkdir(parents=True, exist_ok=True)
        encoded.save(self.folders.prompts)
        return encoded

    def make_data(self, *, max_seconds: float | None = None, note: Callable[[str], Any] = print) -> DataReport:
        """Lets the target answer the prompts."""
        return make_answers(
            self.target,
            self.end_ids,
            PromptSet.load(self.folders.prompts),
            self.preset.data,
            self.folders.answers,
            target_name=self.preset.target,
            max_seconds=max_seconds,
            note=note,
        )

    def held_out(self) -> list[list[int]]:
        """Prompts of the records that no stage trains on."""
        source = self.folders.source(1)
        numbers = split_records(len(source), self.preset.held_out)[0]
        return [source.token_ids(int(n))[: source.prompt_lens[n]].tolist() for n in numbers]

    def training_source(self, max_len: int) -> AnswerSource:
        """The records that stages train on."""
        everything = self.folders.source(max_len)
        return everything.only(split_records(len(everything), self.preset.held_out)[1].tolist())

    def measure(self) -> Measure:
        """Decodes held-out prompts."""
        return Measure(self.target, self.held_out(), self.end_ids, self.preset.measure)

    @cached_property
    def draft_task(self) -> DraftTask:
        """The draft's training."""
        stage = self.preset.draft
        return DraftTask(
            self.target,
            stage.config_for(self.target.config),
            stage.objective,
            self.measure(),
            adapter=self._needed_adapter() if stage.objective.predicted_share else None,
            starts_from_target=stage.starts_from_target,
        )

    @cached_property
    def adapter_task(self) -> AdapterTask:
        """The adapter's training, measured with the exported draft if there is one."""
        stage = self.preset.adapter
        return AdapterTask(
            self.target,
            stage.config_for(self.target.config),
            stage.objective,
            self.measure(),
            draft=self.exported_draft(),
            starts_from_target=stage.starts_from_target,
        )

    def train_draft(
        self,
        *,
        name: str = DraftTask.name,
        start_from: Path | None = None,
        max_seconds: float | None = None,
        note: Callable[[str], Any] = print,
    ) -> RunResult:
        """Trains the draft and exports the best checkpoint.

        Args:
            name: of the folder for checkpoints and metrics; another one for another run over the same answers.
            start_from: a drafter folder whose draft training starts from; None starts as the preset says. A run that
                goes on takes its own weights, and must be given the same folder.
            max_seconds: wall-clock limit; what there is then is saved, measured and exported.
            note: told what is supervised.
        """
        self._check_answers()
        params = None if start_from is None else master_weights(load_modules(start_from, self.target)[0], start_from)
        result = self._run(name, self.draft_task, self.preset.draft, params, start_from, max_seconds, note)
        adapter = self._exported_adapter()  # a draft may be trained again, on predicted states for one
        if adapter is not None:
            note("the adapter stays; a calibration was fitted to the old draft and goes")
        self.export(self.draft_task.module(best_params(result)), adapter, {"draft": result_facts(result)})
        return result

    def train_adapter(
        self,
        *,
        name: str = AdapterTask.name,
        start_from: Path | None = None,
        max_seconds: float | None = None,
        note: Callable[[str], Any] = print,
    ) -> RunResult:
        """Trains the adapter and exports it with the draft; see `train_draft` for the arguments."""
        self._check_answers()
        params = None if start_from is None else master_weights(load_modules(start_from, self.target)[1], start_from)
        result = self._run(name, self.adapter_task, self.preset.adapter, params, start_from, max_seconds, note)
        draft = self.exported_draft()  # it may have been trained meanwhile
        if draft is None:
            note(f"no draft in {self.folders.drafter}: train it, then `python -m train export`")
        else:
            self.export(draft, self.adapter_task.module(best_params(result)), {"adapter": result_facts(result)})
        return result

    def export_checkpoints(self, *, storage: str = "bfloat16") -> None:
        """Exports the best checkpoint of each stage, the newest where none was measured.

        A calibration in the folder was fitted on the weights that were there and goes with them.
        """
        root = self.folders.root
        draft, facts = best_checkpoint(self.draft_task, root / DraftTask.name)
        training, adapter = {"draft": facts}, None
        if has_checkpoint(root / AdapterTask.name):
            adapter, training["adapter"] = best_checkpoint(self.adapter_task, root / AdapterTask.name)
        self.export(draft, adapter, training, storage=storage)

    def _exported_adapter(self) -> Adapter | None:
        return load_modules(self.folders.drafter, self.target)[1] if self.folders.drafter.exists() else None

    def _needed_adapter(self) -> Adapter:
        adapter = self._exported_adapter()
        if adapter is None:
            raise ValueError(f"predicted states need a trained adapter in {self.folders.drafter}; train it first")
        return adapter

    def _check_answers(self) -> None:
        """Before the target is loaded: what is missing is said at once."""
        self.folders.answer_facts(self.preset.target)

    def exported_draft(self) -> Draft | None:
        """The draft of the export, None before there is one."""
        if not self.folders.drafter.exists():
            return None
        return load_modules(self.folders.drafter, self.target)[0]

    def export(
        self, draft: Draft, adapter: Adapter | None, training: dict[str, Any], *, storage: str = "bfloat16"
    ) -> None:
        """Writes the drafter folder, on process 0 of a run."""
        if not is_primary():
            return
        save_drafter(
            self.folders.drafter,
            draft,
            adapter,
            None,
            target=self.target.config,
            target_name=self.preset.target,
            storage=storage,
            training={"preset": self.preset.name} | training,
        )

    def _run(
        self,
        name: str,
        task: Any,
        stage: Any,
        params: Leaves | None,
        start_from: Path | None,
        max_seconds: float | None,
        note: Callable[[str], Any],
    ) -> RunResult:
        schedule: Schedule = stage.schedule
        source = self.training_source(schedule.max_len)
        if is_primary():
            note(mask_report(source, self.tokenizer))
        fields = {name: value for name, value in asdict(schedule).items() if name != "max_len"}
        config = RunConfig(folder=self.folders.root / name, max_seconds=max_seconds, **fields)
        settings = {name: value for name, value in asdict(stage).items() if name not in ("schedule", "optimizer")}
        facts = {
            "stage": settings,
            "max_len": schedule.max_len,
            "taps": self.target.config.taps,
            "held_out": self.preset.held_out,
            "answers": self.folders.answer_facts(self.preset.target),
            "start_from": None if start_from is None else Path(start_from).name,
        }
        # The learning rate ends with the schedule.
        optimizer = replace(stage.optimizer, total_steps=schedule.num_steps)
        return run(task, source, optimizer, config, init_params=params, facts=json.loads(json.dumps(facts)))
