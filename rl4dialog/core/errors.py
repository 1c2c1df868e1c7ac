"""All errors that a user's input can cause.

The command line prints them as one paragraph without a traceback. A message must therefore be self-contained: it names
the key or file, describes the problem, and explains the fix.
"""

from __future__ import annotations

import difflib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl4dialog.core.untrusted import redacted, visible

# The longest message of rl4dialog itself lists all rewards.
_MAX_CHARACTERS = 3000

HIDDEN_INPUT = "hidden_input"
"""Type of pydantic's errors for values that messages must not show."""


class RL4DialogError(Exception):
    """Base class of all errors that a user can fix. Its text is one paragraph, even with text from a file in it.

    It has no control characters and no credentials of addresses.
    """

    def __str__(self) -> str:
        text = visible(redacted(" ".join(super().__str__().splitlines())))
        if len(text) <= _MAX_CHARACTERS:
            return text
        return f"{text[: _MAX_CHARACTERS * 2 // 3]} [...] {text[-_MAX_CHARACTERS // 3 :]}"


class ConfigError(RL4DialogError):
    """A key, value or argument of the config is invalid."""


class DataError(RL4DialogError):
    """A data file or a dataset is missing, empty or malformed."""


class ModelError(RL4DialogError):
    """A model or tokenizer cannot be found, or does not fit the run."""


class GenerationError(RL4DialogError):
    """A generation engine did not start, failed, or returned invalid replies."""


class RewardError(RL4DialogError):
    """A reward function raised, or did not return one finite number per reply."""


class MetricError(RL4DialogError):
    """A metric did not return, by key, one score per text or none, and a number for all."""


class PartnerError(RL4DialogError):
    """A conversation partner raised, or did not return a valid reply."""


class EndpointError(RL4DialogError):
    """A server did not answer a request, or not with what was asked for."""


class TrainingError(RL4DialogError):
    """Training cannot continue from its current state."""


class EnvWorkerError(RL4DialogError):
    """A process that runs environments died, or one of its environments raised an error."""


class RunFolderError(RL4DialogError):
    """The run folder already exists, or cannot be written."""


class HubError(RL4DialogError):
    """No user is logged in to the hub, or the hub refuses the request or cannot be reached."""


def raised(error: BaseException) -> str:
    """Describe an error of somebody's code: its type, message and innermost line, if possible outside packages."""
    packages = "site-packages", "dist-packages", sysconfig.get_path("stdlib"), f"{Path(__file__).parents[1]}{os.sep}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(each in frame.filename for each in packages)]
    place = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in (own or frames)[-1:])
    return f"{type(error).__name__}: {error}{place}"


def shown(value: object, n_characters: int = 60) -> str:
    """Format a value for a message, truncated if it is long."""
    text = repr(value)
    return text if len(text) <= n_characters else text[:n_characters] + " ..."


def validation_message(problems: Sequence[Mapping[str, Any]], value: object, keys: Sequence[str] = ()) -> str:
    """Describe pydantic's errors for a value, one for each type of a union: the path within it, and the reason.

    The text is like ``": input should be a valid number, got 'x'"`` or ``"[0].weight: input should be ..."``. The keys
    are those of blocks in the value, for hints.
    """
    # Types that only Python callers can pass do not help in a config.
    foreign = ("callable_type", "is_instance_of", "is_subclass_of", "is_type", "needs_python_object")
    relevant = [problem for problem in problems if problem["type"] not in foreign] or problems
    deepest = max(relevant, key=lambda problem: len(_path(problem["loc"], value)))
    path = _path(deepest["loc"], value)
    alike = [problem for problem in relevant if _path(problem["loc"], value) == path]
    missing = [f"the key {problem['loc'][-1]!r} is missing" for problem in alike if problem["type"] == "missing"]
    if missing:
        return f"{''.join(path)}: {' and '.join(missing)}, got {shown(deepest['input'])}"
    if deepest["type"] in ("extra_forbidden", "unexpected_keyword_argument") and keys:
        is_deeper = sum(step.startswith(".") for step in path) > 1  # in a block of the block, which has other keys
        known = "" if is_deeper else f" (known here: {', '.join(keys)})"
        return f"{''.join(path)}: unknown key{nearest_hint(deepest['loc'][-1], keys)}{known}"
    choices = re.findall(r"'([^']+)'", deepest["msg"]) if deepest["type"] == "literal_error" else ()
    hint = nearest_hint(deepest["input"], choices)
    got = "" if deepest["type"] == HIDDEN_INPUT else f", got {shown(deepest['input'])}"
    return f"{''.join(path)}: {_joined(problem['msg'] for problem in alike)}{got}{hint}"


def _path(location: Sequence[int | str], value: Any) -> list[str]:
    """Steps of a location that lead into a value, without pydantic's names of union types between them."""
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
    """Join messages, with their common beginning only once."""
    begin = "Input should be "
    first, *others = dict.fromkeys(message.removeprefix("Value error, ") for message in messages)
    text = " or ".join([first, *(message.removeprefix(begin) for message in others)])
    return text[0].lower() + text[1:]


def nearest_hint(name: object, candidates: Iterable[str]) -> str:
    """The most similar candidate as ``"; did you mean 'x'?"``, or an empty string if none is similar."""
    near = difflib.get_close_matches(str(name), [str(candidate) for candidate in candidates], n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


class ProcessError(RL4DialogError):
    """Another process of a data-parallel run ended."""


class CheckpointError(RL4DialogError):
    """A checkpoint is damaged, or does not fit the run."""


class RunInterrupted(KeyboardInterrupt):
    """A signal stopped a run, which can be resumed. Not an ``Exception``, so that error handlers do not catch it."""
