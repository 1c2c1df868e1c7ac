"""Runs all checks in order and prints the findings, problems first. An exception fails its check, not the others."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl4dialog.core.errors import RL4DialogError
from rl4dialog.runs.progress import Progress
from rl4dialog.training.doctor import (
    config_checks,
    conversation_checks,
    log_checks,
    machine_checks,
    policy_checks,
    reward_checks,
    text_checks,
)
from rl4dialog.training.doctor.finding import Finding, NotApplicable
from rl4dialog.training.doctor.subject import Subject

# Predict memory before a model is loaded, which would be counted twice. Training comes last.
CHECKS: dict[str, Callable[[Subject], Finding]] = {
    check.__name__: check
    for check in (
        config_checks.settings,
        text_checks.first_prompt,
        text_checks.prompts,
        text_checks.references,
        text_checks.held_out,
        text_checks.evaluations,
        text_checks.chat_template,
        machine_checks.memory,
        machine_checks.disk,
        policy_checks.weights,
        policy_checks.warm_start,
        text_checks.vocabulary,
        text_checks.padding_token,
        text_checks.end_of_sequence,
        text_checks.reply_ends,
        policy_checks.dropout_off,
        policy_checks.padding_invariance,
        policy_checks.sampler_agreement,
        policy_checks.kl_at_start,
        conversation_checks.conversation,
        log_checks.logged_conversations,
        log_checks.logged_rewards,
        log_checks.prior_likelihood,
        reward_checks.reward,
        policy_checks.determinism,
        policy_checks.learning_rate_zero,
        reward_checks.metrics,
    )
}

_LINE_EVERY_S = 10.0
_ORDER = ("fail", "warn", "pass", "skip")
_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def examine(subject: Subject, show_tracebacks: bool = False) -> dict[str, Finding]:
    """Run every check, then close the subject.

    Args:
        subject: The run to examine.
        show_tracebacks: Whether to show tracebacks of checks that raise.

    Returns:
        Findings by check name.
    """
    findings: dict[str, Finding] = {}
    raised: dict[Exception, str] = {}  # report an error of a shared component only once
    try:
        with Progress("Doctor", "check", len(CHECKS), line_every_s=_LINE_EVERY_S, stays=False) as progress:
            for name, check in CHECKS.items():
                progress.enter(name)
                try:
                    findings[name] = check(subject)
                except NotApplicable as reason:
                    findings[name] = Finding("skip", str(reason))
                except Exception as error:
                    if show_tracebacks:
                        traceback.print_exc()
                    cause = raised.setdefault(error, name)
                    findings[name] = _failure(error) if cause == name else Finding("skip", f"not run: {cause} failed")
                progress.advance()
    finally:
        subject.close()
    return findings


def print_findings(findings: dict[str, Finding], console: Console | None = None, show_all: bool = False) -> None:
    """Print findings, problems first, and the number of passed checks, which are folded unless ``show_all`` is set."""
    console = console or Console()
    ordered = sorted(findings.items(), key=lambda item: _ORDER.index(item[1].level))
    in_full = [(name, found) for name, found in ordered if show_all or found.level in ("fail", "warn")]
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.MARKDOWN, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("measured", overflow="fold", ratio=1)
    table.add_column("what to do", overflow="fold", ratio=1)
    for name, found in in_full:
        table.add_row(name, Text(found.level, style=_STYLES[found.level]), Text(found.measured), Text(found.advice))
    if in_full:
        console.print(table)
    if not show_all:
        _print_folded(dict(ordered), console)
    levels = [found.level for found in findings.values()]
    console.print(Text(", ".join(f"{levels.count(level)} {level}" for level in _STYLES if level in levels)))


def _print_folded(findings: dict[str, Finding], console: Console) -> None:
    for name, found in findings.items():
        if found.level == "pass":
            line = Text.assemble(("pass  ", _STYLES["pass"]), f"{name}: {' '.join(found.measured.split())}")
            console.print(line, no_wrap=True, overflow="ellipsis")
    if skipped := [name for name, found in findings.items() if found.level == "skip"]:
        console.print(Text(f"skip  {', '.join(skipped)}", style=_STYLES["skip"]))
    if {found.level for found in findings.values()} & {"pass", "skip"}:
        console.print(Text("--all shows passed and skipped checks in full", style="dim"))


def has_failed(findings: Sequence[Finding]) -> bool:
    """Whether any check failed."""
    return any(found.level == "fail" for found in findings)


def _failure(error: Exception) -> Finding:
    if isinstance(error, RL4DialogError):
        return Finding("fail", str(error), "see the message")
    return Finding("fail", f"{type(error).__name__}: {error}", "--debug shows the traceback")
