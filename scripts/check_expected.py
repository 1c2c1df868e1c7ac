"""Train the quick configs of task_configs/expected.yml, and compare their results with the expected ones.

python scripts/check_expected.py --output_path runs/expected --max_minutes 5
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import script
from pydantic import Field, TypeAdapter, ValidationError
from rich.table import Table
from rich.text import Text

from rl4dialog.core.config_blocks import Block
from rl4dialog.core.console import Console
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.runs.run_folder import is_complete, read_result
from rl4dialog.runs.summary import format_number, table_style
from rl4dialog.training.own_process import RESUMED, run_command, train_arguments

EXPECTED = Path(__file__).parents[1] / "task_configs" / "expected.yml"


class Expectation(Block):
    """What a config reaches."""

    minutes: float = Field(gt=0)
    """Time of a run on two cores."""
    needs: str | None = None
    """Folder with files of others, relative to the working directory; without it, the config is left out."""
    metrics: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(min_length=1)
    """Test metrics after training: value and tolerance by key."""


@dataclass(frozen=True)
class Check:
    """A measured metric beside the expected one; ``measured`` is ``None`` if the run failed or lacks the metric."""

    config: str
    key: str
    expected: float
    tolerance: float
    measured: float | None

    @property
    def is_met(self) -> bool:
        """Whether the metric is within the tolerance."""
        return self.measured is not None and abs(self.measured - self.expected) <= self.tolerance


def load_expected(path: Path) -> dict[str, Expectation]:
    """Read expectations by config, whose paths are relative to the file."""
    try:
        expected = TypeAdapter(dict[str, Expectation]).validate_python(load_yaml(path))
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
    for name in expected:
        if not (path.parent / name).is_file():
            raise ConfigError(f"{path}: there is no config {path.parent / name}")
    return expected


def check_expected(path: Path, output: Path, max_minutes: float) -> int:
    """Train the quick configs of a file, and compare their results; returns 0 if all are within their tolerance.

    Runs that are complete in the output folder are not repeated. Configs whose files are missing are left out, which a
    line says.
    """
    quick = {name: each for name, each in load_expected(path).items() if each.minutes <= max_minutes}
    if not quick:
        raise DataError(f"no config in {path} takes at most {max_minutes:g} minutes")
    checks = []
    for name, expectation in quick.items():
        if expectation.needs is not None and not Path(expectation.needs).is_dir():
            print(f"left out: {name}, because there is no folder {expectation.needs}")
            continue
        run = output / name.removesuffix(".yml").replace("/", "_")
        code = run_command(train_arguments(path.parent / name, run, *RESUMED))
        after = read_result(run)["test"]["after"] if not code and is_complete(run) else {}
        checks += [
            Check(name, key, value, tolerance, after.get(key))
            for key, (value, tolerance) in expectation.metrics.items()
        ]
    print_checks(checks)
    return 0 if all(check.is_met for check in checks) else 1


def print_checks(checks: list[Check], console: Console | None = None) -> None:
    """Print expected and measured metrics."""
    console = console or Console()
    table = Table("config", "metric", "expected", "measured", "", box=table_style(console), pad_edge=False)
    for check in checks:
        expected = f"{format_number(check.expected)} +- {format_number(check.tolerance)}"
        row = (check.config, check.key, expected, format_number(check.measured), "ok" if check.is_met else "DIFFERENT")
        table.add_row(*map(Text, row))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--expected", type=Path, default=EXPECTED, help="file with the expected results")
    parser.add_argument("--output_path", type=Path, default=Path("runs/expected"), help="folder for the runs")
    parser.add_argument("--max_minutes", type=float, default=5, help="leave out configs that take longer (default: 5)")
    args = parser.parse_args()
    return check_expected(args.expected, args.output_path.expanduser().absolute(), args.max_minutes)


if __name__ == "__main__":
    script.run(main)
