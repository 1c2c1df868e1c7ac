"""Check that every config of a folder runs here, with tiny models and data; prints one line per config.

python scripts/check_configs.py RL4LMs/scripts/training/task_configs --notes
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from rl4dialog.cli import main_of
from rl4dialog.core.errors import RL4DialogError
from rl4dialog.experiments.config_check import ConfigReport, check_configs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="folder of .yml files")
    parser.add_argument("--notes", action="store_true", help="also print the notes from loading each config")
    args = parser.parse_args()

    def print_report(report: ConfigReport) -> None:
        print(report, flush=True)
        for note in report.notes if args.notes else ():
            print(f"    {note}", flush=True)

    try:
        reports = check_configs(args.folder, partial(main_of, "train"), print_report)
    except RL4DialogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    n_fine = sum(not report.failed for report in reports)
    print(f"{n_fine} of {len(reports)} configs pass --dry_run and run two iterations")
    return 0 if n_fine == len(reports) else 1


if __name__ == "__main__":
    sys.exit(main())
