"""Replies to a file of prompts, in a file of JSON lines that a rerun command continues after an interruption."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rl4dialog.core.errors import DataError, RunFolderError
from rl4dialog.core.files import json_value
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.yaml_loader import apply_overrides
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.messages import read_messages, render_messages
from rl4dialog.data.rows import Row, read_lines, read_rows, table_suffix
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.runs.progress import Progress

Record = Mapping[str, Any]
_File = TypeVar("_File", bound="ContinuedFile")


class ContinuedFile:
    """A ``.jsonl`` file to which records are appended one by one; a truncated last line is removed.

    ``n_after`` returns the number of tasks that are done after a record, given the number before it; ``None`` if the
    record belongs to other tasks. The task is described for messages, with the place of its number.

    Attributes: n_done: Number of tasks that are done.
    """

    def __init__(self, path: Path, n_after: Callable[[Record, int], int | None], task: str) -> None:
        self._path, self._n_after, self._task = path, n_after, task
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            raise RunFolderError(f"{path} cannot be written: {error.strerror}; choose another --output") from error
        try:
            self.n_done = self._count_done()
        except OSError as error:
            self._file.close()
            raise RunFolderError(f"nothing can be appended to {path} ({error.strerror})") from error
        except BaseException:
            self._file.close()
            raise

    def write(self, record: Record) -> None:
        """Append the record of the next task, as a whole line."""
        data = json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        try:
            n_written = self._file.write(data)
        except OSError as error:
            raise self._unwritten(error.strerror) from error
        if n_written != len(data):
            raise self._unwritten("no space left on the disk")
        self.n_done += 1

    def records(self) -> list[dict[str, Any]]:
        """Return all records of the file."""
        self._file.seek(0)
        return [json_value(line) for line in self._file.read().splitlines()]

    def close(self) -> None:
        self._file.close()

    def __enter__(self: _File) -> _File:
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
        for number, record in enumerate(_records(whole), start=1):
            found = None if record is None else self._n_after(record, n_done)
            if found is None:
                raise DataError(
                    f"{self._path}:{number} is not {self._task.format(n_done + 1)}; choose another --output"
                )
            n_done = found
        if data and not whole:
            # Without a complete line, the file must at least begin as the first record does.
            record = next(_records(data))
            is_own = data.startswith(b'{"'[: len(data)]) if record is None else self._n_after(record, 0) is not None
            if not is_own:
                raise DataError(f"{self._path} is not {self._task.format(1)}; choose another --output")
        self._file.truncate(len(whole))
        return n_done


def _records(data: bytes) -> Iterator[dict[str, Any] | None]:
    """The object in each line; ``None`` for anything else."""
    for line in data.splitlines():
        try:
            record = json_value(line)
        except ValueError:
            record = None
        yield record if isinstance(record, dict) else None


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
    """A ``.jsonl`` file with a reply to each prompt, in order."""

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


def reply_to_file(
    loaded: LoadedPolicy, prompts: Path, replies: Path, overrides: Sequence[str] = (), batch_size: int | None = None
) -> int:
    """Write a reply to each prompt of a file, except prompts that already have one.

    Every batch has its own seed, so an interruption does not change any reply.
    """
    kwargs = apply_overrides(dict(loaded.generation_kwargs), overrides)
    GenerationSettings.from_kwargs(kwargs)
    lines = read_prompts(prompts, loaded.dialogue_format, loaded.persona)
    size = batch_size or loaded.config.train_evaluation.eval_batch_size
    with ReplyFile(replies, lines) as file:
        n_before = file.n_done
        with Progress("Replying", "prompt", len(lines), n_before, line_every_s=30.0) as progress:
            for start in range(n_before - n_before % size, len(lines), size):
                batch = [line.prompt for line in lines[start : start + size]]
                seed = derive_seed(loaded.config.seed, "replies", start)
                answers = loaded.generate(batch, batch_size=size, seed=seed, **kwargs)
                for reply in answers[file.n_done - start :]:
                    file.append(reply)
                    progress.advance()
        return file.n_done - n_before
