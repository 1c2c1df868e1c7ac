"""A cache of a judge's answers on disk, one file per question."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from rl4dialog.core.cache import cache_root
from rl4dialog.core.files import json_value

_logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


def question_key(question: Any) -> str:
    """Key of everything that determines an answer; must be JSON-serializable."""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


def kept_answer(key: str, kind: type[Answer]) -> Answer | None:
    """The answer to a question, if it was kept and is of this type. A damaged file counts as none."""
    try:
        answer = json_value(_file(key).read_text(encoding="utf-8"))["answer"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if isinstance(answer, kind) else None


def keep_answer(key: str, answer: Any) -> None:
    """Write an answer to the cache, atomically. Without a writable cache, the run continues."""
    file = _file(key)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as temporary:
                json.dump({"answer": answer}, temporary)
            os.replace(name, file)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        _warn_once(str(file.parent.parent), error.strerror or str(error))


def _file(key: str) -> Path:
    return cache_root() / "judge" / key[:2] / f"{key}.json"


@functools.cache
def _warn_once(folder: str, error: str) -> None:
    _logger.warning("answers of the judge cannot be kept in %s (%s), so they are asked for again", folder, error)
