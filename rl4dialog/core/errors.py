"""Every error that a user's input can cause.

The command line prints these as one paragraph without a traceback, so a message must stand on its own: it
names the key or the file, says what was wrong, and says what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RL4DialogError(Exception):
    """Base of all errors that a user can mend."""


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


class EnvWorkerError(RL4DialogError):
    """A process that runs environments died, or one of its environments raised."""


class RunFolderError(RL4DialogError):
    """The run folder exists already, or cannot be written."""


def nearest_hint(name: str, candidates: Iterable[str]) -> str:
    """Say which candidate was probably meant.

    Returns:
        ``"; did you mean 'x'?"``, or an empty string when nothing is near.
    """
    near = difflib.get_close_matches(str(name), [str(candidate) for candidate in candidates], n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


class ProcessError(RL4DialogError):
    """Another process of a data-parallel run ended."""
