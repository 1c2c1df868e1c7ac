"""Standard streams that may be closed, full, or of a small character set: what is printed is no reason to stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class LenientStream:
    """A text stream that keeps its first error to itself, and writes nothing from then on.

    Args:
        stream: The real one; ``None`` where a process was started without it.

    Attributes:
        error: Why nothing is written any more.
    """

    def __init__(self, stream: TextIO | None) -> None:
        # Without it, the next file that is opened would get its number, and what libraries print.
        self._stream = stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self.error: OSError | ValueError | None = None

    def write(self, text: str) -> int:
        """Write what the stream's character set has, and escapes for the rest."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            return self.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError) as error:  # ValueError: it is closed
            self._give_up(error)
            return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._give_up(error)

    def _give_up(self, error: OSError | ValueError) -> None:
        """Let the rest, and what Python flushes at its end, go nowhere."""
        self.error = error
        try:
            number = self._stream.fileno()
        except (OSError, ValueError):
            number = -1
        self._stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        if number in (1, 2):
            os.dup2(self._stream.fileno(), number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lenient_output() -> Iterator[LenientStream]:
    """Have both standard streams lenient while it lasts; gives the standard output."""
    before = sys.stdout, sys.stderr
    output = LenientStream(sys.stdout)
    sys.stdout, sys.stderr = output, LenientStream(sys.stderr)  # type: ignore[assignment]
    try:
        yield output
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
