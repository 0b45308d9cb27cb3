"""How the C library treats memory that training frees and asks for again a moment later."""

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
_LARGEST_INT = 2**31 - 1
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc refuses more


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next training step; whether that was possible.

    By default it hands large blocks back to the operating system, which clears them page by page when the
    same tensors are allocated again in the next step. Helps training on CPU; the process keeps the memory
    of its busiest moment. Does nothing where the C library is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    kept = libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and kept)
