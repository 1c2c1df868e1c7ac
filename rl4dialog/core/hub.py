"""The Hugging Face Hub without waiting for a missing network."""

from __future__ import annotations

import contextlib
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def cache_only_without_network() -> Iterator[None]:
    """Switch the hub's clients to offline mode if the hub's name does not resolve.

    The clients themselves would retry for half a minute before they fail or use their cache.
    """
    from huggingface_hub import constants

    modules: list[Any] = [constants, *([sys.modules["datasets.config"]] if "datasets.config" in sys.modules else [])]
    before = [module.HF_HUB_OFFLINE for module in modules]
    host = urllib.parse.urlsplit(constants.ENDPOINT).hostname or ""
    if not urllib.request.getproxies() and not _resolves(host):
        for module in modules:
            module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
