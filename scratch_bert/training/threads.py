"""The number of CPU threads on a machine that others use, too."""

import os

import psutil
import torch

from ..logs import logger
from .memory import keep_freed_memory


SECONDS = 0.3  # for which the load is measured
THREADS = torch.get_num_threads()  # the default, which an earlier run in this process may have lowered


def use_free_cores(recorded: int | None = None) -> int:
    """Set PyTorch's threads to the number of free cores, or to the `recorded` number of the run that is resumed, so
    that it stays bit-identical. The environment's OMP_NUM_THREADS takes precedence. Returns the number of threads.

    PyTorch's threads wait for each other many times in a step. If one has to share its core, all wait for its turns: a
    small model is 2.5 times slower on two threads than on one beside a busy process (docs/performance.md).
    """
    if "OMP_NUM_THREADS" in os.environ or THREADS == 1:
        return torch.get_num_threads()
    if recorded is None:
        load = psutil.cpu_percent(SECONDS, percpu=True)
        own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(load))
        free = sum(1 - load[core] / 100 for core in own if core < len(load))
        recorded = max(1, min(THREADS, round(free)))
        if recorded < THREADS:
            logger.info(
                f"Other processes keep about {len(own) - free:.1f} of {len(own)} cores busy: computing with {recorded} "
                f"thread{'s' * (recorded > 1)}, as more would wait for each other. OMP_NUM_THREADS overrides this"
            )
    torch.set_num_threads(min(THREADS, recorded))
    return torch.get_num_threads()


def to_accelerator(model: torch.nn.Module) -> torch.device:
    """Move a model to the accelerator, if there is one, for inference; or else use the free cores. Returns its
    device."""
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator() or device
    else:
        keep_freed_memory()
        use_free_cores()
    model.to(device).eval()
    return device
