"""Progress of a run, told by its main process: bars on a terminal; lines elsewhere, and in the run's ``log.txt``."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from rl4dialog.functional.distributed import is_main_process

# Only for log.txt, whose handler the tracker adds. The console gets its lines from `say`, or shows a bar.
PROGRESS_LOGGER_NAME = "rl4dialog.progress"
_logger = logging.getLogger(PROGRESS_LOGGER_NAME)
_logger.propagate = False
_logger.setLevel(logging.INFO)


def say(line: str, on_terminals: bool = False) -> None:
    """Write a line to ``log.txt`` and the standard error; terminals, which show bars, get it only if told so."""
    if not is_main_process():
        return
    _logger.info(line)
    if on_terminals or not _shows_bars():
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()


class Progress:
    """Counts items up to a total, with a line at most every ``line_every_s``; with 0 each advance writes one.

    The unit is in the singular. ``initial`` items are already done. ``stays`` keeps a completed bar on the terminal.
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
        has_bar: bool = True,
    ) -> None:
        self._label, self._unit, self._total, self._initial = label, unit, total, initial
        self._line_every_s, self._line_at_end = line_every_s, line_at_end
        self._n = initial
        self._began = self._last_line = time.perf_counter()
        self._name = label or unit.capitalize()
        hidden = not (has_bar and _shows_bars() and is_main_process())
        self._bar = tqdm(total=total, initial=initial, desc=self._name, unit=unit, leave=stays, disable=hidden)

    def advance(self, n: int = 1, shown: Mapping[str, str] | None = None) -> None:
        """Count ``n`` more items, and show numbers beside the count: text by name."""
        self._n += n
        if shown:
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update(n)
        now = time.perf_counter()
        is_last = self._n >= self._total
        if (is_last and self._line_at_end) or (not is_last and now - self._last_line >= self._line_every_s):
            self._last_line = now
            say(self._line(shown or {}))

    def enter(self, phase: str = "") -> None:
        """Show which part of an item is being done; an empty name for none. Only bars show it."""
        self._bar.set_description(f"{self._name} ({phase})" if phase else self._name)

    def close(self) -> None:
        """Close the bar and move to a new line."""
        self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()  # also after an error, so that its message starts on a new line

    def _line(self, shown: Mapping[str, str]) -> str:
        # A rate is followed by its unit.
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
    """Format a duration: ``42 s``, ``2 min 31 s``, ``3 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _shows_bars() -> bool:
    """Whether the standard error is a terminal with a known width; without one, bars would be invisible."""
    try:
        return sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):
        return False
