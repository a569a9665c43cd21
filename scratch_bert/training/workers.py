"""Data loaders' workers: signals to a training spare them, and none of their errors makes it wait forever."""

import os
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import Queue
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader


def shield_workers(loader: DataLoader) -> None:
    """Let each worker of a data loader start in a process group of its own: a signal to the group of the training must
    not end workers, which the training needs until its last checkpoint."""
    stock = getattr(loader, "base_dataloader", loader)  # accelerate wraps it
    if getattr(stock.worker_init_fn, "func", None) is not _start_worker:
        stock.worker_init_fn = partial(_start_worker, stock.worker_init_fn)


def _start_worker(init: Callable[[int], None] | None, number: int) -> None:
    if hasattr(os, "setpgrp"):  # not on Windows
        os.setpgrp()
    Queue._on_queue_feeder_error = _hand_over_error
    if init is not None:
        init(number)


def _hand_over_error(queue: Queue, error: Exception, batch: tuple[int, Any]) -> None:
    """Put an error, such as too many open files, into the queue: the training would wait for its batch."""
    queue.put((batch[0], ExceptionWrapper((type(error), error, error.__traceback__), "in DataLoader worker process")))
