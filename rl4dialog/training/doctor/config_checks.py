"""Check of the settings, with the table that ``--dry_run`` and the start of a run read."""

from __future__ import annotations

from rl4dialog.training.building.conditions import conditions_met
from rl4dialog.training.doctor.finding import Finding
from rl4dialog.training.doctor.subject import Subject


def settings(subject: Subject) -> Finding:
    """Check that every setting can do what it is for, and show the notes about the config."""
    met = conditions_met(subject.run_config)
    if refused := [message for message, level in met.items() if level == "refuse"]:
        return Finding("fail", "; ".join(refused), "change these settings; `rl4dialog train` refuses the run")
    if without_effect := [message for message, level in met.items() if level == "warn"]:
        return Finding("warn", "; ".join(without_effect), "change these settings, or remove them")
    return Finding("pass", "; ".join(subject.run_config.warnings) or "no setting without effect was found")
