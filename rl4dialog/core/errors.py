"""Every error that a user's input can cause.

The command line prints these as one paragraph without a traceback, so a message must stand on its own: it
names the key or the file, says what was wrong, and says what would be right.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# The longest of our own messages lists every reward.
_MAX_CHARACTERS = 3000


class RL4DialogError(Exception):
    """Base of all errors that a user can mend. Its text is one paragraph, whatever a file has put into it."""

    def __str__(self) -> str:
        text = " ".join(super().__str__().splitlines())
        if len(text) <= _MAX_CHARACTERS:
            return text
        return f"{text[: _MAX_CHARACTERS * 2 // 3]} [...] {text[-_MAX_CHARACTERS // 3 :]}"


class ConfigError(RL4DialogError):
    """A key, a value or an argument of the run's config is wrong."""


class DataError(RL4DialogError):
    """A data file or a dataset is missing, empty or malformed."""


class ModelError(RL4DialogError):
    """A model or a tokenizer cannot be found, or does not fit the run."""


class GenerationError(RL4DialogError):
    """An engine that writes replies did not start, failed, or returned something else than replies."""


class RewardError(RL4DialogError):
    """A reward function raised, or did not return one finite number per reply."""


class TrainingError(RL4DialogError):
    """Training cannot go on with what it has learned so far."""


class EnvWorkerError(RL4DialogError):
    """A process that runs environments died, or one of its environments raised."""


class RunFolderError(RL4DialogError):
    """The run folder exists already, or cannot be written."""


class HubError(RL4DialogError):
    """Nobody is logged in to the hub, or it refuses or cannot be reached."""


def shown(value: object, n_characters: int = 60) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= n_characters else text[:n_characters] + " ..."


def validation_message(problems: Sequence[Mapping[str, Any]], value: object) -> str:
    """What pydantic finds wrong with a value: the path within it, and why.

    Args:
        problems: The errors of one value; of a union there is one for each of its types.
        value: The value.

    Returns:
        Such as ``": input should be a valid number, got 'x'"`` or ``"[0].weight: input should be ..."``.
    """
    # What only Python callers can give is no advice for a config.
    foreign = ("callable_type", "is_instance_of", "is_subclass_of", "is_type", "needs_python_object")
    told = [problem for problem in problems if problem["type"] not in foreign] or problems
    deepest = max(told, key=lambda problem: len(_path(problem["loc"], value)))
    path = _path(deepest["loc"], value)
    alike = [problem["msg"] for problem in told if _path(problem["loc"], value) == path]
    choices = re.findall(r"'([^']+)'", deepest["msg"]) if deepest["type"] == "literal_error" else ()
    hint = nearest_hint(deepest["input"], choices)
    return f"{''.join(path)}: {_joined(alike)}, got {shown(deepest['input'])}{hint}"


def _path(location: Sequence[int | str], value: Any) -> list[str]:
    """Steps of a location that lead into a value; pydantic's names of a union's types are between them."""
    path = []
    for step in location:
        if isinstance(step, int) and isinstance(value, Sequence) and step < len(value):
            path.append(f"[{step}]")
        elif isinstance(value, Mapping) and step in value:
            path.append(f".{step}")
        else:
            continue
        value = value[step]
    return path


def _joined(messages: Iterable[str]) -> str:
    """Messages in one, which says only once how they begin."""
    begin = "Input should be "
    first, *others = dict.fromkeys(message.removeprefix("Value error, ") for message in messages)
    text = " or ".join([first, *(message.removeprefix(begin) for message in others)])
    return text[0].lower() + text[1:]


def nearest_hint(name: object, candidates: Iterable[str]) -> str:
    """Say which candidate was probably meant.

    Returns:
        ``"; did you mean 'x'?"``, or an empty string when nothing is near.
    """
    near = difflib.get_close_matches(str(name), [str(candidate) for candidate in candidates], n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


class ProcessError(RL4DialogError):
    """Another process of a data-parallel run ended."""


class CheckpointError(RL4DialogError):
    """A checkpoint is damaged, or does not fit the run."""


class RunInterrupted(KeyboardInterrupt):
    """A signal stopped a run, which can be resumed. No error, so that nothing that handles errors holds it up."""
