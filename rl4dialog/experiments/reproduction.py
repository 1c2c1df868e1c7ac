"""Repeats a run and checks that the results are identical."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.plugins import absolute_import
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.experiments.own_process import run_command
from rl4dialog.runs.comparison import Finding, compare_runs
from rl4dialog.runs.provenance import config_folder, differences, read_provenance, recorded_start
from rl4dialog.runs.results import read_result
from rl4dialog.runs.run_folder import CONFIG_FILE, write_json
from rl4dialog.runs.summary import table_style
from rl4dialog.runs.trust import refuse_code
from rl4dialog.text.chat_template import START_VARIABLE

_MAX_SHOWN = 60


def reproduce(run: Path, output: Path | None = None, overwrite: bool = False, trust: bool = False) -> int:
    """Repeat a run from its resolved config, in the same folder and with as many threads, and compare the results.

    Args:
        run: A complete run.
        output: Folder of the new run; by default that of the original with the suffix ``_reproduced``.
        overwrite: Replace an existing run in the output folder.
        trust: Whether to allow the code that the run's config executes, and the addresses and files that it names.

    Returns:
        Exit code: 0 if both runs are identical, 1 if they differ, otherwise that of the failed run.
    """
    run = run.expanduser().absolute()
    read_result(run)
    config = load_yaml(run / CONFIG_FILE)
    if not trust:
        # Python imports modules from the working directory first.
        place = _working_directory(run)
        others = [] if place is None else [f"modules in its working directory {place}"]
        refuse_code(config, run, trains=True, others=others)
    output = (output or run.with_name(f"{run.name}_reproduced")).expanduser().absolute()
    if output == run:
        raise RunFolderError(f"{run} cannot be reproduced in its own folder; choose another --output_path")
    if output.exists() and not overwrite:
        raise RunFolderError(f"{output} already exists; pass --overwrite to replace it, or another --output_path")
    code = _run_again(run, config, output, overwrite)
    if code:
        return code
    findings = compare_runs(run, output)
    causes = differences(read_provenance(run), read_provenance(output))
    print_comparison(run, output, findings, causes)
    return int(any(finding.where for finding in findings))


def _run_again(run: Path, config: dict[str, Any], output: Path, overwrite: bool) -> int:
    recorded = read_provenance(run)
    # The config moves to another folder, so relative imports are made absolute.
    config["imports"] = [absolute_import(name, config_folder(run)) for name in config.get("imports", [])]
    threads, start = recorded.get("hardware", {}).get("torch_threads"), recorded_start(run)
    environment = {"OMP_NUM_THREADS": threads, START_VARIABLE: start and start.isoformat()}
    with tempfile.TemporaryDirectory(prefix="rl4dialog-") as scratch:
        path = Path(scratch) / CONFIG_FILE
        write_json(path, config)
        names = {
            "--config_path": path,
            "--base_path_to_store_results": output.parent.parent,
            "--project_name": output.parent.name,
            "--experiment_name": output.name,
        }
        arguments = [str(text) for pair in names.items() for text in pair]
        return run_command(
            ["train", *arguments, *(["--overwrite"] if overwrite and output.exists() else [])],
            _working_directory(run),
            {name: str(value) for name, value in environment.items() if value},
        )


def _working_directory(run: Path) -> Path | None:
    """The folder in which the run was trained, if it exists and is another one than this process is in."""
    folder = Path(str(read_provenance(run).get("working_directory", "."))).absolute()
    return folder if folder.is_dir() and folder != Path.cwd() else None


def print_comparison(
    run: Path,
    output: Path,
    findings: Sequence[Finding],
    causes: Sequence[tuple[str, Any, Any]],
    console: Console | None = None,
) -> None:
    """Print which files are identical, the first difference of the others, and possible causes."""
    console = console or Console()
    style = table_style(console)
    table = Table(box=style, pad_edge=False)
    table.add_column("file", overflow="fold")
    table.add_column("first difference", overflow="fold")
    for name in ("original", "reproduced"):
        table.add_column(name, overflow="fold", justify="right")
    for finding in findings:
        if finding.where is None:
            table.add_row(Text(finding.file), Text("identical"), "", "")
        else:
            values = (Text(_shown(value)) for value in (finding.original, finding.reproduced))
            table.add_row(Text(finding.file), Text(finding.where), *values)
    console.print()
    console.print(Text(f"{run.name} and {output.name}", style="bold"))
    console.print(table)
    n_different = sum(finding.where is not None for finding in findings)
    console.print()
    if n_different:
        console.print(Text(f"{n_different} of {len(findings)} files differ.", style="bold"))
    else:
        console.print(Text(f"Identical: all {len(findings)} files, except for times and memory.", style="bold"))
    if causes:
        why = "Other differences, as possible causes:" if n_different else "Other differences:"
        console.print(Text(why))
        origins = Table(box=style, pad_edge=False)
        for name in ("provenance", "original", "reproduced"):
            origins.add_column(name, overflow="fold")
        for key, one, other in causes:
            origins.add_row(Text(key), Text(_shown(one)), Text(_shown(other)))
        console.print(origins)
    elif n_different:
        console.print(Text("The provenance shows no difference in code, data or machine."))
    console.print(Text(f"Run folder: {output}"), soft_wrap=True)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + " ..."
