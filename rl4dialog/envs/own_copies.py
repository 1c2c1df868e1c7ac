"""Objects that each process builds for itself after a fork: rewards and the partner."""

from __future__ import annotations

import io
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import cloudpickle

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.envs.fork_safety import ADVICE


class OwnCopy:
    """An object for worker processes, unpickled in each of them.

    Everything that it opens during unpickling (a file, a socket or a database) therefore belongs to one worker. When
    the `OwnCopy` itself is unpickled, as in the process that forks the workers, the object is built once and dropped,
    so that the modules that it needs are loaded there and shared.

    Args:
        value: The object.
        shared: Objects that it can refer to and that all processes share, such as the tokenizer.
        name: Name of the object for error messages.

    Raises:
        EnvWorkerError: If it cannot be pickled, for example because it contains an open file or a lock.
    """

    def __init__(self, value: Any, shared: Sequence[Any], name: str) -> None:
        self._shared, self._name = list(shared), name
        self._process, self._value = os.getpid(), value
        buffer = io.BytesIO()
        try:
            _Pickler(buffer, self._shared).dump(value)
        except Exception as error:
            raise EnvWorkerError(
                f"{name} cannot be sent to worker processes: {type(error).__name__}: {error}. {ADVICE}; __getstate__ "
                f"of its class can omit objects that are already open."
            ) from error
        self._pickled = buffer.getvalue()

    def get(self) -> Any:
        """Return this process' copy of the object."""
        if self._process != os.getpid():
            self._value = _Unpickler(io.BytesIO(self._pickled), self._shared).load()
            self._process = os.getpid()
        return self._value

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_process": None, "_value": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        _Unpickler(io.BytesIO(self._pickled), self._shared).load()


class _Pickler(cloudpickle.CloudPickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._places = {id(value): place for place, value in enumerate(shared)}

    def persistent_id(self, value: Any) -> int | None:
        return self._places.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        # cloudpickle would read the file and send its contents.
        if isinstance(value, io.TextIOWrapper) and value not in (sys.stdin, sys.stdout, sys.stderr):
            raise pickle.PicklingError(f"cannot pickle the open file {value.name!r}")
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, place: int) -> Any:
        return self._shared[place]
