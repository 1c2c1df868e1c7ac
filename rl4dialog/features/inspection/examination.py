"""Runs all checks in order and prints the findings, problems first. An exception fails its check, not the others."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from rich import box
from rich.table import Table
from rich.text import Text

from rl4dialog.core.console import Console
from rl4dialog.core.errors import RL4DialogError
from rl4dialog.core.registry import import_object
from rl4dialog.features.inspection import data_checks as of_data
from rl4dialog.features.inspection import model_checks as of_model
from rl4dialog.features.inspection.subject import Subject
from rl4dialog.runs.progress import Progress
from rl4dialog.training.findings import Finding, NotApplicable

# Predict memory before a model is loaded, which would be counted twice. Training comes last.
CHECKS: dict[str, Callable[[Subject], Finding]] = {
    check.__name__: check
    for check in (
        *(of_data.settings, of_data.first_prompt, of_data.prompts, of_data.references, of_data.held_out),
        *(of_data.evaluations, of_data.chat_template, of_model.memory, of_model.disk, of_model.warm_start),
        *(of_data.vocabulary, of_data.padding_token, of_data.end_of_sequence, of_data.reply_ends),
        *(of_model.dropout_off, of_model.padding_invariance, of_model.sampler_agreement, of_model.kl_at_start),
        *(of_data.conversation, of_model.reward, of_model.determinism, of_model.learning_rate_zero),
        *(of_model.metrics, of_model.trivial_replies),
    )
}

_LINE_EVERY_S = 10.0
_ORDER = ("fail", "warn", "pass", "skip")
_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def examine(subject: Subject, show_tracebacks: bool = False) -> dict[str, Finding]:
    """Run every check, those of the kind of run last, then close the subject."""
    own: list[Callable[[Subject], Finding]] = [import_object(name) for name in subject.run_config.checks]
    checks = {**CHECKS, **{check.__name__: check for check in own}}
    findings: dict[str, Finding] = {}
    raised: dict[Exception, str] = {}  # report an error of a shared component only once
    try:
        with Progress("Doctor", "check", len(checks), line_every_s=_LINE_EVERY_S, stays=False) as progress:
            for name, check in checks.items():
                progress.enter(name)
                try:
                    findings[name] = check(subject)
                except NotApplicable as reason:
                    findings[name] = Finding("skip", str(reason))
                except Exception as error:
                    if show_tracebacks:
                        traceback.print_exc()
                    is_known = isinstance(error, RL4DialogError)
                    measured = str(error) if is_known else f"{type(error).__name__}: {error}"
                    advice, cause = "see the message", raised.setdefault(error, name)
                    failure = Finding("fail", measured, advice if is_known else "--debug shows the traceback")
                    findings[name] = failure if cause == name else Finding("skip", f"not run: {cause} failed")
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
    for name in ("check", "result"):
        table.add_column(name, no_wrap=True)
    for name in ("measured", "what to do"):
        table.add_column(name, overflow="fold", ratio=1)
    for name, found in in_full:
        table.add_row(name, Text(found.level, style=_STYLES[found.level]), Text(found.measured), Text(found.advice))
    if in_full:
        console.print(table)
    if not show_all:
        if (prompt := findings.get("first_prompt")) is not None and prompt.level == "pass":
            console.print(Text.assemble(("A prompt as the model reads it:\n", "dim"), prompt.measured))
        for name, found in ordered:
            if found.level == "pass":
                line = Text.assemble(("pass  ", _STYLES["pass"]), f"{name}: {' '.join(found.measured.split())}")
                console.print(line, no_wrap=True, overflow="ellipsis")
        if skipped := [name for name, found in ordered if found.level == "skip"]:
            console.print(Text(f"skip  {', '.join(skipped)}", style=_STYLES["skip"]))
        if len(in_full) < len(ordered):
            console.print(Text("--all shows passed and skipped checks in full", style="dim"))
    levels = [found.level for found in findings.values()]
    console.print(Text(", ".join(f"{levels.count(level)} {level}" for level in _STYLES if level in levels)))
