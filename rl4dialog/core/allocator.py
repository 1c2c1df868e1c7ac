"""Settings of the C library's memory allocator for the memory that tensors free."""

from __future__ import annotations

import ctypes

# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_ALWAYS, _LARGE = 2**20, 2**24


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


def _return_blocks_above(n_bytes: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, n_bytes)) and bool(mallopt(_M_TRIM_THRESHOLD, n_bytes))
