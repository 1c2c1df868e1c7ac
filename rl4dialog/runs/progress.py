"""How far a run is: bars on a terminal; elsewhere, and in the run's ``log.txt`` always, plain lines.

A log file shows every refresh of a bar as a line of its own, so bars are for terminals alone. In a data-parallel run
the main process alone speaks.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from rl4dialog.functional.distributed import is_main_process

# What is said here is for log.txt, whose handler the tracker adds; the console gets it from `say`, or sees a bar.
PROGRESS_LOGGER_NAME = "rl4dialog.progress"
_logger = logging.getLogger(PROGRESS_LOGGER_NAME)
_logger.propagate = False
_logger.setLevel(logging.INFO)


def say(line: str, on_terminals: bool = False) -> None:
    """Write a line to ``log.txt``, and to the standard error output.

    Args:
        line: What there is to say.
        on_terminals: Write it to a terminal too, above the bars; otherwise a bar says as much there.
    """
    if not is_main_process():
        return
    _logger.info(line)
    if on_terminals or not _shows_bars():
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


class Progress:
    """Counts something up to a total.

    Args:
        label: What is under way, before the bar; the lines leave it out if it is empty.
        unit: What is counted, in the singular.
        total: How many there are.
        initial: How many are done already.
        line_every_s: Least seconds between two lines; with 0 each advance is a line.
        line_at_end: Whether the last advance is a line in any case.
        stays: Whether the bar stays on the terminal when it is full.
    """

    def __init__(
        self,
        label: str,
        unit: str,
        total: int,
        initial: int = 0,
        line_every_s: float = 0.0,
        line_at_end: bool = True,
        stays: bool = True,
    ) -> None:
        self._label, self._unit, self._total, self._initial = label, unit, total, initial
        self._line_every_s, self._line_at_end = line_every_s, line_at_end
        self._n = initial
        self._began = self._last_line = time.perf_counter()
        self._bar = tqdm(
            total=total,
            initial=initial,
            desc=label or unit.capitalize(),
            unit=unit,
            leave=stays,
            disable=not (_shows_bars() and is_main_process()),
        )

    def advance(self, n: int = 1, shown: Mapping[str, str] | None = None) -> None:
        """Count ``n`` more, and show numbers beside the count: text by name."""
        self._n += n
        if shown:
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update(n)
        now = time.perf_counter()
        is_last = self._n >= self._total
        if (is_last and self._line_at_end) or (not is_last and now - self._last_line >= self._line_every_s):
            self._last_line = now
            say(self._line(shown or {}))

    def close(self) -> None:
        """Leave the line that the bar stands on."""
        self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        # Also after an error, whose message then begins a line of its own.
        self.close()

    def _line(self, shown: Mapping[str, str]) -> str:
        # A rate reads as a number with its unit.
        facts = [f"{value} {name}" if "/" in name else f"{name} {value}" for name, value in shown.items()]
        seconds = time.perf_counter() - self._began
        if self._n < self._total:
            seconds_each = seconds / (self._n - self._initial)
            facts.append(f"{duration(seconds_each * (self._total - self._n))} left")
        else:
            facts.append(f"after {duration(seconds)}")
        count = f"{self._label}, {self._unit}" if self._label else self._unit
        return f"{count} {self._n}/{self._total}: {', '.join(facts)}"


def duration(seconds: float) -> str:
    """A time as one reads it: ``42 s``, ``2 min 31 s``, ``3 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _shows_bars() -> bool:
    """Whether the standard error output is a terminal, of any width: one without could show nothing."""
    try:
        return sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):
        return False
