"""Trainer for pretraining: both losses in the log, new examples each epoch."""

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import DataCollator, TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler

from ..training.trainer import ScratchBertTrainer
from .arguments import OwnOptimizerNames
from .data.collator import CountingCollator
from .optimizer import muon


class PretrainingTrainer(ScratchBertTrainer):
    """Trainer for pretraining: logs `mlm_loss` and `nsp_loss` (also for SOP) beside their sum, and `mlm_accuracy`, of the
    step's own masked tokens; calls the training set's `set_epoch`. `train_collator` replaces `data_collator` in training
    only. `PretrainingArguments` with the `optim` muon train with `MuonWithAdamW`. With `stop_after`, a step, it saves a
    checkpoint there and stops, to be resumed from by a trainer with other examples."""

    def __init__(self, *args, train_collator: DataCollator | None = None, stop_after: int | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        if self.args.optim == OwnOptimizerNames.MUON and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise ValueError(
                "optim muon needs whole matrices, which FSDP and DeepSpeed divide among the devices: train without them, "
                "or choose another optim."
            )
        self.train_collator = train_collator or self.data_collator
        if self.args.device.type != "cpu" and self.args.n_gpu < 2 and not self.args.torch_compile:
            self.train_collator = CountingCollator(self.train_collator)
        self._loss_sums: dict[str, torch.Tensor] = {}
        self._mlm_correct = torch.zeros(2, dtype=torch.long, device=self.args.device)  # of how many tokens
        self.stop_after = stop_after
        if stop_after:
            self.add_callback(StopCallback(stop_after))

    def get_train_dataloader(self) -> DataLoader:
        evaluating, self.data_collator = self.data_collator, self.train_collator
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = evaluating

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        args, model = self.args, self.model if model is None else model
        if self.optimizer is None and args.optim == OwnOptimizerNames.MUON:
            self.optimizer = muon(
                model,
                lr=args.learning_rate,
                muon_lr=args.muon_learning_rate,
                weight_decay=args.weight_decay,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
                dtype=torch.bfloat16 if args.bf16 else torch.float32,
            )
        return super().create_optimizer(model)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            # Parts divided by num_items_in_batch add up to the step's mean over micro-batches, and over devices if
            # these share the count; parts that are means have to be averaged.
            weight = 1.0 if num_items_in_batch is not None else 1.0 / self.current_gradient_accumulation_steps
            shared_count = num_items_in_batch is not None and self.args.average_tokens_across_devices
            if not shared_count:
                weight /= self.accelerator.num_processes
            if not self._loss_sums:
                self._loss_sums_since = self.state.global_step
            for name in ("mlm_loss", "nsp_loss"):
                if outputs.get(name) is not None:
                    part = outputs[name].detach()  # one number, or one for each GPU under DataParallel
                    part = part.sum() if shared_count else part.mean()
                    self._loss_sums[name] = self._loss_sums.get(name, 0.0) + part * weight
            # Comparing logits in each step would cost 1%.
            if (self.state.global_step + 1) % self.state.logging_steps == 0:
                logits = outputs["prediction_logits" if "prediction_logits" in outputs else "logits"].detach()
                labels = inputs["labels"][inputs["labels"] != -100]  # (M,)
                logits = logits if logits.dim() == 2 else logits[inputs["labels"] != -100]  # (M, V)
                correct = (logits.argmax(-1) == labels).sum()
                self._mlm_correct = self._mlm_correct + torch.stack([correct, torch.ones_like(labels).sum()])
        return (loss, outputs) if return_outputs else loss

    def count_predicted(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor | int:
        return inputs["num_masked"] if "num_masked" in inputs else (inputs["labels"] != -100).sum()

    @property
    def stops_early(self) -> bool:
        return super().stops_early or self.stop_after is not None

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy == "group_by_length" and hasattr(dataset, "lengths"):
            batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps
            return EpochLengthGroupedSampler(batch_size, dataset, self.args.seed)
        return super()._get_train_sampler(train_dataset)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._loss_sums:
            steps = max(self.state.global_step - self._loss_sums_since, 1)
            for name, total in self._loss_sums.items():
                logs[name] = (self.accelerator.reduce(total, "sum") / steps).item()
            self._loss_sums = {}
            correct, count = self.accelerator.reduce(self._mlm_correct, "sum").tolist()
            if count:
                logs["mlm_accuracy"] = correct / count
            self._mlm_correct = torch.zeros_like(self._mlm_correct)
        super().log(logs, start_time)


class StopCallback(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= self.step:
            control.should_save = control.should_training_stop = True


class EpochLengthGroupedSampler(LengthGroupedSampler):
    """Batches of examples of similar length: the stock sampler, with the lengths of each epoch's own examples, and the same
    order in every process."""

    def __init__(self, batch_size: int, dataset: Dataset, seed: int):
        super().__init__(batch_size, lengths=dataset.lengths().tolist())
        self.dataset, self.seed = dataset, seed

    def __iter__(self):
        self.lengths = self.dataset.lengths().tolist()
        self.generator = torch.Generator().manual_seed(self.seed + self.dataset.epoch)
        return super().__iter__()
