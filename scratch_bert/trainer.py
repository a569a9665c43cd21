"""The stock Trainer, plus what pretraining needs: both losses in the log, new rows each epoch, a Ctrl-C that saves."""

import signal
import threading
import zipfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import DataCollator, EarlyStoppingCallback, TrainerCallback, TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import logging

from .configuration_scratch_bert import PRESETS, ScratchBertConfig
from .publishing import WEIGHTS, PublishingTrainer, is_complete


logger = logging.get_logger(__name__)
TIMINGS = ("_runtime", "_per_second", "_time")  # how the names end of what Trainer adds to an evaluation's figures


class InterruptibleTrainer(PublishingTrainer):
    """Trainer that on Ctrl-C ends the step, saves a checkpoint and stops; and publishes as `PublishingTrainer`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._interrupt = InterruptCallback()
        self.add_callback(self._interrupt)

    def train(self, *args, **kwargs):
        with self._interrupt:
            return super().train(*args, **kwargs)

    @property
    def interrupted(self) -> bool:
        """Whether a Ctrl-C ended the training."""
        return self._interrupt.interrupted


class PreTrainingTrainer(InterruptibleTrainer):
    """Trainer for `ScratchBertForPreTraining`: logs `mlm_loss` and `nsp_loss` beside their sum, and tells the training
    set which epoch begins. `train_collator` takes the place of `data_collator` in training alone."""

    def __init__(self, *args, train_collator: DataCollator | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.train_collator = train_collator or self.data_collator
        self._loss_sums: dict[str, torch.Tensor] = {}
        self.add_callback(SetEpochCallback)

    def get_train_dataloader(self) -> DataLoader:
        evaluating, self.data_collator = self.data_collator, self.train_collator
        try:
            return super().get_train_dataloader()
        finally:
            self.data_collator = evaluating

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
        return (loss, outputs) if return_outputs else loss

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy == "group_by_length" and hasattr(dataset, "lengths"):
            batch_size = self.args.train_batch_size * self.args.gradient_accumulation_steps
            return LengthGroupedRows(batch_size, dataset, self.args.seed)
        return super()._get_train_sampler(train_dataset)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._loss_sums:
            steps = max(self.state.global_step - self._loss_sums_since, 1)
            for name, total in self._loss_sums.items():
                logs[name] = (self.accelerator.reduce(total, "sum") / steps).item()
            self._loss_sums = {}
        super().log(logs, start_time)


class SetEpochCallback(TrainerCallback):
    # accelerate does this for one process, but not for several.
    def on_epoch_begin(self, args, state, control, train_dataloader=None, **kwargs):
        dataset = getattr(train_dataloader, "dataset", None)
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(int(state.epoch))


class LengthGroupedRows(LengthGroupedSampler):
    """Batches of rows of similar length: the stock sampler, with the lengths of each epoch's own rows, and the same
    order in every process."""

    def __init__(self, batch_size: int, dataset: Dataset, seed: int):
        super().__init__(batch_size, lengths=dataset.lengths().tolist())
        self.dataset, self.seed = dataset, seed

    def __iter__(self):
        self.lengths = self.dataset.lengths().tolist()
        self.generator = torch.Generator().manual_seed(self.seed + self.dataset.epoch)
        return super().__iter__()


class PatienceCallback(EarlyStoppingCallback):
    """Early stopping that goes on counting in a resumed run."""

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]


class InterruptCallback(TrainerCallback):
    """Within `with`, the first Ctrl-C ends the step, saves and stops; a second one stops at once."""

    interrupted = False
    previous_handler = None

    def __enter__(self):
        self.interrupted = False
        if threading.current_thread() is threading.main_thread():  # no other thread gets signals
            self.previous_handler = signal.signal(signal.SIGINT, self.interrupt)

    def interrupt(self, signum, frame):
        self.interrupted = True
        signal.signal(signal.SIGINT, self.previous_handler)
        logger.warning("Interrupted: ending this step and saving a checkpoint. Press Ctrl-C again to stop at once.")

    def on_step_end(self, args, state, control, **kwargs):
        if self.interrupted:
            control.should_save = control.should_training_stop = True

    def __exit__(self, *exception):
        if self.previous_handler is not None:
            signal.signal(signal.SIGINT, self.previous_handler)


def find_checkpoint(args: TrainingArguments) -> str | None:
    """The checkpoint that `args.resume_from_checkpoint` asks for: a directory, or `last` for the newest in output_dir.

    None for a new run. Raises `ValueError` if there is no such checkpoint, if it is damaged, or if the output directory is
    not empty and the checkpoint not of the run in it.
    """
    output_dir, checkpoint = Path(args.output_dir), args.resume_from_checkpoint
    if str(checkpoint).lower() in ("last", "true"):
        checkpoint = get_last_checkpoint(output_dir) if output_dir.is_dir() else None
    if args.resume_from_checkpoint and (checkpoint is None or not Path(checkpoint).is_dir()):
        raise ValueError(
            f"There is no checkpoint to resume from in {checkpoint or output_dir}. Start a new run without "
            "--resume_from_checkpoint."
        )
    goes_on = checkpoint and Path(checkpoint).absolute().parent.resolve() == output_dir.resolve()
    if not goes_on and args.should_save and output_dir.exists() and any(output_dir.iterdir()):
        raise ValueError(
            f"The output directory {output_dir} is not empty. Pass --resume_from_checkpoint to continue the run in it, or "
            "another --output_dir to start a new one."
        )
    if checkpoint is None:
        return None
    for name in (WEIGHTS, "optimizer.pt", "scheduler.pt", "trainer_state.json"):
        if not _can_be_read(Path(checkpoint) / name):
            raise ValueError(
                f"The checkpoint {checkpoint} cannot be resumed from: {name} is missing or cut short. Name an earlier "
                "checkpoint: --resume_from_checkpoint DIRECTORY."
            )
    return str(checkpoint)


def check_same_architecture(config: ScratchBertConfig, checkpoint: str) -> None:
    """Raise `ValueError` if the model that `checkpoint` holds is not the one that `config` describes."""
    saved = ScratchBertConfig.from_pretrained(checkpoint)
    for name in {
        *PRESETS["tiny"],
        "vocab_size",
        "max_position_embeddings",
        "head_dim",
        "position_embedding_type",
        "norm_first",
    }:
        if getattr(saved, name) != getattr(config, name):
            raise ValueError(
                f"The checkpoint {checkpoint} has {name}={getattr(saved, name)}, but the options ask for "
                f"{getattr(config, name)}. Resume with the options that the run was started with."
            )


def _can_be_read(file: Path) -> bool:
    if file.suffix == ".pt":
        return zipfile.is_zipfile(file)  # what torch saves ends with the zip format's directory
    if file.suffix == ".json":
        return file.is_file() and file.read_text(encoding="utf-8").rstrip().endswith("}")
    return is_complete(file)
