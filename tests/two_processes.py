"""Two processes of one run, of which this is the first: so its asserts, and what is patched here, count in both."""

import multiprocessing
import os
from datetime import timedelta

import torch.distributed as dist


def in_two_processes(work, folder):
    """What ``work`` returns in process 0, this one, and in process 1, a fork of it that can talk to it by gloo."""
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


def _second(work, store, results):
    results.send(_work(work, store, 1))


def _work(work, store, number):
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=number, world_size=2, timeout=limit)
    try:
        return work(number)
    finally:
        dist.destroy_process_group()
