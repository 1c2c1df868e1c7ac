"""Files of JSON lines that a rerun command continues after an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rl4dialog.core.errors import DataError, RunFolderError
from rl4dialog.core.files import json_value

Record = Mapping[str, Any]
_File = TypeVar("_File", bound="ContinuedFile")


class ContinuedFile:
    """A ``.jsonl`` file to which records are appended one by one.

    Args:
        path: The file; a truncated last line is removed.
        n_after: Returns the number of tasks that are done after a record, given the number before it; ``None`` if the
            record belongs to other tasks.
        task: Description of a task, for messages, with the place of its number.

    Attributes:
        n_done: Number of tasks that are done.
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
