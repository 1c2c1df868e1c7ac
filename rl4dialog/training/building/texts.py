"""Builds what a run reads: tokenizer, samples and length limits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from transformers import PreTrainedTokenizerBase

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.errors import DataError
from rl4dialog.core.pretrained import has_random_weights
from rl4dialog.core.types import Sample
from rl4dialog.data.mixture import checked_pools
from rl4dialog.data.pool import SPLITS
from rl4dialog.data.return_prefix import ReturnPrefix
from rl4dialog.data.run_data import Data
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.tokenizer import build_tokenizer
from rl4dialog.training.building.lengths import Lengths, run_lengths
from rl4dialog.training.building.pools import build_pool
from rl4dialog.training.building.returns import AskingPool, return_prefix
from rl4dialog.training.building.task import task_world


@dataclass(frozen=True)
class Texts:
    """Tokenizer, samples and length limits of a run."""

    tokenizer: PreTrainedTokenizerBase
    data: Data
    lengths: Lengths


def build_texts(config: TextConfig) -> Texts:
    """Build a run's tokenizer and data, and determine its length limits."""
    tokenizer, data = build_run_tokenizer(config)
    return Texts(tokenizer, data, run_lengths(config, tokenizer, data))


def build_run_tokenizer(config: TextConfig) -> tuple[PreTrainedTokenizerBase, Data]:
    """Build the tokenizer and the data, in the order of their dependency."""
    settings = config.tokenizer.model_dump()
    if has_random_weights(config.tokenizer.model_name):
        data = build_data(config)
        train = data.samples("train")
        corpus = [text for sample in train for text in texts_of(sample)]
        if return_prefix(config) is not None:
            corpus.append(ReturnPrefix.characters)
        return build_tokenizer(**settings, corpus=corpus, turn_marker=data.turn_marker), data
    tokenizer = build_tokenizer(**settings)
    return tokenizer, build_data(config, tokenizer)


def texts_of(sample: Sample) -> list[str]:
    """All texts of a sample that a model reads or writes.

    Later utterances are one text, as most tokenizers have other tokens for the first word of a text.
    """
    continuation = (sample.meta_data or {}).get("continuation", [])
    return [sample.prompt_or_input_text, *sample.references, *([" ".join(["", *continuation])] if continuation else [])]


def build_data(
    config: TextConfig, tokenizer: PreTrainedTokenizerBase | None = None, start: datetime | None = None
) -> Data:
    """Build all three splits of the datapool, with chat templates that read the time ``start``, or this process's.

    Prompts ask for a return if the algorithm conditions on it.
    """
    render_chat = ChatTemplate(tokenizer, start) if tokenizer is not None else None
    world = task_world(config.task)
    pools, prefix = {}, return_prefix(config)
    for split in SPLITS:
        args = {**config.datapool.args, "split": split}
        pool = build_pool(config.datapool.id, args, render_chat=render_chat, world=world)
        if len(pool) == 0:
            raise DataError(f"datapool {config.datapool.id!r} has no samples in split {split!r}{pool.why_empty}")
        pools[split] = pool if prefix is None else AskingPool(pool, prefix)  # type: ignore[abstract]
    return Data(pools, getattr(pools["train"], "end_of_turn", None), world)


def format_args(config: TextConfig) -> dict[str, Any] | None:
    """Arguments with which other datapools of conversations write prompts as the run's does.

    Returns:
        ``format``, ``context_size`` and ``in_conversation``; ``None`` if the run's datapool contains no dialogues.
    """
    id, given = config.datapool.id, config.datapool.args
    while "pools" in given:  # all datapools of a mixture have the same format
        first = checked_pools(given["pools"])[0]
        id, given = first.id, dict(first.args)
    args = {**DataPoolRegistry.defaults(id), **given}
    if args.get("format") is None:
        return None
    has_turns = config.env is not None and config.env.args.max_turns > 1
    # Samples of whole dialogues, which supervised training learns in the markup of conversations.
    in_conversation = has_turns or args.get("samples") == "dialogues" or args.get("turns") == "first"
    in_conversation = in_conversation or bool(args.get("in_conversation"))
    return {"format": args["format"], "context_size": args.get("context_size"), "in_conversation": in_conversation}
