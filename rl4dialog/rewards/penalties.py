"""Penalties for the form of a reply: 0 if it is fine, otherwise negative."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.arguments import Count, NonNegativeInt
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import RewardFunction, SentenceRewardFunction
from rl4dialog.metrics.diversity import repetition
from rl4dialog.text.words import split_words


class LengthPenalty(SentenceRewardFunction):
    """Penalty for each word (split at whitespace) below or above the allowed length.

    Args:
        max_length: Maximum number of words without penalty; unlimited by default.
        min_length: Minimum number of words without penalty.
        per_word: Penalty per missing or excess word.

    Raises:
        ConfigError: If neither length is given, or min_length is greater than max_length.
    """

    def __init__(
        self, max_length: NonNegativeInt | None = None, min_length: NonNegativeInt = 0, per_word: float = 0.1
    ) -> None:
        if max_length is None and min_length == 0:
            raise ConfigError("reward 'length_penalty' needs max_length or min_length, in words")
        if max_length is not None and min_length > max_length:
            raise ConfigError(
                f"reward 'length_penalty': min_length ({min_length}) is greater than max_length ({max_length})"
            )
        self._min_length, self._max_length, self._per_word = min_length, max_length, per_word

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        n_words = len(gen_text.split())
        too_many = max(n_words - self._max_length, 0) if self._max_length is not None else 0
        return -self._per_word * max(self._min_length - n_words, too_many)


class RepetitionPenalty(SentenceRewardFunction):
    """Negative share of a reply's n-grams that repeat earlier ones (Welleck et al. 2020, arXiv 1908.04319).

    Args:
        n: Words per n-gram; with 4, it is the negative of the metric ``diversity_metrics/seq-rep-4``.
    """

    def __init__(self, n: Count = 4) -> None:
        self._n = n

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return -repetition([word.lower() for word in split_words(gen_text)], self._n)


class MissingEosPenalty(RewardFunction):
    """Penalty if the episode's last reply was cut at the length limit instead of ending with an end token.

    Args:
        penalty: The penalty, subtracted from the reward.
    """

    needs_tokens = True

    def __init__(self, penalty: float = 1.0) -> None:
        self._penalty = penalty

    def __call__(
        self,
        prev_observation: Any,
        action: int,
        current_observation: Any,
        done: bool,
        meta_info: dict[str, Any] | None = None,
    ) -> float:
        if not done:
            return 0.0
        end_of_turn = getattr(current_observation, "end_of_turn", None)
        if end_of_turn is None:
            raise ConfigError(
                "reward 'missing_eos_penalty' needs a reply's tokens, which are missing here; use it as reward_fn "
                "or as a part of a composite reward_fn"
            )
        return 0.0 if end_of_turn.is_end(current_observation.context_ids) else -self._penalty
