"""What an examination finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        level: ``pass``, ``warn``, ``fail``, or ``skip`` where there was nothing to check.
        measured: What was seen.
        advice: What to do about it; empty if nothing.
    """

    level: str
    measured: str
    advice: str = ""


class NotApplicable(Exception):
    """A run has no such part."""


def judged(
    value: float, measured: str, advice: str, warn_above: float | None = None, fail_above: float | None = None
) -> Finding:
    """A finding by a number's size; NaN fails, or warns where nothing can fail."""
    if fail_above is not None and not value <= fail_above:
        return Finding("fail", measured, advice)
    if warn_above is not None and not value <= warn_above:
        return Finding("warn", measured, advice)
    return Finding("pass", measured)
