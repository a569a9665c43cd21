"""The options of fine-tuning on all tasks of GLUE."""

from dataclasses import dataclass
from typing import ClassVar

from .finetuning import GLUE_TASKS, CheckpointArguments, FinetuningOptions, RunArguments
from .options import OptionGroup, option
from .training import INTERVALS


@dataclass
class GlueDataArguments(OptionGroup, group="Data"):
    data: str = option(
        "hub",
        "Directory with GLUE's own folders (CoLA, SST-2, …), each with train.tsv and dev.tsv, also gzipped; hub: "
        "nyu-mll/glue.",
        path=True,
    )
    tasks: list[str] | None = option(
        None, f"Tasks to train, of {', '.join(GLUE_TASKS)}. Default: all that are found.", choices=GLUE_TASKS
    )
    keep_models: bool = option(
        False, "Keep the fine-tuned models, too: one for each task and seed, 12 GB for BERT-base on all tasks."
    )


@dataclass
class GlueArguments(RunArguments, GlueDataArguments, CheckpointArguments):
    """What to fine-tune on GLUE. Raises `ValueError` for values that do not go together."""

    seeds: list[int] | None = option(
        None,
        "Train on each task once with each seed, and report mean and standard deviation. Default: 1 2 3.",
        within="[0, 4294967296)",
    )

    def __post_init__(self):
        self.seeds = self.seeds or [1, 2, 3]
        super().__post_init__()
        if self.tasks and len(set(self.tasks)) < len(self.tasks):
            raise ValueError(f"tasks must differ, got {' '.join(self.tasks)}.")


@dataclass
class GlueOptions(FinetuningOptions):
    """The options of training: the same for all tasks. The scores are those of the last step, so that no checkpoint is
    selected by the sets that are reported."""

    numbered: ClassVar = "runs/glue"

    output_dir: str | None = option(
        None,
        "Directory for glue.json, glue.md and the runs, in TASK/seed-N. Default: runs/glue-1, or the next number that is free; to resume, the newest.",
    )
    num_train_epochs: float = option(5, "Passes over the training examples.", within="(0, 1e9]")
    eval_strategy: str = option("no", "When to evaluate during the training.", choices=INTERVALS)
    save_strategy: str = option(
        "no", "When to save a checkpoint; Ctrl-C also saves one.", choices=[*INTERVALS, "best"]
    )
    load_best_model_at_end: bool = option(
        False, "Report the best checkpoint instead of the last step, which is optimistic: the same set selects it."
    )
