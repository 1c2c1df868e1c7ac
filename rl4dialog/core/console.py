"""The console on which all tables and summaries are printed, with texts of runs, models and data in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from rl4dialog.core.untrusted import visible


class Console(rich.console.Console):
    """A console that writes no control characters but its own."""

    def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
