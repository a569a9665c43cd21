"""How the process uses memory that it has freed."""

import ctypes
import mmap
import os
import platform
from functools import cache
from pathlib import Path


# Options of glibc's mallopt and Linux's madvise, as in malloc.h and mman.h.
M_TRIM_THRESHOLD, M_MMAP_MAX, MADV_HUGEPAGE = -1, -4, 14


@cache  # once in a process
def keep_freed_memory() -> None:
    """Let glibc's malloc keep all freed memory for reuse, until the process ends, in huge pages where Linux has them.

    By default, it returns large tensors to the kernel, such as the logits of a batch, and gets new pages for the next
    step. The kernel clears each of these on first use, which can take a fifth of a step on a CPU. Pages of 4 KiB cost
    more address translations than pages of 2 MiB: another fifth of a step, most in a virtual machine.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, -1)  # never
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if _addresses_are_counted():
        return
    page, size = mmap.PAGESIZE, os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2
    if block := libc.malloc(size):  # the heap's addresses from here on; no page of them is in use yet
        libc.madvise(-(-block // page) * page, size - page, MADV_HUGEPAGE)
        libc.free(block)


def _addresses_are_counted() -> bool:
    """Whether a limit counts memory that is reserved, not in use: `ulimit -v`, or a kernel that never overcommits."""
    import resource  # not on Windows

    never = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    return never or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
