"""Other Python processes, in which texts have other hashes, so that sets have another order."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

_CODE = (
    "import hashlib, pickle, sys;"
    "print(hashlib.sha256(repr(list(pickle.load(sys.stdin.buffer)())).encode()).hexdigest())"
)


def assert_other_processes_make_the_same(make: Callable[[], Iterable[Any]]) -> None:
    """The function, which can be pickled, gives the same things in order, as far as their ``repr`` shows."""
    here = hashlib.sha256(repr(list(make())).encode()).hexdigest()
    path = os.pathsep.join(filter(None, sys.path))
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        output = subprocess.run(
            [sys.executable, "-c", _CODE], env=environment, input=pickle.dumps(make), capture_output=True
        )
        assert output.stdout.decode().strip() == here, output.stderr.decode()
