"""Execution of a plan: its steps in order, then its runs in parallel processes, each of which can be resumed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl4dialog.core.errors import RunFolderError
from rl4dialog.experiments.own_process import ending_together, run_command, shared_cores, start_command
from rl4dialog.experiments.quality.plan import PlannedRun, QualityPlan, filled
from rl4dialog.training.checkpoint import is_done

RUNS_FOLDER = "runs"
_POLL_S = 1.0


def make_steps(plan: QualityPlan, output: Path) -> None:
    """Run the commands before the runs, except those whose result exists."""
    for name, step in plan.steps.items():
        (creates,) = filled([step.creates], output)
        if Path(creates).exists():
            continue
        print(f"Step {name}", file=sys.stderr, flush=True)
        code = run_command(filled(step.command, output))
        if code:
            raise RunFolderError(f"step {name!r} failed (exit code {code}); run the command again to continue")
        if not Path(creates).exists():
            raise RunFolderError(f"step {name!r} did not create {creates}")


def execute(runs: Sequence[PlannedRun], output: Path, n_jobs: int) -> dict[str, int]:
    """Train all runs that are not complete, in parallel.

    Ctrl-C and SIGTERM reach the runs, which save their state; the same command continues them. The output of each run
    is in ``<name>.log``. If a run fails, the others continue.

    Args:
        runs: The runs, in the order in which they start.
        output: The output folder.
        n_jobs: Number of processes at a time, which share the processor's cores.

    Returns:
        Exit codes of failed runs, by name.

    Raises:
        ConfigError: If a complete run had another config.
        SystemExit: If this process was interrupted.
    """
    waiting = [run for run in runs if not is_done(output / RUNS_FOLDER / run.name, run.config)]
    n_started, failed = len(runs) - len(waiting), {}
    environment = shared_cores(n_jobs)
    running: dict[str, subprocess.Popen[bytes]] = {}
    with ending_together(running.values()):
        while waiting or running:
            while waiting and len(running) < n_jobs:
                run, n_started = waiting.pop(0), n_started + 1
                running[run.name] = _start(run, output, environment)
                print(f"{run.name} ({n_started} of {len(runs)})", file=sys.stderr, flush=True)
            time.sleep(_POLL_S)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if code := running.pop(name).returncode:
                    failed[name] = code
                    log = _log(output, name)
                    print(f"error: {name} failed (exit code {code}), see {log}", file=sys.stderr, flush=True)
    return failed


def _start(run: PlannedRun, output: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    arguments = ["train", "--config_path", str(run.config_path), "--resume", "auto"]
    arguments += [text for override in run.overrides for text in ("--set", override)]
    arguments += ["--base_path_to_store_results", str(output)]
    arguments += ["--project_name", RUNS_FOLDER, "--experiment_name", run.name]
    return start_command(arguments, environment=environment, output=_log(output, run.name))


def _log(output: Path, name: str) -> Path:
    return output / f"{name}.log"
