"""The arguments of the stock Trainer, made of a run's options."""

import functools
import os
import socket
import time
import timeit
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import torch
import transformers
from transformers import SchedulerType, TrainingArguments, get_scheduler
from transformers.integrations import get_available_reporting_integrations

from scratch_bert_options.commands import command
from scratch_bert_options.declare import similar
from scratch_bert_options.schema import check
from scratch_bert_options.training import CommonOptions

from ..model.configuration_scratch_bert import CODE_VERSION
from .clock import UNKNOWN_STEPS


# Beginnings of the names of options that do not affect the weights, differ between processes or machines, or are
# recorded in the global batch size.
UNRECORDED = (
    "output_dir", "trainer", "resume_from", "log_", "logging_", "hub_", "push_", "run_name", "report_to", "project",
    "trackio", "json_logs", "license", "show_", "disable_tqdm", "local_rank", "ddp_", "use_cpu", "dataloader_pin",
    "per_device_train", "gradient_accumulation", "seeds", "do_train",
)  # fmt: skip
Fixed = Mapping[str, tuple[Any, str]]
"""Arguments that must have one value, each with the reason."""


def make_training_arguments(options: CommonOptions, fixed: Fixed, **replaced: Any) -> TrainingArguments:
    """Trainer's arguments from a run's options, with the values that `fixed` demands, and those of `replaced`.

    Raises `ValueError` for an option that neither we nor Trainer has, and for values that Trainer would ignore.
    """
    renew_rendezvous()
    names = TrainingArguments.__dataclass_fields__
    values = {name: value for name, value in asdict(options).items() if name in names}
    values |= {
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "ddp_find_unused_parameters": False,
        "report_to": options.report_to or ["none"],
        "use_cpu": options.use_cpu or not torch.accelerator.is_available(),  # otherwise Trainer rejects bf16 there
        "trackio_static_space_id": False,  # a push of the model would publish the log, with paths, as a Space
        # Without a name, trackio would begin another run for the last evaluation.
        "run_name": "/".join(Path(options.output_dir or "").parts[-2:]),
    }
    fixed = {
        "label_names": (None, "the model names its labels"),
        "do_train": (True, f"to use a trained model, run `{command('evaluate')}` or `{command('predict')}`"),
        **fixed,
    }
    values |= {name: value for name, (value, _) in fixed.items()} | replaced
    values |= trainer_options(options)
    for name, (value, reason) in fixed.items():
        if values[name] != value:
            raise ValueError(f"{name} must stay {value}: {reason}.")
    if values.get("fp16") and values["use_cpu"]:  # the stock Trainer would silently use fp32
        raise ValueError("fp16 needs a GPU: leave it out, or choose bf16.")
    if options.bf16 is None:
        chosen = values.get("fp16") or values.get("deepspeed") is not None  # which has its own setting
        chosen = chosen or os.environ.get("ACCELERATE_MIXED_PRECISION", "no") != "no"
        values["bf16"] = not chosen and gains_from_bf16(values["use_cpu"])
    on_cuda = values["dataloader_pin_memory"] and not values["use_cpu"] and torch.cuda.is_available()
    if on_cuda and values.get("accelerator_config") is None:
        values["accelerator_config"] = {"non_blocking": True}  # otherwise each batch waits for the step before it
    if options.max_minutes is not None:
        values["max_steps"] = UNKNOWN_STEPS
    if values["load_best_model_at_end"] and values["eval_strategy"] == "no":
        raise ValueError(
            "load_best_model_at_end needs evaluations: set it to false, or eval_strategy to steps or epoch."
        )
    if values.get("eval_accumulation_steps") == 0:  # which would divide by it in the first evaluation
        raise ValueError("eval_accumulation_steps must be at least 1, got 0.")
    args = TrainingArguments(**values)
    scheduler, settings = SchedulerType(args.lr_scheduler_type), check(dict | None, args.lr_scheduler_kwargs)
    try:  # arguments that this scheduler lacks would end the run at its first step
        get_scheduler(scheduler, torch.optim.SGD([torch.zeros(1)]), 0, 10, settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"lr_scheduler_type {scheduler.value} with lr_scheduler_kwargs {settings}: {error}") from None
    installed = [*get_available_reporting_integrations(), "flyte"]  # which transformers does not list
    for tracker in args.report_to or ():
        if tracker == "none":
            raise ValueError("report_to none cannot be combined with other trackers: leave one of them out.")
        if tracker not in installed:
            raise ValueError(f"report_to {tracker} is not installed. Choose from {', '.join(installed) or 'none'}.")
    return args


def precision(args: TrainingArguments) -> str:
    return "bf16 autocast" if args.bf16 else "fp16 autocast" if args.fp16 else "fp32"


def describe_hardware(args: TrainingArguments, options: CommonOptions) -> str:
    """For the log: the device, the threads and the precision, and whether it was chosen here."""
    device = torch.cuda.get_device_name() if args.device.type == "cuda" else args.device.type.upper()
    threads = torch.get_num_threads()
    chosen = ", chosen here; bf16=false for fp32" if args.bf16 and options.bf16 is None else ""
    return f"Device: {device}, {threads} thread{'s' * (threads > 1)}; precision: {precision(args)}{chosen}"


def trainer_options(options: CommonOptions) -> dict[str, Any]:
    """The options that are Trainer's alone, perhaps given as text, in the types that it names. Raises `ValueError` for
    those that it does not have."""
    hints, values = get_type_hints(TrainingArguments), {}
    for name, value in options.trainer.items():
        if name not in hints:
            known = {*hints, *options.__dataclass_fields__}
            raise ValueError(f"There is no option {name}.{similar(name, known)}")
        hint = str(hints[name])
        switch = "bool" in hint or TrainingArguments.__dataclass_fields__[name].metadata.get("const") is True
        if switch and value in (True, False, "true", "false"):
            values[name] = value in (True, "true")
        else:
            one_of_several = "list[str]" in hint and "str |" not in hint and isinstance(value, str)
            values[name] = check(hints[name], [value] if one_of_several else value, name)
    return values


def global_batch_size(args: TrainingArguments) -> int:
    """The examples that all processes take in a step. The last step of an epoch may take fewer."""
    return args.train_batch_size * args.gradient_accumulation_steps * args.world_size


def recorded(options: CommonOptions, args: TrainingArguments) -> dict[str, Any]:
    """The options that must stay the same in a resumed run, or whose changes it logs."""
    values = asdict(options) | args.to_dict()
    values = {name: value for name, value in values.items() if not name.startswith(UNRECORDED)}
    values["accelerator_config"] = {**(values["accelerator_config"] or {}), "non_blocking": None}  # on GPUs alone
    if options.max_minutes is not None:
        del values["max_steps"]  # an estimate
    versions = {"scratch_bert": CODE_VERSION, "torch": torch.__version__, "transformers": transformers.__version__}
    return {
        "global batch size": global_batch_size(args),
        "versions": " ".join(map(" ".join, versions.items())),
    } | values


def gains_from_bf16(use_cpu: bool) -> bool:
    """Whether the CPU multiplies bf16 faster than fp32, or otherwise, whether the CUDA GPU multiplies bf16 natively."""
    if not use_cpu:
        several = torch.cuda.device_count() > 1 and "LOCAL_RANK" not in os.environ  # DataParallel, without autocast
        return torch.cuda.is_available() and not several and torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    native = any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is ARM's name
    return native and time_product(torch.bfloat16) < time_product(torch.float32)


@functools.cache
def time_product(dtype: torch.dtype) -> float:
    """Seconds of a core for a product of matrices. With `avx512_bf16` alone, products in bf16 take half of fp32's time
    on AMD's CPUs, and twice as long on Intel's."""
    inputs, weight = torch.ones(2, 1024, 256, dtype=dtype)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # whose time does not depend on other processes
    try:
        product = functools.partial(torch.nn.functional.linear, inputs, weight)
        return min(timeit.repeat(product, timer=time.thread_time, number=1, repeat=10))
    finally:
        torch.set_num_threads(threads)


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
