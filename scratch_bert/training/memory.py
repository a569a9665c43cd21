"""How the process uses memory that it has freed."""

import ctypes
import platform


# Options of glibc's mallopt, as in malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Let glibc's malloc keep all freed memory for reuse, until the process ends.

    By default, it returns large tensors to the kernel, such as the logits of a batch, and gets new pages for the next
    step. The kernel clears each of these on first use, which can take a fifth of a step on a CPU.
    """
    if platform.libc_ver()[0] == "glibc":
        malloc = ctypes.CDLL(None)
        malloc.mallopt(M_MMAP_MAX, 0)
        malloc.mallopt(M_TRIM_THRESHOLD, -1)  # never
