"""Memory that stays with the process after tensors are freed: of the C library's allocator, and of oneDNN's kernels."""

from __future__ import annotations

import ctypes
import os

# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_ALWAYS, _LARGE = 2**20, 2**24
_N_KERNELS = "128"


def keep_freed_memory() -> bool:
    """Stop the allocator from returning blocks below 16 MiB to the system, which costs page faults when needed again.

    Tensors of an update have the same sizes again and again. Larger blocks, such as the logits of a large vocabulary,
    are returned: kept ones of different sizes leave gaps that add up to many times their size, and computing them takes
    much longer than the page faults. Only the GNU C library supports these settings.

    Returns:
        Whether the settings were accepted.
    """
    return _return_blocks_above(_LARGE)


def return_freed_memory() -> bool:
    """Make the allocator return every block of 1 MiB or more as soon as it is free.

    This is slower, but no memory is lost in gaps between tensors of different sizes.

    Returns:
        Whether the settings were accepted.
    """
    return _return_blocks_above(_ALWAYS)


def return_unused_memory() -> None:
    """Return all free memory to the system, once, including gaps between blocks in use.

    Blocks that :func:`keep_freed_memory` keeps leave gaps, which grow from iteration to iteration if lengths vary. Only
    the GNU C library supports this; elsewhere nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_few_kernels() -> None:
    """Limit oneDNN, which computes bf16 matrix products on CPUs, to its last 128 kernels. Call this before using torch.

    There is a kernel for each shape, and replies of all lengths make new shapes all the time. By default, oneDNN keeps
    1,024 kernels, which take hundreds of MiB. Layers of a model share shapes, so the last kernels are those reused.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _N_KERNELS)


def _return_blocks_above(n_bytes: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, n_bytes)) and bool(mallopt(_M_TRIM_THRESHOLD, n_bytes))
