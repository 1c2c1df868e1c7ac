"""Builds the datapool of a run."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.errors import DataError
from rl4dialog.data.pool import SPLITS
from rl4dialog.data.run_data import Data
from rl4dialog.text.chat_template import ChatTemplate


def build_data(config: TextConfig, tokenizer: PreTrainedTokenizerBase | None = None) -> Data:
    """Build all three splits of the datapool.

    Raises:
        DataError: If a file is missing or malformed, or a split is empty.
    """
    render_chat = ChatTemplate(tokenizer) if tokenizer is not None else None
    pools = {}
    for split in SPLITS:
        pool = DataPoolRegistry.get(
            config.datapool.id, {**config.datapool.args, "split": split}, render_chat=render_chat
        )
        if len(pool) == 0:
            raise DataError(f"datapool {config.datapool.id!r} has no samples in split {split!r}")
        pools[split] = pool
    return Data(pools, getattr(pools["train"], "end_of_turn", None))
