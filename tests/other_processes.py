"""Another Python process: sets and folders have another order, and time zone, locale and working directory differ."""

import hashlib
import os
import pickle
import subprocess
import sys

_CODE = """
import contextlib, hashlib, os, pickle, sys
listdir, scandir = os.listdir, os.scandir
os.listdir = lambda *args: listdir(*args)[::-1]
os.scandir = lambda *args: contextlib.nullcontext(iter([*scandir(*args)][::-1]))
print(hashlib.sha256(repr(list(pickle.load(sys.stdin.buffer)())).encode()).hexdigest())
"""
# ASCII is the encoding, unless a file is opened with another one.
_ELSEWHERE = {
    **{"PYTHONHASHSEED": "2", "TZ": "Pacific/Kiritimati"},
    **{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


def assert_other_processes_make_the_same(make):
    """The function, which can be pickled, gives the same things in order, as far as their ``repr`` shows."""
    here = hashlib.sha256(repr(list(make())).encode()).hexdigest()
    output = subprocess.run(
        [sys.executable, "-c", _CODE],
        env={**os.environ, **_ELSEWHERE, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        input=pickle.dumps(make),
        capture_output=True,
        cwd="/",
    )
    *_, there = output.stdout.decode().split() or [""]  # packages may print something when they are imported
    assert there == here, output.stderr.decode()
