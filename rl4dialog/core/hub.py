"""Loading from a folder, or from the Hugging Face hub without waiting for a network that is not there."""

from __future__ import annotations

import contextlib
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ModelError


def load_pretrained(auto_class: Any, name: str, what: str, hint: str, **kwargs: Any) -> Any:
    """Call ``auto_class.from_pretrained`` for a folder or a hub id; code that comes with a model is never run.

    Args:
        auto_class: One of transformers' classes.
        name: A folder (``~`` is expanded) or a hub id.
        what: What is loaded, for the error message.
        hint: What would be right, which ends the error message.
        kwargs: Passed on.

    Raises:
        ModelError: If it cannot be loaded for whatever reason.
    """
    try:
        with cache_only_without_network():
            return auto_class.from_pretrained(str(Path(name).expanduser()), trust_remote_code=False, **kwargs)
    except Exception as error:  # transformers raises OSError, ValueError, ImportError, ... by what is missing
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{what} {name!r} cannot be loaded: it comes with Python code of its own, which is not run. Take a "
                f"model that transformers has the code of, or convert it."
            ) from error
        raise ModelError(f"{what} {name!r} cannot be loaded ({_first_line(error)}). {hint}") from error


@contextlib.contextmanager
def cache_only_without_network() -> Iterator[None]:
    """Switch the hub's clients to their offline mode where the hub's name does not resolve.

    The clients themselves retry for half a minute before they give up or look into their cache.
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


def _first_line(error: BaseException) -> str:
    """What an error says first, or its type."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
