"""Files of prompts to reply to, and of the replies, which can be continued after an interruption."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError, RunFolderError
from rl4dialog.data.conversational import read_messages, render_messages
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.rows import Row, read_rows, table_suffix
from rl4dialog.data.text_files import read_lines

_COLUMNS = ("prompt", "messages", "history")


@dataclass(frozen=True)
class PromptLine:
    """A prompt, and what its line of the file said (nothing for a line of text)."""

    prompt: str
    given: Mapping[str, Any]


def read_prompts(path: Path, dialogue_format: DialogueFormat | None) -> list[PromptLine]:
    """Read all prompts of a file.

    In ``.txt`` each line is a prompt as it stands. In ``.jsonl`` each is an object with ``prompt`` (a text as it
    stands), ``messages`` (with role and content) or ``history`` (texts, the oldest first).

    Args:
        path: The file.
        dialogue_format: Writes prompts from turns; ``None`` where the run's data has no such format.

    Raises:
        DataError: If the file cannot be read, or a line is wrong; with its number.
    """
    suffix = table_suffix(path)
    if suffix == ".txt":
        found = [PromptLine(line, {}) for line in read_lines(path)]
    elif suffix == ".jsonl":
        found = [PromptLine(_prompt(row, dialogue_format), row.values) for row in read_rows(path)]
    else:
        raise DataError(f"{path} is of no known format; prompts are lines of a .txt or a .jsonl file")
    if not found:
        raise DataError(f"{path} holds no prompt")
    return found


def _prompt(row: Row, dialogue_format: DialogueFormat | None) -> str:
    given = [column for column in _COLUMNS if column in row]
    if len(given) != 1:
        wrong = " and ".join(given) or f"none of them (columns: {', '.join(row.values) or 'none'})"
        raise row.error(f"one of the columns {', '.join(_COLUMNS)} is needed, and there is {wrong}")
    if given == ["prompt"]:
        return row.text("prompt")
    if dialogue_format is None:
        raise row.error(f"{given[0]} needs a dialogue format, which the run's datapool has not; give prompt")
    if given == ["history"]:
        return dialogue_format.prompt(dialogue_format.context(row.texts("history")))
    messages = read_messages(row, "messages")
    if messages[-1]["role"] == "assistant":
        raise row.error("messages ends with one of the assistant; the last message must be one to reply to")
    return render_messages(messages, row, dialogue_format)[0]


class ReplyFile:
    """A ``.jsonl`` file of replies, to which they are appended one by one.

    Args:
        path: The file; a line that an interruption cut short is taken away.
        prompts: All that are to be answered, in order.

    Attributes:
        n_done: How many have a reply in the file already.

    Raises:
        DataError: If the file holds anything but replies to the first of the prompts.
        RunFolderError: If it cannot be written.
    """

    def __init__(self, path: Path, prompts: Sequence[PromptLine]) -> None:
        self._path, self._prompts = path, prompts
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be written: {error.strerror}; give another --output") from error
        try:
            self.n_done = self._count_done()
        except OSError as error:
            self._file.close()
            raise RunFolderError(f"{path} is no file that replies can be added to ({error.strerror})") from error
        except BaseException:
            self._file.close()
            raise

    def append(self, reply: str) -> None:
        """Write the reply to the next prompt, as a whole line.

        Raises:
            RunFolderError: If the disk is full or the like.
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
        return RunFolderError(f"{self._path} cannot be written: {why}; mend that, and the same command goes on")

    def _count_done(self) -> int:
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        n_done = 0
        for number, prompt in self._answered(whole):
            if number > len(self._prompts) or prompt != self._prompts[number - 1].prompt:
                raise DataError(
                    f"{self._path}:{number} is no reply to prompt {number} of the input; give another --output"
                )
            n_done = number
        self._file.truncate(len(whole))
        return n_done

    def _answered(self, data: bytes) -> Iterator[tuple[int, str | None]]:
        """Number and prompt of each line; ``None`` for a line that holds no reply."""
        for number, line in enumerate(data.splitlines(), start=1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            is_reply = isinstance(record, dict) and "reply" in record
            yield number, record.get("prompt") if is_reply else None
