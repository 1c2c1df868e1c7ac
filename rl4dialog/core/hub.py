"""Loading from a folder or from the Hugging Face Hub, without waiting for a missing network."""

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
    """Call ``auto_class.from_pretrained`` for a folder or a hub id, without running code that comes with a model.

    Args:
        auto_class: One of transformers' Auto classes.
        name: A folder (``~`` is expanded) or a hub id.
        what: Description of what is loaded, for the error message.
        hint: Advice at the end of the error message.
        kwargs: Arguments of ``from_pretrained``.

    Raises:
        ModelError: If it cannot be loaded for any reason.
    """
    try:
        with cache_only_without_network():
            return auto_class.from_pretrained(str(Path(name).expanduser()), trust_remote_code=False, **kwargs)
    except Exception as error:  # transformers raises OSError, ValueError, ImportError, ... depending on the cause
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{what} {name!r} cannot be loaded: it contains custom Python code, which is never run. Use a model "
                f"that transformers supports, or convert it."
            ) from error
        raise ModelError(f"{what} {name!r} cannot be loaded ({_first_line(error)}). {hint}") from error


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


def _first_line(error: BaseException) -> str:
    """First line of an error's text, or its type."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
