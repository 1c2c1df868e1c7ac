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
from rl4dialog.training.doctor import data_checks, model_checks
from rl4dialog.training.doctor.subject import Finding, NotApplicable, Subject

# Predict memory before a model is loaded, which would be counted twice. Training comes last.
CHECKS: dict[str, Callable[[Subject], Finding]] = {
    check.__name__: check
    for check in (
        data_checks.settings,
        data_checks.first_prompt,
        data_checks.prompts,
        data_checks.references,
        data_checks.held_out,
        data_checks.evaluations,
        data_checks.chat_template,
        model_checks.memory,
        model_checks.disk,
        model_checks.weights,
        model_checks.warm_start,
        data_checks.vocabulary,
        data_checks.padding_token,
        data_checks.end_of_sequence,
        data_checks.reply_ends,
        model_checks.dropout_off,
        model_checks.padding_invariance,
        model_checks.sampler_agreement,
        model_checks.kl_at_start,
        data_checks.conversation,
        data_checks.logged_conversations,
        data_checks.logged_rewards,
        data_checks.prior_likelihood,
        model_checks.reward,
        model_checks.determinism,
        model_checks.learning_rate_zero,
        model_checks.metrics,
    )
}

_LINE_EVERY_S = 10.0
_ORDER = ("fail", "warn", "pass", "skip")
_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def examine(subject: Subject, show_tracebacks: bool = False) -> dict[str, Finding]:
    """Run every check, then close the subject."""
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
