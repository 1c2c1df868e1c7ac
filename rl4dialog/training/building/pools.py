"""Datapools within other datapools (`mixture`)."""

from __future__ import annotations

from typing import Any

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.data.pool import TextGenPool


def build_pool(id: str, args: dict[str, Any], **offered: Any) -> TextGenPool:
    """Build a datapool.

    Args:
        id: Its id.
        args: Its arguments from the config, with ``split``.
        offered: What the run offers, such as ``render_chat``; passed to pools that take it.
    """
    pool: TextGenPool = DataPoolRegistry.get(id, args, **offered, build_pool=build_pool)
    return pool
