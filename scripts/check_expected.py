"""Train the quick configs of task_configs/expected.yml, and compare their results with the expected ones.

python scripts/check_expected.py --output_path runs/expected --max_minutes 5
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rl4dialog.core.errors import RL4DialogError
from rl4dialog.experiments.expected import check_expected

EXPECTED = Path(__file__).parents[1] / "task_configs" / "expected.yml"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--expected", type=Path, default=EXPECTED, help="file with the expected results")
    parser.add_argument("--output_path", type=Path, default=Path("runs/expected"), help="folder for the runs")
    parser.add_argument("--max_minutes", type=float, default=5, help="leave out configs that take longer (default: 5)")
    args = parser.parse_args()
    try:
        return check_expected(args.expected, args.output_path.expanduser().absolute(), args.max_minutes)
    except RL4DialogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
