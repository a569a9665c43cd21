"""The options of a pretraining run."""

import os
from pathlib import Path
from typing import ClassVar

from .commands import command
from .data import DataOptions
from .declare import option, options, reject_non_default
from .model import ModelOptions
from .training import EVALUATION, INTERVALS, CommonOptions, SeedsOptions


@options
class PretrainingOptions(SeedsOptions, CommonOptions, group="Training"):
    """The options of training, with the defaults of a short run on the built-in corpus."""

    numbered: ClassVar = "runs/pretrain"

    output_dir: str | None = option(
        None,
        "Directory for checkpoints, the model, its card and its metrics. Default: runs/pretrain-1 or the next free "
        "number; when resuming, the newest.",
    )
    num_train_epochs: float = option(
        6, "Passes over the corpus, each with newly drawn pairs.", within="(0, 1e9]", unless="max_minutes"
    )
    per_device_train_batch_size: int = option(16, "Examples per batch and device.", within="[1, 1000000]")
    learning_rate: float = option(2e-3, "Peak learning rate. BERT-base uses 1e-4.", within="[0, 10]")
    optim: str = option(
        "muon",
        "Optimizer: Muon with AdamW, or one of Trainer's, such as adamw_torch.",
    )
    muon_learning_rate: float = option(0.02, "Peak learning rate of Muon; AdamW uses learning_rate.", within="(0, 10]")
    muon_matrices: str = option(
        "hidden",
        "Matrices trained by Muon: all hidden ones, or only the layers'.",
        choices=("hidden", "layers"),
    )
    weight_decay: float = option(
        0.1,
        "Decoupled weight decay, excluding biases and LayerNorms. With BERT's 0.01, attention collapses in long runs "
        "with Muon.",
        within="[0, 10]",
    )
    pack_sequences: bool = option(
        False,
        "Pack a batch into fewer sequences. For torch_compile, and for GPUs in fp32 or with attention dropout.",
    )
    final_max_seq_length: int | None = option(
        None,
        "Sequence length of the final phase. Needs max_steps or max_minutes.",
        within="[5, 1000000]",
    )
    final_mlm_probability: float | None = option(
        None,
        "Fraction of tokens to predict in the final phase. Needs max_steps or max_minutes.",
        within="(0, 1]",
    )
    final_share: float = option(0.1, "Fraction of the steps, or of the time, in the final phase.", within="(0, 1)")
    eval_strategy: str = option("steps", "When to evaluate.", choices=INTERVALS)
    eval_steps: float | None = option(250, "Steps between evaluations.", within="(0, 1e9]")
    save_total_limit: int | None = option(2, "Number of checkpoints to keep.", within="[1, 1e9]")
    max_eval_examples: int = option(
        4000,
        "Maximum number of examples, evenly spread, to evaluate on during and after training; 0 for all.",
        within="[0, 1e9]",
        group=EVALUATION,
    )
    show_predictions: int = option(
        4, "Masked words and pairs to show predictions for at the end.", within="[0, 1000000]", group=EVALUATION
    )
    snapshots: int | None = option(
        None,
        "Number of models to keep for the page of demo.py. Default: 20, or 0 above 25 M parameters.",
        within="[0, 1000]",
        group=EVALUATION,
    )
    tensorboard_graph: bool = option(False, "Show the model's graph in TensorBoard.", group=EVALUATION)

    def __post_init__(self):
        super().__post_init__()
        if self.seeds:
            reject_non_default(self, ["seed", "push_to_hub"], "with seeds")
        if self.optim != "muon":
            reject_non_default(self, ["muon_learning_rate", "muon_matrices"], "without optim muon")
        if {"tensorboard", "all"}.isdisjoint(self.report_to or ()):
            reject_non_default(self, ["tensorboard_graph"], "without report_to tensorboard")
        if not self.has_final_phase and self.final_share != type(self).final_share:
            raise ValueError("final_share has no effect without final_max_seq_length or final_mlm_probability.")
        if self.has_final_phase and not (self.max_minutes or 0 < self.final_phase_start() < 1):
            raise ValueError(
                f"{'final_max_seq_length' if self.final_max_seq_length else 'final_mlm_probability'} needs max_steps "
                "or max_minutes, and a final_share that leaves steps for both phases."
            )

    @property
    def has_final_phase(self) -> bool:
        return self.final_max_seq_length is not None or self.final_mlm_probability is not None

    def final_phase_start(self) -> float:
        """The fraction of the steps, or of the time, after which the final phase begins."""
        if self.max_minutes:
            return 1 - self.final_share
        return (self.max_steps - round(self.max_steps * self.final_share)) / self.max_steps


def check_nodes(model: ModelOptions, data: DataOptions, training: PretrainingOptions) -> None:
    """Raise `ValueError` if this is a process of a run on several machines, as torchrun and accelerate tell in the
    environment, and each would train a tokenizer on all the text. A run that is resumed has its own."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    has_tokenizer = data.tokenizer_name_or_path or data.prepared_data or model.model_name_or_path
    if has_tokenizer or processes <= int(os.environ.get("LOCAL_WORLD_SIZE", processes)):
        return
    checkpoint = training.resume_from_checkpoint
    if checkpoint and (Path(checkpoint).is_dir() or any(Path(training.output_dir).glob("checkpoint-*"))):
        return
    raise ValueError(
        f"On several machines, each would train a tokenizer on all the text. Train one first, with "
        f"`{command('tokenizer')}`, and pass it as tokenizer_name_or_path; or preprocess the text, with "
        f"`{command('prepare-data')}`, and pass it as prepared_data."
    )
