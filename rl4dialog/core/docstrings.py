"""Extracts descriptions of arguments from Google-style docstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any

_ENTRY = re.compile(r"    (\w+): +(.*)")
_SECTION = re.compile(r"^(?:Args|Arguments|Attributes|Raises|Returns|Yields):\n", re.MULTILINE)
_MARKUP = (
    (re.compile(r":\w+:`~?([^`]*)`"), lambda match: f"`{match[1].rpartition('.')[2]}`"),
    (re.compile(r"``"), lambda match: "`"),
)


def summary(documented: Any) -> str:
    """First line of a docstring, as Markdown; empty if there is none."""
    return _as_markdown((inspect.getdoc(documented) or "").partition("\n")[0])


def explanation(documented: Any) -> str:
    """Text of a docstring before its first section, as Markdown; empty if there is none."""
    text = inspect.getdoc(documented) or ""
    return _as_markdown(_SECTION.split(text, maxsplit=1)[0].strip())


def argument_meanings(component: Any) -> dict[str, str]:
    """Argument descriptions from the docstring of a function, or of a class and its parents, as Markdown by name."""
    if not inspect.isclass(component):
        return _arguments(component)
    found: dict[str, str] = {}
    for cls in component.__mro__:
        if "__doc__" in vars(cls):
            found = {**_arguments(cls), **found}
    return found


def _arguments(documented: Any) -> dict[str, str]:
    text = inspect.cleandoc(documented.__doc__ or "")
    found: dict[str, str] = {}
    name = None
    for line in text.partition("Args:\n")[2].splitlines():
        if line and not line.startswith("    "):
            break  # the next section
        entry = _ENTRY.fullmatch(line)
        if entry:
            name, found[entry[1]] = entry[1], entry[2]
        elif name is not None:
            found[name] += f" {line.strip()}"
    return {name: _as_markdown(meaning.strip()) for name, meaning in found.items()}


def _as_markdown(text: str) -> str:
    for pattern, replace in _MARKUP:
        text = pattern.sub(replace, text)
    return text
