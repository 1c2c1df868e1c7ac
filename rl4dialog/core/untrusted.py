"""Texts of unknown origin, made safe for a terminal or a file that is passed on."""

from __future__ import annotations

import re
from typing import Any

import regex

_INVISIBLE = regex.compile(r"[\p{C}\p{Zl}\p{Zp}--[\n\t\u200c\u200d]]", regex.V1)
_ADDRESS = re.compile(r"(?<=://)[^\s'\"<>`]+")
_USER_INFO = re.compile("^[^/?#@]+@")
_SECRET = re.compile(
    r"(?<=[?&;])([^=&;]*(?:key|token|secret|passw|pwd|auth|sig|credential|session|code)[^=&;]*=)[^&;#]+", re.IGNORECASE
)
_SECRET_KEY = re.compile(r"(api_?key|passw(or)?d|secret|(access|auth|bearer|hf|api|write)_?token)$", re.IGNORECASE)
HIDDEN = "***"


def visible(text: str) -> str:
    """Replace control characters, which could move the cursor, change colors or reverse a text.

    Spaces of all kinds stay, and joiners, which emoji and some scripts need.
    """
    return text if text.isprintable() else _INVISIBLE.sub("\ufffd", text)


def redacted(text: str) -> str:
    """Hide credentials in addresses: user names, passwords, and what the query calls a key, a token or the like."""

    def hidden(address: re.Match[str]) -> str:
        return _SECRET.sub(rf"\1{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", address[0]))

    return _ADDRESS.sub(hidden, text)


def without_secrets(value: Any) -> Any:
    """Copy JSON with its texts :func:`redacted`, and the values of keys such as ``api_key`` and ``password`` hidden."""
    if isinstance(value, dict):
        return {
            key: HIDDEN if isinstance(inner, str) and _SECRET_KEY.search(key) else without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return list(map(without_secrets, value))
    return redacted(value) if isinstance(value, str) else value
