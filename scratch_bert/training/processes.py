"""The processes of a training: what rank 0 decides for all of them, and how they end together."""

import itertools
import time
from collections import deque

from accelerate import Accelerator
from torch import distributed


_calls = itertools.count()
_recent: deque[str] = deque()
KEPT = 1000  # keys in the store: no process is so many steps behind rank 0


def process_store() -> distributed.Store:
    """The store through which the processes of a training found each other."""
    return distributed.distributed_c10d._get_default_store()


def from_rank_zero(value: str) -> str:
    """Return the value that rank 0 has, in all processes, which must all call this in the same order.

    It goes through the store, as a collective operation would wait for the GPU.
    """
    store, key = process_store(), f"scratch_bert/from-rank-zero/{next(_calls)}"
    if distributed.get_rank() > 0:
        return store.get(key).decode()
    store.set(key, value)
    _recent.append(key)
    if len(_recent) > KEPT:
        store.delete_key(_recent.popleft())
    return value


def wait_for_processes(accelerator: Accelerator) -> None:
    """Wait for the other processes, after which this one may exit.

    gloo's threads free the tensors that they have gathered a moment later, and a process that exits meanwhile is
    aborted, or hangs: the threads need Python's lock. gloo offers nothing to wait on, hence the sleep.
    """
    accelerator.wait_for_everyone()
    if distributed.is_initialized() and "gloo" in distributed.get_backend():
        time.sleep(0.1)
