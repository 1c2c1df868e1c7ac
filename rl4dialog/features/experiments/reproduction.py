"""Repeats a run and compares the results: weights bit by bit, log lines, metrics and predictions by value."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from rl4dialog.core.config import parse_config
from rl4dialog.core.console import Console
from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.files import write_json
from rl4dialog.core.plugins import absolute_import
from rl4dialog.core.run_format import config_of
from rl4dialog.features.experiments.identity import Finding, compare_runs
from rl4dialog.runs.provenance import config_folder, differences, read_provenance, recorded_start
from rl4dialog.runs.run_folder import CONFIG_FILE, is_unused, read_result
from rl4dialog.runs.summary import table_style
from rl4dialog.runs.trust import refuse_code
from rl4dialog.text.chat_template import START_VARIABLE
from rl4dialog.training.checkpoint import changes
from rl4dialog.training.own_process import RESUMED, ended, run_command, say_failed, train_arguments

_MAX_SHOWN = 60


def reproduce(run: Path, output: Path | None = None, overwrite: bool = False, trust: bool = False) -> int:
    """Repeat a complete run from its config, in the same folder and with as many threads, and compare the results.

    The new run is by default beside the original, with the suffix ``_reproduced``; an interrupted one is resumed.
    Returns the exit code: 0 if both runs are identical, 1 if they differ, otherwise that of the failed run.
    """
    run = run.expanduser().absolute()
    read_result(run)
    config, recorded, start = config_of(run / CONFIG_FILE), read_provenance(run), recorded_start(run)
    place = Path(str(recorded.get("working_directory", "."))).absolute()
    is_elsewhere = place.is_dir() and place != Path.cwd()
    if not trust:
        # Python imports modules from the working directory first.
        others = [f"modules in its working directory {place}"] if is_elsewhere else []
        refuse_code(config, run, trains=True, others=others)
    output = (output or run.with_name(f"{run.name}_reproduced")).expanduser().absolute()
    if output == run:
        raise RunFolderError(f"{run} cannot be reproduced in its own folder; choose another --output_path")
    # The config moves to another folder, so relative imports are made absolute.
    config["imports"] = [absolute_import(name, config_folder(run)) for name in config.get("imports", [])]
    if not (overwrite or is_unused(output) or _has_config(output, config)):
        raise RunFolderError(f"{output} already exists; pass --overwrite to replace it, or another --output_path")
    threads = recorded.get("hardware", {}).get("torch_threads")
    environment = {"OMP_NUM_THREADS": threads, START_VARIABLE: start and start.isoformat()}
    with tempfile.TemporaryDirectory(prefix="rl4dialog-") as scratch:
        path = Path(scratch) / CONFIG_FILE
        write_json(path, config)
        code = run_command(
            train_arguments(path, output, *(["--overwrite"] if overwrite and output.exists() else RESUMED)),
            place if is_elsewhere else None,
            {name: str(value) for name, value in environment.items() if value},
        )
    if code:
        return say_failed({f"{output} ({ended(code)})": code}, 1)
    findings = compare_runs(run, output)
    causes = differences(recorded, read_provenance(output))
    print_comparison(run, output, findings, causes)
    return int(any(finding.where for finding in findings))


def _has_config(output: Path, config: Mapping[str, Any]) -> bool:
    """Whether a folder has a run of a config, as one that was interrupted."""
    path = output / CONFIG_FILE
    return path.is_file() and not changes(*(parse_config(c, str(path)).model_dump() for c in (config_of(path), config)))


def print_comparison(
    run: Path, output: Path, findings: Sequence[Finding], causes: Sequence[tuple[str, Any, Any]]
) -> None:
    """Print which files are identical, the first difference of the others, and possible causes."""
    console = Console()
    rows = [
        (each.file, each.where or "identical", *((each.original, each.reproduced) if each.where else ("", "")))
        for each in findings
    ]
    console.print()
    console.print(Text(f"{run.name} and {output.name}", style="bold"))
    console.print(_table(console, ("file", "first difference", "original", "reproduced"), rows))
    n_different = sum(finding.where is not None for finding in findings)
    console.print()
    same = f"Identical: all {len(findings)} files, except for times and memory."
    console.print(Text(f"{n_different} of {len(findings)} files differ." if n_different else same, style="bold"))
    if causes:
        console.print("Other differences, as possible causes:" if n_different else "Other differences:")
        console.print(_table(console, ("provenance", "original", "reproduced"), causes))
    elif n_different:
        console.print(Text("The provenance shows no difference in code, data or machine."))
    console.print(Text(f"Run folder: {output}"), soft_wrap=True)


def _table(console: Console, titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(box=table_style(console), pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        texts = [value if isinstance(value, str) else repr(value) for value in row]
        table.add_row(*(Text(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + " ...") for text in texts))
    return table
