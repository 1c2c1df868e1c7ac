"""Two processes of one run, of which this is the first: so its asserts, and what is patched here, count in both."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist


def in_two_processes(work: Callable[[int], Any], folder: Path) -> tuple[Any, Any]:
    """What ``work`` returns in process 0, this one, and in process 1, a fork of it that can talk to it by gloo.

    Args:
        work: Called in each with its number.
        folder: An empty one, for how they find each other.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = folder / "store"
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    second = context.Process(target=_second, args=(work, store, theirs))
    second.start()
    theirs.close()
    try:
        return _work(work, store, 0), mine.recv()
    finally:
        second.join(timeout=60)
        second.kill()


def _second(work: Callable[[int], Any], store: Path, results: Connection) -> None:
    results.send(_work(work, store, 1))


def _work(work: Callable[[int], Any], store: Path, number: int) -> Any:
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=number, world_size=2, timeout=limit)
    try:
        return work(number)
    finally:
        dist.destroy_process_group()
