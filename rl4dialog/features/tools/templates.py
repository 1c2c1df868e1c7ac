"""Calls in chat templates that know the key ``tool_calls`` of messages and the role ``tool``.

What a template writes around a call and its answer is found by rendering an example, as for other messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.types import Frame
from rl4dialog.features.tools.calls import CallError

_NAME, _ARGUMENTS = "example_function", {"example_slot": "example value"}
_ASKED, _ANSWER, _SAID, _LAST = (f"Placeholder{i}ofcalls" for i in range(4))
_TAGS = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]")


@dataclass(frozen=True)
class CallMarkup:
    """How a template writes calls and answers."""

    example: str  # a call of `_NAME` with `_ARGUMENTS`
    frame: Frame  # around the answer

    @property
    def opening(self) -> str:
        """Markup before a call, which may be a special token that texts of replies do not have."""
        return self.example[: self.example.index("{")].strip()

    def is_call(self, said: str) -> bool:
        return bool(self.opening and said.strip().startswith(self.opening)) or (
            '"name"' in said and ('"arguments"' in said or '"parameters"' in said) and "{" in said
        )

    def write(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, str, str]:
        """Write a call: markup before it, itself, and markup after it."""
        as_json = json.dumps(dict(arguments), ensure_ascii=False)
        start, end = self.example.index("{"), self.example.rindex("}") + 1
        call = self.example[start:end].replace(json.dumps(_ARGUMENTS), as_json).replace(_NAME, name)
        return self.example[:start], call, self.example[end:]


def read_json(said: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the first call in an utterance."""
    start = said.find("{")
    try:
        found, _ = json.JSONDecoder().raw_decode(said, max(start, 0))
        found = found.get("function", found) if isinstance(found, dict) else found
        name, arguments = found["name"], found.get("arguments", found.get("parameters", {}))
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CallError("unreadable", 'write {"name": NAME, "arguments": {slot: value}}') from None
    return name, arguments


def call_markup(template: Any, frame: Frame) -> tuple[CallMarkup | None, str]:
    """The markup of a template whose conversations have this frame; ``None`` if it has none, and why."""
    call = {"type": "function", "id": "call00001", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": _ASKED},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": _NAME, "tool_call_id": "call00001", "content": _ANSWER},
        {"role": "assistant", "content": _SAID},
        {"role": "user", "content": _LAST},
    ]
    try:
        written, later = template.render(messages[:3], True), template.render(messages, True)
    except Exception as error:  # a template is a program
        return None, f"rejects messages of tools ({error})"
    _, found, rest = written.partition(_ASKED)
    called, has_answer, to_agent = rest.removeprefix(frame.to_agent).partition(_ANSWER)
    _, end = template.end_in(frame.to_partner)
    example, has_end, after = called.partition(end or "\n")
    if not found or not has_answer or not has_end or not rest.startswith(frame.to_agent):
        return None, "has no place for calls of tools or their answers"
    try:
        is_read = read_json(example) == (_NAME, _ARGUMENTS) and json.dumps(_ARGUMENTS) in example
    except CallError:
        is_read = False
    if not is_read:
        return None, "does not write calls of tools as JSON"
    if not later.startswith(f"{written}{_SAID}"):
        return None, "writes earlier calls of tools differently once the conversation continues"
    to_tool = has_end + after
    markup = tuple(dict.fromkeys([*frame.markup, *_TAGS.findall(to_tool + to_agent)]))
    return CallMarkup(example, Frame(to_agent, to_tool, markup, in_pairs=True)), ""
