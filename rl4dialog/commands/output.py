"""Standard streams that tolerate being closed, full or limited to a small character set."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


def write_verbatim(text: str) -> None:
    """Print a text without a line end, at once."""
    print(text, end="", flush=True)


class LenientStream:
    """A text stream that records its first write error and discards all later output.

    Args:
        stream: The stream to wrap; ``None`` if the process was started without it.

    Attributes:
        error: The first error, or ``None``.
    """

    def __init__(self, stream: TextIO | None) -> None:
        # Otherwise the next opened file would get the stream's descriptor, and with it the output of libraries.
        self._stream = stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self.error: OSError | ValueError | None = None

    def write(self, text: str) -> int:
        """Write the text, with escapes for characters that the stream's encoding lacks."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            return self.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
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

    def close(self) -> None:
        """Flush; the wrapped stream stays open, because logging handlers of libraries close what they write to."""
        self.flush()

    def _give_up(self, error: OSError | ValueError) -> None:
        """Discard all further output, including what Python flushes at exit."""
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
    """Make both standard streams lenient within the context; yields the standard output."""
    before = sys.stdout, sys.stderr
    output = LenientStream(sys.stdout)
    sys.stdout, sys.stderr = output, LenientStream(sys.stderr)  # type: ignore[assignment]
    try:
        yield output
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
