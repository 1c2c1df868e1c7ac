"""Results of checks of a run before its start."""

from __future__ import annotations

from typing import NamedTuple

# Every corpus has a few texts that are too long. Above this fraction, the length limits are wrong.
CUT_SHARE = 0.1


class Finding(NamedTuple):
    """The result of one check."""

    level: str  # ``pass``, ``warn``, ``fail``, or ``skip`` if the check does not apply
    measured: str
    advice: str = ""  # suggested fix; empty if none is needed


class NotApplicable(Exception):
    """Raised by a check that does not apply to the run."""


def judged(
    value: float, measured: str, advice: str, warn_above: float | None = None, fail_above: float | None = None
) -> Finding:
    """Judge a number by thresholds. NaN fails, or warns if there is no threshold for failure."""
    if fail_above is not None and not value <= fail_above:
        return Finding("fail", measured, advice)
    if warn_above is not None and not value <= warn_above:
        return Finding("warn", measured, advice)
    return Finding("pass", measured)
