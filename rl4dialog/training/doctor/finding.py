"""Results of checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        level: ``pass``, ``warn``, ``fail``, or ``skip`` if the check does not apply.
        measured: Description of the measurement.
        advice: Suggested fix; empty if none is needed.
    """

    level: str
    measured: str
    advice: str = ""


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
