"""Operations that torch dispatches, and those of them for which Python waits on a GPU, by line of code."""

import sys
from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode

# On a GPU, each of these waits until it is done with all that was asked of it before.
READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount", "equal", "is_nonzero")
# These start no kernel.
VIEWS = (
    "view",
    "unsafe_view",
    "detach",
    "alias",
    "t",
    "transpose",
    "expand",
    "slice",
    "select",
    "unsqueeze",
    "squeeze",
    "permute",
)


class Counted(TorchDispatchMode):
    """Counts operations, and lists reads: those whose result Python has to know, or whose shape depends on numbers."""

    def __init__(self):
        super().__init__()
        self.operations, self.reads = Counter(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(each is not None and each.dtype.itemsize == 1 for each in args[1])
        if name in READS or by_mask:
            self.reads.append(f"{name} in {caller()}")
        if name.lstrip("_") not in VIEWS and not name.startswith("empty"):
            self.operations[name] += 1
        return func(*args, **(kwargs or {}))


def caller():
    """File and line outside of torch that called an operation."""
    frame = sys._getframe(2)
    while "/torch/" in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('site-packages/')[2]}:{frame.f_lineno}"


def watched(function, counted):
    """A function whose operations are counted."""

    def call(*args, **kwargs):
        with counted:
            return function(*args, **kwargs)

    return call
