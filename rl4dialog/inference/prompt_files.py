"""Files of prompts, and files of replies that can be continued after an interruption."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError, RunFolderError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.messages import read_messages, render_messages
from rl4dialog.data.rows import Row, read_rows, table_suffix
from rl4dialog.data.text_files import read_lines

_logger = logging.getLogger(__name__)
_COLUMNS = ("prompt", "messages", "history")


@dataclass(frozen=True)
class PromptLine:
    """A prompt, and the fields of its line (none for a line of text)."""

    prompt: str
    given: Mapping[str, Any]


def read_prompts(path: Path, dialogue_format: DialogueFormat | None) -> list[PromptLine]:
    """Read all prompts of a file.

    In a ``.txt`` file, each line is a prompt, used verbatim. In a ``.jsonl`` file, each line is an object with
    ``prompt`` (used verbatim), ``messages`` (with role and content) or ``history`` (texts, oldest first).

    Args:
        path: The file.
        dialogue_format: Formats turns as a prompt; ``None`` if the run's datapool contains no dialogues.

    Raises:
        DataError: If the file cannot be read, or a line is invalid; the message contains the line number.
    """
    suffix = table_suffix(path)
    if suffix == ".txt":
        found = [PromptLine(line, {}) for line in read_lines(path)]
    elif suffix == ".jsonl":
        found = [PromptLine(_prompt(row, dialogue_format), row.values) for row in read_rows(path)]
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
    return found


def _prompt(row: Row, dialogue_format: DialogueFormat | None) -> str:
    given = [column for column in _COLUMNS if column in row]
    if len(given) != 1:
        wrong = " and ".join(given) or f"none of them (columns: {', '.join(row.values) or 'none'})"
        raise row.error(f"needs exactly one of the columns {', '.join(_COLUMNS)}, and has {wrong}")
    if given == ["prompt"]:
        return row.text("prompt")
    if dialogue_format is None:
        raise row.error(f"{given[0]} needs a dialogue format, which the run's datapool does not have; use prompt")
    if given == ["history"]:
        return dialogue_format.prompt(dialogue_format.context(row.texts("history")))
    messages = read_messages(row, "messages")
    if messages[-1]["role"] == "assistant":
        raise row.error("messages must end with a message to reply to, not with one of the assistant")
    return render_messages(messages, row, dialogue_format)[0]


class ReplyFile:
    """A ``.jsonl`` file to which replies are appended one by one.

    Args:
        path: The file; a truncated last line is removed.
        prompts: All prompts to answer, in order.

    Attributes:
        n_done: Number of replies in the file.

    Raises:
        DataError: If the file contains anything but replies to the first prompts.
        RunFolderError: If it cannot be written.
    """

    def __init__(self, path: Path, prompts: Sequence[PromptLine]) -> None:
        self._path, self._prompts = path, prompts
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be written: {error.strerror}; choose another --output") from error
        try:
            self.n_done = self._count_done()
        except OSError as error:
            self._file.close()
            raise RunFolderError(f"replies cannot be appended to {path} ({error.strerror})") from error
        except BaseException:
            self._file.close()
            raise

    def append(self, reply: str) -> None:
        """Append the reply to the next prompt, as a whole line.

        Raises:
            RunFolderError: If writing fails, for example on a full disk.
        """
        line = self._prompts[self.n_done]
        record = {**line.given, "prompt": line.prompt, "reply": reply}
        data = json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        try:
            n_written = self._file.write(data)
        except OSError as error:
            raise self._unwritten(error.strerror) from error
        if n_written != len(data):
            raise self._unwritten("no space left on the disk")
        self.n_done += 1

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ReplyFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _unwritten(self, why: str | None) -> RunFolderError:
        return RunFolderError(f"{self._path} cannot be written: {why}; fix this and rerun the command to continue")

    def _count_done(self) -> int:
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        n_done = 0
        for number, prompt in self._answered(whole):
            if number > len(self._prompts) or prompt != self._prompts[number - 1].prompt:
                raise DataError(
                    f"{self._path}:{number} is not a reply to prompt {number} of the input; choose another --output"
                )
            n_done = number
        self._file.truncate(len(whole))
        return n_done

    def _answered(self, data: bytes) -> Iterator[tuple[int, str | None]]:
        """Number and prompt of each line; ``None`` for a line that contains no reply."""
        for number, line in enumerate(data.splitlines(), start=1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            is_reply = isinstance(record, dict) and "reply" in record
            yield number, record.get("prompt") if is_reply else None
