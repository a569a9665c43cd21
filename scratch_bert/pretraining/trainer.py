"""Trainer for pretraining, which logs the parts of the loss."""

import inspect
import weakref
from collections.abc import Sequence
from functools import partial

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import DataCollator, TrainerCallback
from transformers.trainer_utils import has_length

from ..training.arguments import global_batch_size
from ..training.counting import CountingCollator
from ..training.trainer import ScratchBertTrainer
from .loss_meter import LossMeter
from .metrics import PretrainingMetrics
from .optimizer import muon


class PretrainingTrainer(ScratchBertTrainer):
    """Trainer for pretraining. Logs `losses`, the model's outputs that add up to its loss, the `mlm_accuracy` on the
    masked tokens of some steps, and the `nsp_accuracy` of all. `train_collator` replaces `data_collator` in training
    only. At `stop_at`, a fraction of the training, it saves a checkpoint and stops, to be resumed on other examples.

    Raises `ValueError` for muon with FSDP or DeepSpeed."""

    def __init__(
        self,
        *args,
        train_collator: DataCollator | None = None,
        stop_at: float | None = None,
        losses: Sequence[str] = ("mlm_loss", "nsp_loss"),
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        if getattr(self.options, "optim", None) == "muon" and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise ValueError(
                "optim muon needs complete matrices, which FSDP and DeepSpeed divide: choose another optim."
            )
        self.train_collator = train_collator or self.data_collator
        if self.counts_on_the_host:
            self.train_collator = CountingCollator(self.train_collator, compiled=self.args.torch_compile)
        self._losses = LossMeter(losses)
        self.stop_at = stop_at
        if stop_at is not None:
            self.add_callback(StopCallback(stop_at, self))

    def get_train_dataloader(self) -> DataLoader:
        eval_collator, self.data_collator = self.data_collator, self.train_collator
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = eval_collator

    def get_eval_dataloader(self, eval_dataset: str | Dataset | None = None) -> DataLoader:
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False  # it is for training
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_drop_last = drop_last

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        args, options, model = self.args, self.options, self.model if model is None else model
        if self.optimizer is None and getattr(options, "optim", None) == "muon":
            self.optimizer = muon(
                model,
                lr=args.learning_rate,
                muon_lr=options.muon_learning_rate,
                weight_decay=args.weight_decay,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
                dtype=torch.bfloat16 if args.bf16 else torch.float32,
                shared=args.world_size > 1,
                matrices=options.muon_matrices,
            )
        return super().create_optimizer(model)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            # Parts divided by num_items_in_batch add up to the step's mean over micro-batches, and over devices if the
            # count is that of all devices; parts that are means must be averaged.
            weight = 1.0 if num_items_in_batch is not None else 1.0 / self.current_gradient_accumulation_steps
            shared_count = num_items_in_batch is not None and self.args.average_tokens_across_devices
            if not shared_count:
                weight /= self.accelerator.num_processes
            self._losses.update(outputs, self.state.global_step, weight, add_up=shared_count)
            if (self.state.global_step + 1) % min(
                self.state.logging_steps, 10
            ) == 0:  # comparing logits in each step costs 1%
                logits = outputs["prediction_logits" if "prediction_logits" in outputs else "logits"]
                self._losses.update_accuracy("mlm_accuracy", logits.detach(), inputs["labels"])
            pairs, labels = outputs.get("seq_relationship_logits"), inputs.get("next_sentence_label")
            if pairs is not None and labels is not None and labels.dim() == 1:  # not packed
                self._losses.update_accuracy("nsp_accuracy", pairs.detach(), labels)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model, inputs, *args, **kwargs):
        # PretrainingMetrics needs the MLM head at masked tokens only; at all tokens, it takes longer than the encoder.
        reduces = isinstance(getattr(self.preprocess_logits_for_metrics, "__self__", None), PretrainingMetrics)
        takes_it = "sparse_prediction" in inspect.signature(self.model.forward).parameters
        if reduces and takes_it and self.model.config.sparse_prediction:
            inputs = {**inputs, "sparse_prediction": True}
        return super().prediction_step(model, inputs, *args, **kwargs)

    def _seconds_to_evaluate(self, dataset: Dataset) -> float:
        seconds = super()._seconds_to_evaluate(dataset)
        final_length = self.options.final_max_seq_length if self.stop_at is not None else None
        return seconds * final_length / self.train_dataset.max_seq_length if final_length else seconds

    @property
    def examples_seen(self) -> int:
        """The examples of all steps, also before a resume; the last batch of an epoch may have been smaller."""
        seen = self.state.global_step * global_batch_size(self.args)
        return min(seen, round(self.state.epoch * len(self.train_dataset))) if has_length(self.train_dataset) else seen

    @property
    def examples_per_minute(self) -> float:
        """At the latest speed in the log, without evaluations and checkpoints; 0 if there is none yet."""
        tokens_per_example = self.state.num_input_tokens_seen / max(self.examples_seen, 1)
        return 60 * self.latest_metrics().get("speed/tokens_per_second", 0) / max(tokens_per_example, 1)

    @property
    def will_resume_later(self) -> bool:
        return super().will_resume_later or self.stop_at is not None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= self._losses.report(self.state.global_step, partial(self.accelerator.reduce, reduction="sum"))
        super().log(logs, start_time)


class StopCallback(TrainerCallback):
    """Saves a checkpoint when this fraction of the training is done, and stops it."""

    def __init__(self, fraction: float, trainer: ScratchBertTrainer):
        self.fraction, self.trainer = fraction, weakref.proxy(trainer)  # it keeps its callbacks

    def on_step_end(self, args, state, control, **kwargs):
        if self.trainer.fraction_done >= self.fraction:
            control.should_save = control.should_training_stop = True
            args.save_only_model = False  # or what comes next could not resume
