"""Files of prompts, and files of replies that can be continued after an interruption."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.messages import read_messages, render_messages
from rl4dialog.data.rows import Row, read_rows, table_suffix
from rl4dialog.data.text_files import read_lines
from rl4dialog.inference.continued_file import ContinuedFile, Record

_logger = logging.getLogger(__name__)
_COLUMNS = ("prompt", "messages", "history")


@dataclass(frozen=True)
class PromptLine:
    """A prompt, and the fields of its line (none for a line of text)."""

    prompt: str
    given: Mapping[str, Any]


def read_prompts(path: Path, dialogue_format: DialogueFormat | None, persona: str | None = None) -> list[PromptLine]:
    """Read all prompts of a file.

    In a ``.txt`` file, each line is a prompt, used verbatim. In a ``.jsonl`` file, each line is an object with
    ``prompt`` (used verbatim), ``messages`` (with role and content) or ``history`` (texts, oldest first).

    Args:
        path: The file.
        dialogue_format: Formats turns as a prompt; ``None`` if the run's datapool contains no dialogues.
        persona: Persona or system message with which ``history``, and ``messages`` without one, begin.
    """
    suffix = table_suffix(path)
    if suffix == ".txt":
        found = [PromptLine(line, {}) for line in read_lines(path)]
    elif suffix == ".jsonl":
        found = [PromptLine(_prompt(row, dialogue_format, persona), row.values) for row in read_rows(path)]
    else:
        raise DataError(f"{path} has an unknown format; prompts must be in a .txt or .jsonl file")
    if not found:
        raise DataError(f"{path} contains no prompts")
    reserved = (
        dialogue_format.reserved if dialogue_format is not None and dialogue_format.name == "chat_template" else ()
    )
    if reserved and not any(token in line.prompt for line in found for token in reserved):
        _logger.warning(
            "%s: its prompts are used verbatim, without the chat template that the run was trained with; use "
            "history: [TEXT] instead of prompt to apply the template",
            path,
        )
    elif persona and not any(persona in line.prompt for line in found):
        _logger.warning(
            "%s: its prompts do not begin with %r, as all prompts of the training did; use history: [TEXT], which does",
            path,
            persona,
        )
    return found


def _prompt(row: Row, dialogue_format: DialogueFormat | None, persona: str | None) -> str:
    given = [column for column in _COLUMNS if column in row]
    if len(given) != 1:
        wrong = " and ".join(given) or f"none of them (columns: {', '.join(row.values) or 'none'})"
        raise row.error(f"needs exactly one of the columns {', '.join(_COLUMNS)}, and has {wrong}")
    if given == ["prompt"]:
        return row.text("prompt")
    if dialogue_format is None:
        raise row.error(f"{given[0]} needs a dialogue format, which the run's datapool does not have; use prompt")
    if given == ["history"]:
        return dialogue_format.prompt(dialogue_format.context(row.texts("history")), persona)
    return render_messages(read_messages(row, "messages"), row, dialogue_format, persona)[0]


class ReplyFile(ContinuedFile):
    """A ``.jsonl`` file with a reply to each prompt, in order.

    Args:
        path: The file; a truncated last line is removed.
        prompts: All prompts to answer, in order.
    """

    def __init__(self, path: Path, prompts: Sequence[PromptLine]) -> None:
        self._prompts = prompts
        super().__init__(path, self._after, "a reply to prompt {} of the input")

    def append(self, reply: str) -> None:
        """Append the reply to the next prompt."""
        line = self._prompts[self.n_done]
        self.write({**line.given, "prompt": line.prompt, "reply": reply})

    def _after(self, record: Record, n_done: int) -> int | None:
        is_reply = "reply" in record and n_done < len(self._prompts)
        return n_done + 1 if is_reply and record.get("prompt") == self._prompts[n_done].prompt else None
