"""What the scripts share: they find ``benchmarks/``, which is not installed, and tell errors without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from rl4dialog.core.errors import RL4DialogError

sys.path.insert(0, str(Path(__file__).parents[1]))


def run(main: Callable[[], int | None]) -> None:
    """Run a script, and exit with its code, or with 2 after an error of the user."""
    try:
        sys.exit(main())
    except RL4DialogError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
