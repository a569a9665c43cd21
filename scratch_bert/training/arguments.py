"""What pretraining and fine-tuning share of Trainer's arguments."""

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from ..cli import check_ranges, option, similar


RANGES = {  # of Trainer's own options
    "per_device_train_batch_size": "[1, inf)",
    "per_device_eval_batch_size": "[1, inf)",
    "gradient_accumulation_steps": "[1, inf)",
    "learning_rate": "[0, 10]",
    "weight_decay": "[0, 10]",
    "warmup_steps": "[0, inf)",
    "num_train_epochs": "(0, inf)",
    "adam_beta1": "[0, 1)",
    "adam_beta2": "[0, 1)",
    "adam_epsilon": "(0, 1]",
    "max_grad_norm": "[0, inf)",
    "logging_steps": "(0, inf)",
    "eval_steps": "(0, inf)",
    "save_steps": "(0, inf)",
    "save_total_limit": "[1, inf)",
    "seed": "[0, 4294967296)",
    "dataloader_num_workers": "[0, inf)",
}
# The beginnings of names of options that have no effect on the weights, or differ from one process or machine to another, or
# are recorded as the examples in a step.
UNRECORDED = [
    "output_dir",
    "resume_from",
    "log_",
    "logging_",
    "hub_",
    "push_",
    "run_name",
    "report_to",
    "project",
    "trackio",
    "json_logs",
    "license",
    "show_",
    "disable_tqdm",
    "local_rank",
    "ddp_",
    "use_cpu",
    "dataloader_pin",
    "per_device_train",
    "gradient_accumulation",
]
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass
class CommonArguments(TrainingArguments):
    """`TrainingArguments` with other defaults, and the model's licence."""

    output_dir: str | None = option(None, "Directory for checkpoints, the model, its card and its metrics.")
    resume_from_checkpoint: str | None = option(
        None,
        "auto, or no value: continue the run in output_dir from its newest whole checkpoint; if there is none, start. Or "
        "a checkpoint's directory.",
        nargs="?",
        const="auto",
    )
    per_device_eval_batch_size: int = option(32, "Examples per evaluation step and device.")
    weight_decay: float = option(0.01, "Decoupled weight decay, not applied to biases and LayerNorms.")
    warmup_steps: float = option(0.1, "Steps of linear warm-up, or their share of all steps if below 1.")
    bf16: bool | None = option(
        None,
        "bf16 autocast instead of fp32. Default: on for CPUs with native bf16 multiplication, off for GPUs.",
        nargs="?",
        const=True,
    )
    json_logs: bool = option(False, "Show the log as JSON, one object a line, on stdout.")
    license: str | None = option(
        None, "The model's licence for its card, by the Hub's identifier: apache-2.0, mit, cc-by-4.0, …"
    )
    logging_nan_inf_filter: bool = option(
        False, "Leave losses that are not finite out of the log, and train on. By default they stop the run."
    )
    dataloader_pin_memory: bool = option(torch.accelerator.is_available(), "Pin batches in memory; for accelerators.")
    ddp_find_unused_parameters: bool | None = option(False, "Search each step for parameters without a gradient.")

    def __post_init__(self):
        renew_rendezvous()
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()  # otherwise Trainer refuses bf16 there
        self.bf16_by_default = self.bf16 is None and self.use_cpu and not self.fp16 and cpu_multiplies_bf16()
        self.bf16 = self.bf16 or self.bf16_by_default
        if self.max_steps < 1 and self.max_steps != -1:
            raise ValueError(f"max_steps must be at least 1, or -1 for num_train_epochs, got {self.max_steps}.")
        check_ranges(self, **RANGES)
        super().__post_init__()
        if (
            self.run_name is None
        ):  # without a name, trackio begins another run after the training, for its last evaluation
            self.run_name = "/".join(Path(self.output_dir).parts[-2:])
        if (
            self.trackio_static_space_id is None
        ):  # or a push of the model would publish the log, with paths, as a Space
            self.trackio_static_space_id = False
        if self.torch_compile_mode not in (None, *COMPILE_MODES):
            known = similar(self.torch_compile_mode, COMPILE_MODES) or f" There are {', '.join(COMPILE_MODES)}."
            raise ValueError(f"There is no torch_compile_mode {self.torch_compile_mode}.{known}")
        if self.license and not re.fullmatch(r"[a-z0-9.+-]+", self.license):
            raise ValueError(f"license must be one of the Hub's identifiers, such as mit; got {self.license!r}.")

    def recorded(self) -> dict[str, Any]:
        """What a resumed run tells if it has changed."""
        examples = self.world_size * max(self.n_gpu, 1) * self.per_device_train_batch_size
        examples *= self.gradient_accumulation_steps
        options = {name: value for name, value in self.to_dict().items() if not name.startswith(tuple(UNRECORDED))}
        return {"examples in a step": examples} | options

    def must_stay(self, **fixed: tuple[Any, str]) -> None:
        """Raise `ValueError` for an argument that has another value than the supported one, with the reason given."""
        for name, (value, reason) in fixed.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} must stay {value}: {reason}.")


def cpu_multiplies_bf16() -> bool:
    """Whether this CPU multiplies bf16 natively; otherwise bf16 is slower than fp32."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's name


def renew_rendezvous() -> None:
    """In a process that torchrun has restarted on the only machine of a run, make all processes meet at a new store.

    torchrun hands them the store of the attempt before, with the addresses of processes that are dead: initialization hangs
    or is refused (https://github.com/pytorch/pytorch/issues/135712). With several machines, where the attempts are not
    counted alike, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun helps.
    """
    environment = os.environ
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or environment.get("GROUP_WORLD_SIZE") != "1":
        return
    attempt = environment["TORCHELASTIC_RESTART_COUNT"]
    if attempt == "0":
        return
    from torch.distributed import TCPStore  # which not every build of PyTorch has

    host, key = environment["MASTER_ADDR"], f"scratch_bert/attempt-{attempt}/port"
    store = TCPStore(host, int(environment["MASTER_PORT"]), is_master=False)
    if environment["RANK"] == "0":
        with socket.socket() as free:
            free.bind((host, 0))
            store.set(key, str(free.getsockname()[1]))
    environment["MASTER_PORT"] = store.get(key).decode()
    environment["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # the process of rank 0 opens the new one
