"""What pretraining and fine-tuning share of Trainer's arguments."""

import inspect
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import SchedulerType, TrainingArguments, get_scheduler
from transformers.debug_utils import DebugOption
from transformers.integrations import get_available_reporting_integrations

from scratch_bert_cli.options import OTHERS, check_range
from scratch_bert_cli.training import RANGES, CommonOptions

from ..cli import option, similar
from .clock import UNKNOWN_STEPS


# Beginnings of the names of options that do not affect the weights, differ between processes or machines, or are
# recorded in the global batch size.
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
class CommonArguments(CommonOptions, TrainingArguments, group=OTHERS):
    """`TrainingArguments` with other defaults, ranges, and our options."""

    adam_beta1: float = option(0.9, "Decay rate of AdamW's first moment.", within="[0, 1)")
    adam_beta2: float = option(0.999, "Decay rate of AdamW's second moment.", within="[0, 1)")
    adam_epsilon: float = option(1e-8, "AdamW's epsilon.", within="(0, 1]")
    dataloader_pin_memory: bool = option(torch.accelerator.is_available(), "Pin batches in memory; for accelerators.")
    ddp_find_unused_parameters: bool | None = option(False, "Search each step for parameters without a gradient.")

    def __post_init__(self):
        if str(self.resume_from_checkpoint).lower() == "false":
            self.resume_from_checkpoint = None
        renew_rendezvous()
        if self.max_minutes is not None and self.max_steps == UNKNOWN_STEPS:  # a copy by dataclasses.replace
            self.max_steps = -1
        super().__post_init__()
        for name, interval in RANGES.items():
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), interval)
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()  # otherwise Trainer rejects bf16 there
        if self.fp16 and self.use_cpu:  # the stock Trainer would use fp32 without a word
            raise ValueError("fp16 needs a GPU: leave it out, or choose bf16.")
        chosen = self.bf16 is not None or self.fp16 or self.deepspeed is not None  # which has its own setting
        chosen |= os.environ.get("ACCELERATE_MIXED_PRECISION", "no") != "no"
        self.bf16_by_default = not chosen and multiplies_bf16(self.use_cpu)
        self.bf16 = self.bf16 or self.bf16_by_default
        if (
            self.accelerator_config is None
            and self.dataloader_pin_memory
            and not self.use_cpu
            and torch.cuda.is_available()
        ):
            self.accelerator_config = {"non_blocking": True}  # otherwise each batch waits for the step before it
        self.report_to = self.report_to or ["none"]
        if self.max_minutes is not None:
            for name in ("eval_steps", "save_steps", "logging_steps"):
                if (getattr(self, name) or 1) < 1:
                    raise ValueError(
                        f"With max_minutes, {name} must be a number of steps: how many there will be is unknown."
                    )
            self.max_steps = UNKNOWN_STEPS
        TrainingArguments.__post_init__(self)
        if self.run_name is None:  # trackio would begin another run for the last evaluation
            self.run_name = "/".join(Path(self.output_dir).parts[-2:])  # ty: ignore[invalid-argument-type]: it is set by now
        if self.trackio_static_space_id is None:  # a push of the model would publish the log, with paths, as a Space
            self.trackio_static_space_id = False
        self.check_before_training()
        if self.torch_compile_mode not in (None, *COMPILE_MODES):
            known = similar(self.torch_compile_mode, COMPILE_MODES) or f" There are {', '.join(COMPILE_MODES)}."
            raise ValueError(f"There is no torch_compile_mode {self.torch_compile_mode}.{known}")

    def check_before_training(self) -> None:
        """Raise `ValueError` for values that the stock Trainer rejects only when it trains, after text and model are read."""
        if not all("=" in pair for pair in (self.optim_args or "=").split(",")):
            raise ValueError(f"optim_args takes comma-separated name=value pairs, got {self.optim_args}.")
        known = inspect.signature(checkpoint).parameters
        for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):  # the old name, and the new
            if unknown := sorted(set(getattr(self, name, None) or {}) - set(known)):
                raise ValueError(f"{name} has no {unknown[0]}: it is for torch.utils.checkpoint.")
        installed = [*get_available_reporting_integrations(), "flyte"]  # which transformers does not list
        for tracker in self.report_to or ():
            if tracker not in installed:
                raise ValueError(f"report_to {tracker} is not installed. There are {', '.join(installed) or 'none'}.")
        if DebugOption.UNDERFLOW_OVERFLOW in self.debug:
            raise ValueError(
                "debug underflow_overflow fails on boolean masks, also with transformers' BERT: leave it out."
            )
        if self.label_names != ["labels"]:
            self.must_stay(label_names=(None, "the model names its labels"))
        check_schedule(self)

    def recorded(self) -> dict[str, Any]:
        """The options that must stay the same in a resumed run, or whose changes it logs."""
        batch_size = self.world_size * max(self.n_gpu, 1) * self.per_device_train_batch_size
        batch_size *= self.gradient_accumulation_steps
        options = {name: value for name, value in self.to_dict().items() if not name.startswith(tuple(UNRECORDED))}
        options["accelerator_config"] = {
            **(options["accelerator_config"] or {}),
            "non_blocking": None,
        }  # on GPUs alone
        if self.max_minutes is not None:
            del options["max_steps"]  # an estimate
        return {"global batch size": batch_size} | options

    def must_stay(self, **fixed: tuple[Any, str]) -> None:
        """Raise `ValueError` for an argument that has another value than the supported one, with the reason given."""
        for name, (value, reason) in fixed.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} must stay {value}: {reason}.")


def check_schedule(args: TrainingArguments) -> None:
    """Raise `ValueError` for `lr_scheduler_kwargs` that the schedule doesn't take, by building one for a step."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate)
    options: dict[str, Any] = {
        "num_warmup_steps": 0,
        "num_training_steps": 1,
        "scheduler_specific_kwargs": args.lr_scheduler_kwargs,
    }
    try:
        get_scheduler(args.lr_scheduler_type, optimizer, **options)
    except (TypeError, ValueError, ArithmeticError, AssertionError) as error:
        raise ValueError(
            f"lr_scheduler_kwargs {args.lr_scheduler_kwargs or 'that are missing'} do not fit lr_scheduler_type "
            f"{SchedulerType(args.lr_scheduler_type).value}: {error}"
        ) from None


def multiplies_bf16(use_cpu: bool) -> bool:
    """Whether the CPU, or otherwise the CUDA GPU, multiplies bf16 natively; if not, bf16 is slower than fp32."""
    if not use_cpu:
        several = torch.cuda.device_count() > 1 and "LOCAL_RANK" not in os.environ  # DataParallel, without autocast
        return torch.cuda.is_available() and not several and torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's name


def renew_rendezvous() -> None:
    """In a process that torchrun has restarted on the only machine of a run, make all processes meet at a new store.

    torchrun hands them the store of the attempt before, with the addresses of processes that are dead: initialization
    hangs or is refused (https://github.com/pytorch/pytorch/issues/135712). With several machines, where the attempts
    are not counted alike, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun helps.
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
