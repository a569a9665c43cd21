"""The options of training that pretraining and fine-tuning share."""

import re
from dataclasses import field
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar

from pydantic import Field

from .commands import installation
from .declare import OptionGroup, option, options
from .outputs import numbered_dir


EVALUATION = "Evaluation, checkpoints and log"
INTERVALS = ("no", "steps", "epoch")
Seed = Annotated[int, Field(ge=0, lt=2**32)]


@options
class SeedsOptions(OptionGroup, group="Training"):
    seeds: list[Seed] | None = option(
        None, "Run once with each seed, in output_dir/seed-N; report mean and standard deviation."
    )

    def __post_init__(self):
        super().__post_init__()
        if self.seeds and len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must differ, got {self.seeds}.")


@options
class OptimizationOptions(OptionGroup, group="Training"):
    numbered: ClassVar[str]
    """The default of output_dir, without its number."""

    output_dir: str | None = option(None, "Directory for checkpoints, the model, its card and its metrics.")
    resume_from_checkpoint: str | None = option(
        None,
        "Resume from this checkpoint; auto, or no value: from the latest intact one in output_dir, or a new run.",
        const="auto",
    )
    num_train_epochs: float = option(3, "Passes over the training examples.", within="(0, 1e9]", unless="max_minutes")
    max_steps: int = option(-1, "Number of training steps, instead of num_train_epochs.", within="[-1, 1e9]")
    max_minutes: float | None = option(
        None,
        "Train and evaluate for this many minutes, instead of num_train_epochs: warm-up and schedule follow the clock, "
        "and the learning rate ends at 0 whatever the machine's speed.",
        within="(0, 1e6]",
    )
    per_device_train_batch_size: int = option(8, "Examples per batch and device.", within="[1, 1000000]")
    gradient_accumulation_steps: int = option(1, "Batches per optimizer step.", within="[1, 1000000]")
    learning_rate: float = option(5e-5, "Peak learning rate.", within="[0, 10]")
    lr_scheduler_type: str = option("linear", "Learning rate schedule after the warm-up.")
    warmup_steps: float = option(0.1, "Steps of linear warm-up; below 1, a fraction of all steps.", within="[0, 1e9]")
    weight_decay: float = option(0.01, "Decoupled weight decay, excluding biases and LayerNorms.", within="[0, 10]")
    adam_beta1: float = option(0.9, "Decay rate of AdamW's first moment.", within="[0, 1)")
    adam_beta2: float = option(0.999, "Decay rate of AdamW's second moment.", within="[0, 1)")
    adam_epsilon: float = option(1e-8, "AdamW's epsilon.", within="(0, 1]")
    max_grad_norm: float = option(1.0, "Gradient norm to clip to; 0 for no clipping.", within="[0, 1e9]")
    bf16: bool | None = option(None, "bf16 autocast instead of fp32. Default: on if faster on this CPU or GPU.")
    torch_compile: bool = option(False, "Compile the model with torch.compile.")
    use_cpu: bool = option(False, "Train on the CPU, even if there is a GPU.")
    dataloader_num_workers: int = option(0, "Number of processes that load data.", within="[0, 1000]")
    seed: int = option(42, "Random seed.", within="[0, 4294967296)")

    def __post_init__(self):
        super().__post_init__()
        if str(self.resume_from_checkpoint).lower() == "false":
            self.resume_from_checkpoint = None
        self.is_numbered = not self.output_dir
        self.output_dir = self.output_dir or numbered_dir(self.numbered, self.resume_from_checkpoint)
        if self.max_steps == 0:
            raise ValueError("max_steps must be at least 1, or -1 for num_train_epochs.")
        if self.max_minutes is None:
            return
        if self.max_steps != -1:
            raise ValueError("max_steps has no effect with max_minutes: leave it out, or set it to -1.")
        if self.warmup_steps >= 1:
            raise ValueError(
                f"With max_minutes, warmup_steps must be a fraction of the time, below 1, got {self.warmup_steps:g}."
            )
        if self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):
            raise ValueError(f"lr_scheduler_type {self.lr_scheduler_type} cannot follow a clock: choose another.")

    def how_to_resume(self) -> str:
        """What to type to continue the run. Without its directory, the newest run would continue."""
        directory = f"--output_dir {self.output_dir} " if self.is_numbered else ""
        return f"the same command with {directory}--resume_from_checkpoint auto"


@options
class LoggingOptions(OptionGroup, group=EVALUATION):
    eval_strategy: str = option("no", "When to evaluate.", choices=INTERVALS)
    eval_steps: float | None = option(None, "Steps between evaluations. Default: logging_steps.", within="(0, 1e9]")
    per_device_eval_batch_size: int = option(32, "Examples per evaluation step and device.", within="[1, 1000000]")
    save_strategy: str = option("steps", "When to save a checkpoint.", choices=[*INTERVALS, "best"])
    save_steps: float = option(500, "Steps between checkpoints.", within="(0, 1e9]")
    save_total_limit: int | None = option(None, "Number of checkpoints to keep.", within="[1, 1e9]")
    load_best_model_at_end: bool = option(False, "Load the best checkpoint after training.")
    metric_for_best_model: str | None = option(None, "Metric that selects the best checkpoint.")
    logging_steps: float = option(
        100, "Steps between log lines; with max_minutes, also every 30 s.", within="(0, 1e9]"
    )
    logging_nan_inf_filter: bool = option(
        False, "Continue if the loss is not finite, and leave it out of the log, instead of stopping."
    )
    json_logs: bool = option(False, "Print the log as JSON on stdout, one object per line.")
    report_to: list[str] | None = option(None, "Experiment trackers, such as tensorboard or trackio.")

    def __post_init__(self):
        super().__post_init__()
        self.report_to = self.report_to and ",".join(self.report_to).split(",")  # also written with commas
        for tracker in self.report_to or ():
            known = tracker in ("mlflow", "tensorboard", "trackio", "wandb")
            if known and not (find_spec(tracker) or find_spec(f"{tracker}X")):  # or tensorboardX
                raise ValueError(f"report_to {tracker} is not installed: `{installation(tracker)}`, or leave it out.")


@options
class HubOptions(OptionGroup, group="Hub"):
    push_to_hub: bool = option(False, "Publish the model on the Hugging Face Hub at each save.")
    hub_model_id: str | None = option(
        None, "Repository of the model: user/name. Default: the name of output_dir.", requires="push_to_hub"
    )
    hub_private_repo: bool | None = option(None, "Make a new repository private.")
    license: str | None = option(None, "License for the model card: an identifier of the Hub, such as apache-2.0.")

    def __post_init__(self):
        super().__post_init__()
        if self.license and not re.fullmatch(r"[a-z0-9.+-]+", self.license):
            raise ValueError(f"license must be one of the Hub's identifiers, such as mit; got {self.license!r}.")


@options
class CommonOptions(HubOptions, LoggingOptions, OptimizationOptions):
    """The options that pretraining and fine-tuning share."""

    trainer: dict[str, Any] = field(default_factory=dict)
    """All other options of Trainer by name: see `make_training_arguments`."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("eval_steps", "save_steps", "logging_steps"):
            if self.max_minutes is not None and (getattr(self, name) or 1) < 1:
                raise ValueError(f"With max_minutes, {name} must be a number of steps, as their total is unknown.")
