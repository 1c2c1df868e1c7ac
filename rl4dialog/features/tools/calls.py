"""Calls of tools: what a tool declares, how the agent writes a call, and which calls are wrong.

A call is a line such as ``call book_ride name=Ann; place=the museum``. A value with a semicolon is a JSON string.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.errors import nearest_hint, shown

WORD = "call"
"""First word of a call."""

_PIECES = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^;])+')
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}


class CallError(Exception):
    """A call that is answered by an error; ``problem`` is its kind."""

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(message)
        self.problem = problem


@dataclass(frozen=True)
class Slot:
    """A value in a call."""

    kind: type | Sequence[str] = str  # ``str``, ``int``, ``float`` or ``bool``; or the values that it can have
    required: bool = True
    about: str = ""  # for models that are told of it by their chat template

    def read(self, value: Any) -> Any:
        """The value in its type; a ``ValueError`` says what it must be."""
        text = value if isinstance(value, str) else json.dumps(value)
        if not isinstance(self.kind, type):
            found = next((each for each in self.kind if each.casefold() == text.casefold()), None)
            if found is None:
                raise ValueError(f"one of {', '.join(self.kind)}")
            return found
        with suppress(ValueError, KeyError, OverflowError):
            if self.kind is bool:
                return _BOOLEANS[text.casefold()]
            if self.kind is str:
                if isinstance(value, (dict, list)):
                    raise ValueError
                return text
            number = float(text)
            if math.isfinite(number) and (self.kind is float or number.is_integer()):
                return self.kind(number)
        raise ValueError(f"of type {_JSON_TYPES[self.kind]}")


class Tool(ABC):
    """Answers calls of its functions.

    It must be picklable, and each environment has a copy of it. It is built by the arguments of its YAML entry.
    """

    functions: Mapping[str, Mapping[str, Slot]]
    """The slots of each function, by names."""

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:  # noqa: B027 (most tools are the same for all)
        """Start a conversation about a sample with this ``meta_data``; the seed is for random numbers."""

    @abstractmethod
    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Answer a call of a function, whose arguments were checked and have the types of their slots."""


def read_text(said: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a call."""
    name, _, rest = said.strip().removeprefix(WORD).strip().partition(" ")
    if not name:
        raise CallError("unreadable", f"write {WORD} NAME slot=value; slot=value")
    arguments: dict[str, Any] = {}
    for piece in filter(str.strip, _PIECES.findall(rest)):
        slot, equals, value = (each.strip() for each in piece.partition("="))
        if not equals or not slot:
            raise CallError("unreadable", f"write slot=value; slot=value, not {shown(piece.strip())}")
        if slot in arguments:
            raise CallError("unreadable", f"slot {slot} is given twice")
        if len(value) > 1 and value[0] == value[-1] == '"':
            with suppress(ValueError):
                value = json.loads(value)
        arguments[slot] = value
    return name, arguments


def write_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Write a call as :func:`read_text` reads it."""

    def written(value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        return json.dumps(text, ensure_ascii=False) if re.search(r'[;"\n]|^\s|\s$', text) else text

    return f"{WORD} {name} {'; '.join(f'{slot}={written(value)}' for slot, value in arguments.items())}".strip()


def checked(function: str, slots: Mapping[str, Slot], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call under the names of the slots, in their types; slots without a value are left out."""
    names, found = {name.casefold(): name for name in slots}, dict[str, Any]()
    for slot, value in given.items():
        if (name := names.get(slot.casefold())) is None:
            hint = nearest_hint(slot, slots)
            raise CallError("unknown slot", f"{function} has no slot {shown(slot)}{hint} (slots: {', '.join(slots)})")
        if name in found:
            raise CallError("unreadable", f"slot {name} is given twice")
        if value in ("", None):
            continue
        try:
            found[name] = slots[name].read(value)
        except ValueError as error:
            raise CallError("wrong value", f"{name} must be {error}, not {shown(value)}") from None
    if missing := [name for name, slot in slots.items() if slot.required and name not in found]:
        raise CallError("missing value", f"{function} needs {', '.join(missing)}")
    return found


def json_schema(function: str, slots: Mapping[str, Slot]) -> dict[str, Any]:
    """A function in the form that chat templates list."""
    properties: dict[str, dict[str, Any]] = {}
    for name, slot in slots.items():
        is_type = isinstance(slot.kind, type)
        properties[name] = {"type": _JSON_TYPES[slot.kind] if is_type else "string"}  # type: ignore[index]
        properties[name] |= {} if is_type else {"enum": [*slot.kind]}  # type: ignore[misc]
        properties[name] |= {"description": slot.about} if slot.about else {}
    required = [name for name, slot in slots.items() if slot.required]
    parameters = {"type": "object", "properties": properties, "required": required}
    about = {"name": function, "description": function.replace("_", " "), "parameters": parameters}
    return {"type": "function", "function": about}
