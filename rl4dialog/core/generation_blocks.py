"""The ``generation_kwargs`` blocks of a config: where each one applies, and the reply lengths that they set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl4dialog.core.types import is_whole_number

if TYPE_CHECKING:
    from rl4dialog.core.config import TextConfig

DEFAULT_REPLY_LENGTH = 32
"""Maximum number of tokens per evaluation reply for a run without ``env``, if the config sets none."""


@dataclass(frozen=True)
class GenerationBlock:
    """A ``generation_kwargs`` block at a path of the config; empty if it is missing."""

    where: str
    kwargs: Mapping[str, Any]

    def count(self, name: str) -> int | None:
        """A number of tokens, or ``None``; the check of the whole block reports invalid values."""
        value = self.kwargs.get(name)
        return value if is_whole_number(value, at_least=1) else None


def generation_blocks(config: TextConfig) -> list[GenerationBlock]:
    """Return the evaluations' block and the algorithm's; evaluations use the first non-empty one."""
    evaluation = config.train_evaluation.generation_kwargs
    return [GenerationBlock("train_evaluation.generation_kwargs", evaluation or {}), config.own_generation_block]


def evaluation_block(config: TextConfig) -> GenerationBlock:
    """Return the block that evaluations use."""
    of_evaluation, of_algorithm = generation_blocks(config)
    return of_evaluation if of_evaluation.kwargs else of_algorithm


def reply_limit(config: TextConfig) -> int:
    """Maximum reply length in tokens, in evaluations and rollouts."""
    if config.env is None:
        return evaluation_reply_limit(config) or DEFAULT_REPLY_LENGTH
    longest = config.env.args.max_episode_length
    return min(generation_blocks(config)[-1].count("max_new_tokens") or longest, longest)


def evaluation_reply_limit(config: TextConfig) -> int | None:
    """Maximum reply length in tokens set for evaluations; ``None`` if there is none."""
    block = evaluation_block(config)
    if limit := block.count("max_new_tokens"):
        return limit
    total = block.count("max_length") if config.is_encoder_decoder else None
    return None if total is None else max(1, total - 1)  # max_length includes an encoder-decoder's start token
