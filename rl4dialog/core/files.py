"""Files of any origin, read with care; files, JSON lines and folders that survive an interruption at any moment."""

from __future__ import annotations

import csv
import errno
import functools
import hashlib
import json
import logging
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from rl4dialog.core.errors import DataError, RunFolderError, shown

try:
    import fcntl
except ImportError:  # Windows has no file locks of this kind
    fcntl = None  # type: ignore[assignment]

CONFIG_FILE = "config.json"
MANIFEST = "manifest.json"
Record = Mapping[str, Any]
_Continued = TypeVar("_Continued", bound="ContinuedFile")
_logger = logging.getLogger(__name__)

_SURELY_FITS = 100 * 2**20
_MAX_RATIO = 200
_KINDS = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))
# What a spreadsheet reads as a formula, which could send other cells to an address or start a program.
_FORMULA = re.compile("[=+@\t\r\n\uff1d\uff0b\uff0d\uff20-]")


def read_regular(path: Path) -> bytes:
    """Content of a regular file; an `OSError` for others, since reading a pipe or a device might never end."""
    check_regular(path)
    return path.read_bytes()


def check_regular(path: Path) -> None:
    """Raise an `OSError` if a path is not a regular file, or does not exist."""
    if (kind := _special(path.stat().st_mode)) is not None:
        raise OSError(f"{path.name} is {kind}; use a regular file")


def _special(mode: int) -> str | None:
    return next((name for is_kind, name in _KINDS if is_kind(mode)), None)


def check_contained(folder: Path, but: str = "wandb") -> None:
    """Refuse a folder of any origin with a link that leaves it, which would be read, written or uploaded; or a pipe.

    The folder itself may be a link, and links within it are followed. Folders of the name `but` are not looked into:
    W&B alone reads and writes its own, which has links to its cache.
    """
    root = os.path.realpath(folder)
    for place, folders, names in os.walk(root):
        entries = [*folders, *names]
        folders[:] = [name for name in folders if name != but]
        for path in (os.path.join(place, name) for name in entries):
            with suppress(FileNotFoundError):  # a running process may remove temporary files
                mode = os.lstat(path).st_mode
                if stat.S_ISLNK(mode):
                    _check_link(Path(path), folder)
                elif (kind := _special(mode)) is not None:
                    raise RunFolderError(f"{path} is {kind}, which no run writes; remove it")


def _check_link(path: Path, folder: Path) -> None:
    """Refuse a path in a folder if its links lead out of it."""
    root, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if not target.is_relative_to(root):
        cure = "remove the link. To keep a run on another disk, move the whole folder, which may be a link itself"
        raise RunFolderError(f"{path} leads to {target}, out of the folder {folder}, so it is not followed; {cure}")


def written_path(path: str | os.PathLike[str]) -> Path:
    """The path behind links, to write to; those that lead out of the run folder which they are in are refused."""
    given, final = Path(os.path.abspath(path)), Path(os.path.realpath(path))
    if given != final:
        for folder in given.parents:
            if is_run(folder):
                _check_link(given, folder)
    return final


def is_run(folder: Path) -> bool:
    """Whether a folder is a run folder; a model folder has a config.json too, but with other contents."""
    config = read_or_nothing(folder / CONFIG_FILE)
    return isinstance(config, dict) and "alg" in config


def read_or_nothing(path: Path) -> Any:
    """The JSON of a file; an empty object if it is missing or damaged."""
    with suppress(OSError, ValueError):
        return json_value(read_regular(path))
    return {}


def check_expansion(unpacked: int, packed: int, place: Path) -> None:
    """Refuse archives made to fill up memory or disk, by the bytes to unpack (or unpacked so far) and their own."""
    if unpacked > _SURELY_FITS and unpacked > _MAX_RATIO * packed:
        cure = "if that is correct, unpack it yourself"
        raise DataError(f"{place} expands to more than {_MAX_RATIO} times its size, as no compressed text does; {cure}")


def json_value(text: str | bytes) -> Any:
    """Parsed JSON; a `ValueError` if it is malformed or nested too deeply, or has a key twice or a huge number."""
    # A search costs less than a Python function for each number.
    is_long = re.search(rb"\d{309}" if isinstance(text, bytes) else r"\d{309}", text)  # type: ignore[arg-type]
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_int=_fitting if is_long else None)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _fitting(digits: str) -> int:
    """A whole number that a float can hold."""
    if (n := len(digits.lstrip("-"))) > 308:
        raise ValueError(f"it has a number of {n:,} digits")
    return int(digits)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"it has the key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} twice")
    return found


def json_object(text: str | bytes) -> dict[str, Any]:
    """A parsed JSON object; a `ValueError` for anything else."""
    found = json_value(text)
    if not isinstance(found, dict):
        raise ValueError(f"it must be a JSON object, not {shown(found)}")
    return found


@contextmanager
def naming_errors(path: Path, advice: str = "") -> Iterator[None]:
    """Convert an `OSError` to a `RunFolderError` that names the path, the cause, and what to do."""
    try:
        yield
    except Exception as error:
        # With a full disk, safetensors and tokenizers raise errors of their own types.
        if not isinstance(error, OSError) and os.strerror(errno.ENOSPC) not in str(error):
            raise
        is_file = getattr(error, "errno", None) in (errno.ENOTDIR, errno.EEXIST)
        cause = "a part of the path is a file, not a folder" if is_file else getattr(error, "strerror", None) or error
        raise RunFolderError(f"{path} cannot be written: {cause}{advice}") from error


def sync_folder(folder: Path) -> None:
    """Sync a folder, its files and its sub-folders to disk."""
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def sync_names(folder: Path) -> None:
    """Sync the names in a folder to disk, if the file system supports it, so that a renamed file keeps its name."""
    with suppress(OSError):
        sync_path(folder)


def sync_path(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to disk; an `OSError` if the file system does not support it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replaced(path: str | os.PathLike[str], ending: str = ".tmp") -> Iterator[Path]:
    """Yield a temporary path beside a file, which gets the file's name if the block succeeds, and is removed otherwise.

    The temporary name is the file's with a dot before and the ending after it. A device or pipe is written directly,
    and a link is kept: the file that it names is replaced, unless it leaves the run folder which it is in.
    """
    final = written_path(path)
    if final.exists() and not final.is_file():
        yield final
        return
    temporary = final.with_name(f".{final.name}{ending}")
    try:
        yield temporary
        sync_path(temporary)
        os.replace(temporary, final)
        sync_names(final.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, obj: Any, advice: str = "") -> None:
    """Write an object as indented JSON to a file, atomically; for the advice, see `naming_errors`."""
    write_text(path, json.dumps(to_plain(obj), indent=2, ensure_ascii=False, allow_nan=False) + "\n", advice)


def write_text(path: Path, text: str, advice: str = "") -> None:
    """Write a text file atomically; for the advice, see `naming_errors`."""
    with naming_errors(path, advice), replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def to_plain(obj: Any) -> Any:
    """Convert an object to JSON types: arrays to lists, dataclasses to dicts, NaN and infinities to ``None``.

    Unknown objects become text.
    """
    if isinstance(obj, Enum):
        return to_plain(obj.value)
    if obj is None or isinstance(obj, (bool, int)):
        return obj
    if isinstance(obj, float):
        return float(obj) if math.isfinite(obj) else None
    if isinstance(obj, Mapping):
        return {str(to_plain(key)): to_plain(value) for key, value in obj.items()}
    if isinstance(obj, (list, tuple)):
        return list(map(to_plain, obj))
    if isinstance(obj, (set, frozenset)):
        return sorted(map(to_plain, obj), key=str)
    if is_dataclass(obj) and not isinstance(obj, type):
        return {each.name: to_plain(getattr(obj, each.name)) for each in fields(obj)}
    # Numpy and torch scalars and arrays, without importing either library.
    if callable(getattr(obj, "tolist", None)):
        return to_plain(obj.tolist())
    return str(obj)


def wait_for_lock(handle: int) -> None:
    """Lock an open file against other processes, after waiting for them; a warning if the file system has no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        _warn_without_locks(error.strerror)


@functools.cache  # once per process, not for each vote
def _warn_without_locks(why: str) -> None:
    what = "files cannot be locked here (%s), as on some network disks: let only one process write to a file"
    _logger.warning(what, why)


def try_lock(handle: int) -> bool:
    """Lock an open file, unless another process has locked it; an `OSError` if the file system has no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_manifest(folder: Path, **about: Any) -> None:
    """Write sizes and hashes of all files of a folder, and JSON entries about it, as its last file."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {p.relative_to(folder).as_posix(): {"bytes": p.stat().st_size, "sha256": file_hash(p)} for p in paths}
    (folder / MANIFEST).write_text(json.dumps({**about, "files": files}, indent=1), encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a folder, and verify all files; a `ValueError` names one that is missing or was changed."""
    try:
        manifest = json_object((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = {str(name): (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it has no readable {MANIFEST}, so it is incomplete") from error
    for name, (n_bytes, sha256) in expected.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{name} is missing")
        if path.stat().st_size != n_bytes:
            raise ValueError(f"{name} has {path.stat().st_size} bytes instead of {n_bytes}")
        if file_hash(path) != sha256:
            raise ValueError(f"{name} was changed")
    return manifest


def file_hash(path: Path) -> str:
    """SHA-256 hash of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_line(record: Record, allow_nan: bool = False) -> bytes:
    return json.dumps(record, ensure_ascii=False, allow_nan=allow_nan).encode("utf-8", "backslashreplace") + b"\n"


def append_whole(file: BinaryIO, data: bytes, sync: bool = False) -> None:
    """Append data to an unbuffered file in a single write, and remove what a full disk cut short."""
    end = file.seek(0, os.SEEK_END)
    try:
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if sync:
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            file.truncate(end)
        raise


def append_record(path: Path, record: Record) -> None:
    """Append a record as a synced line, in place of a truncated one. Several programs can append to a file."""
    data, path = json_line(record), written_path(path)
    with naming_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        with open(path, "a+b", buffering=0) as file:
            wait_for_lock(file.fileno())
            check_appendable(path)
            _mend_end(file)
            append_whole(file, data, sync=True)
        if is_new:
            sync_path(path.parent)


def check_appendable(path: Path, is_record: Callable[[bytes], bool] | None = None) -> None:
    """Refuse a file with content but without a record (by default, any JSON object), so that it is something else."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb") as file:
            if not any(map(is_record or _is_record, file)):
                raise RunFolderError(f"{path} has no record of this kind, so it is left as it is; choose another file")


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records as lines; a file of such records is replaced, any other one refused."""
    rows = list(records)
    keys = {*chain.from_iterable(rows)}
    with naming_errors(path):
        check_appendable(path, lambda line: _is_record(line) and json_object(line).keys() <= keys)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as temporary:
            temporary.write_bytes(b"".join(json_line(row, allow_nan=True) for row in rows))


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write a table. An apostrophe is put before texts that a spreadsheet would read as formulas."""
    with naming_errors(path), replaced(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        for row in rows:
            table.writerow(f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell for cell in row)


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file, except a truncated last line, with a warning; an `OSError` if it cannot be read."""
    *lines, last = read_regular(path).split(b"\n")
    if _is_record(last):
        return [*lines, last]
    if last.strip():
        cure = "complete or remove the line, or write the file again"
        _logger.warning("%s:%d is cut short, so it is left out; %s", path, len(lines) + 1, cure)
    return lines


def _mend_end(file: BinaryIO) -> None:
    """Remove a truncated last line, or add the missing newline to a complete one, which editors may omit."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    data = file.read()
    begin = data.rfind(b"\n") + 1
    if _is_record(data[begin:]):
        file.write(b"\n")
    else:
        file.truncate(begin)


def _is_record(line: bytes) -> bool:
    return _record(line) is not None


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of a line, if it is complete: a truncated JSON object is never valid."""
    try:
        return json_object(line)
    except ValueError:
        return None


class ContinuedFile:
    """A ``.jsonl`` file of the results of tasks, of which `n_done` are done; a rerun command continues it.

    A truncated last line is removed. `n_after` returns the number of tasks that are done after a record, given the
    number before it; ``None`` if the record belongs to other tasks. `task` describes a task, for messages, with the
    place of its number.
    """

    def __init__(self, path: Path, n_after: Callable[[Record, int], int | None], task: str) -> None:
        self._path, self._n_after, self._task = path, n_after, task
        path = written_path(path)
        with naming_errors(path, "; choose another --output"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed by `close`)
        try:
            self.n_done = self._count_done()
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise RunFolderError(f"nothing can be appended to {path} ({error.strerror})") from error
            raise

    def write(self, record: Record) -> None:
        """Append the record of the next task, as a whole line."""
        with naming_errors(self._path, "; fix this and rerun the command to continue"):
            append_whole(self._file, json_line(record, allow_nan=True))
        self.n_done += 1

    def records(self) -> list[dict[str, Any]]:
        self._file.seek(0)
        return [json_value(line) for line in self._file.read().splitlines()]

    def close(self) -> None:
        self._file.close()

    def __enter__(self: _Continued) -> _Continued:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _count_done(self) -> int:
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        n_done = 0
        for number, line in enumerate(whole.splitlines(), start=1):
            found = None if (record := _record(line)) is None else self._n_after(record, n_done)
            if found is None:
                task = self._task.format(n_done + 1)
                raise DataError(f"{self._path}:{number} is not {task}; choose another --output")
            n_done = found
        if data and not whole:
            # Without a complete line, the file must at least begin as the first record does.
            record = _record(data)
            is_own = data.startswith(b'{"'[: len(data)]) if record is None else self._n_after(record, 0) is not None
            if not is_own:
                raise DataError(f"{self._path} is not {self._task.format(1)}; choose another --output")
        self._file.truncate(len(whole))
        return n_done
