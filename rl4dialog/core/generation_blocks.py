"""The ``generation_kwargs`` blocks of a config: which one holds for what, and where replies end by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl4dialog.core.types import is_whole_number

if TYPE_CHECKING:
    from rl4dialog.core.config import RunConfig

DEFAULT_REPLY_LENGTH = 32
"""Tokens that the evaluations of a run without ``env`` generate where nothing says how many."""


@dataclass(frozen=True)
class GenerationBlock:
    """One of the blocks.

    Attributes:
        where: Its path in the config.
        kwargs: What it says; empty if it is not there.
    """

    where: str
    kwargs: Mapping[str, Any]

    def count(self, name: str) -> int | None:
        """A number of tokens; what is none is refused with its key where the whole block is checked."""
        value = self.kwargs.get(name)
        return value if is_whole_number(value, at_least=1) else None


def generation_blocks(config: RunConfig) -> list[GenerationBlock]:
    """That of the evaluations, and that of the algorithm; the first one that says anything is the evaluations'."""
    evaluation = config.train_evaluation.generation_kwargs
    return [GenerationBlock("train_evaluation.generation_kwargs", evaluation or {}), config.own_generation_block]


def evaluation_block(config: RunConfig) -> GenerationBlock:
    """By which evaluations decode."""
    of_evaluation, of_algorithm = generation_blocks(config)
    return of_evaluation if of_evaluation.kwargs else of_algorithm


def reply_limit(config: RunConfig) -> int:
    """Tokens after which replies end, in evaluations as in rollouts."""
    if config.env is None:
        return evaluation_reply_limit(config) or DEFAULT_REPLY_LENGTH
    longest = config.env.args.max_episode_length
    return min(generation_blocks(config)[-1].count("max_new_tokens") or longest, longest)


def evaluation_reply_limit(config: RunConfig) -> int | None:
    """Tokens after which replies end by what is said of evaluations; ``None`` where nothing is."""
    block = evaluation_block(config)
    if limit := block.count("max_new_tokens"):
        return limit
    total = block.count("max_length") if config.is_encoder_decoder else None
    return None if total is None else max(1, total - 1)  # which counts an encoder-decoder's start token too
