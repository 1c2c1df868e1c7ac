"""Groups of conversations about one prompt, of which those with equal rewards can be left out."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rl4dialog.functional.rounding import is_constant
from rl4dialog.rollouts.conversations import EndedConversation

ConstantGroups = Literal["keep", "drop", "resample"]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroupSettings:
    """How conversations are grouped.

    Attributes:
        size: Number of consecutive environments that answer the same prompts.
        constant: Groups with equal task rewards: ``keep`` them, ``drop`` them, or ``resample``: do not count their
            tokens either, so that further groups are collected instead (dynamic sampling of DAPO; Yu et al. 2025, arXiv
            2503.14476).
        max_resampling: ``resample`` ends when the constant groups hold this many times the tokens of an iteration.
    """

    size: int = 1
    constant: ConstantGroups = "keep"
    max_resampling: int = 3


class Groups:
    """Decides which conversations of a rollout are trained on.

    Args:
        settings: The settings.

    Attributes:
        n_tokens: Number of agent tokens that count towards an iteration.
        found_constant: For each complete group, whether its rewards are constant up to rounding, or fewer than two.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._open: dict[int, list[EndedConversation | None]] = defaultdict(list)
        self._constant: list[EndedConversation] = []
        self._has_chosen = False
        self.n_tokens = 0
        self.found_constant: list[bool] = []

    def add(self, group: int, conversation: EndedConversation | None) -> list[EndedConversation]:
        """Add a conversation that has ended, or ``None`` for one that failed.

        Returns:
            Conversations to train on: this one, or if constant groups are left out, those of a complete group.
        """
        self._open[group].append(conversation)
        chosen = [conversation] if conversation is not None and self._settings.constant == "keep" else []
        if len(self._open[group]) == self._settings.size:
            ended = [member for member in self._open.pop(group) if member is not None]
            self.found_constant.append(_is_constant(ended))
            if self._settings.constant != "keep":
                if not self.found_constant[-1]:
                    chosen = ended
                else:
                    self._constant += ended
                    if self._settings.constant == "drop":
                        self.n_tokens += _n_tokens(ended)
        self._has_chosen |= bool(chosen)
        self.n_tokens += _n_tokens(chosen)
        return chosen

    def is_enough(self, n_tokens: int) -> bool:
        """Whether a rollout of this many tokens has enough conversations."""
        if self.n_tokens >= n_tokens:
            return True
        limit = self._settings.max_resampling * n_tokens
        if self._settings.constant == "resample" and _n_tokens(self._constant) >= limit:
            _logger.warning(
                "%d of %d groups had equal rewards: alg.args.max_resampling = %d ends the rollout with %d of %d tokens",
                sum(self.found_constant),
                len(self.found_constant),
                self._settings.max_resampling,
                self.n_tokens,
                n_tokens,
            )
            return True
        return False

    def rest(self) -> list[EndedConversation]:
        """Conversations to train on if all groups of the rollout are constant: all of them, so that there are some."""
        return [] if self._has_chosen else self._constant


def _is_constant(conversations: list[EndedConversation]) -> bool:
    """Whether the rewards of a group are constant up to rounding, or fewer than two."""
    earned = [np.concatenate(each.earned) for each in conversations]
    return is_constant(np.array([each.sum() for each in earned]), np.array([np.abs(each).sum() for each in earned]))


def _n_tokens(conversations: list[EndedConversation]) -> int:
    return sum(each.n_tokens for each in conversations)
