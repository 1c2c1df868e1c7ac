"""Scores by plain rules: length, numbers, dates, keywords, patterns and penalties for the form of a reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import regex
from pydantic import Field

from rl4dialog.core.arguments import Count, NonNegativeInt, Pattern, matches_all
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.protocols import RewardFunction, SentenceRewardFunction
from rl4dialog.core.time_limit import matched
from rl4dialog.scores.adapters import MetricReward
from rl4dialog.scores.base import Batch, ReplyMetric
from rl4dialog.scores.diversity import repetition
from rl4dialog.text.words import split_words

Words = Annotated[Sequence[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class LengthMetric(ReplyMetric):
    """Words per text, split at whitespace."""

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        return {"length/words": [float(len(text.split())) for text in batch.gen_texts]}


class DatesMetric(ReplyMetric):
    """Share of texts that contain a date in the format ``2024-12-31``, valid or not."""

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        return {"synthetic/dates_in_text": [float(_DATE.search(text) is not None) for text in batch.gen_texts]}


class SentencesWithDatesReward(MetricReward, metric=DatesMetric):
    """1 for a reply that contains a date such as 2024-12-31, otherwise 0."""


def increasing_numbers_score(text: str, min_tokens: Count) -> float:
    """Length of the increasing sequence at the start of the text, divided by the number of words or ``min_tokens``.

    The divisor is the larger of the two. Words are split at whitespace; the sequence ends at the first word that is not
    a number, or not greater than the previous one. RL4LMs instead skips words that are not numbers, so that "x 1 2" has
    a sequence of length 2, and requires half of ``min_tokens``.
    """
    words = text.split()
    n_increasing, previous = 0, float("-inf")
    for word in words:
        try:
            number = float(word)
        except ValueError:
            break
        if not number > previous:
            break
        n_increasing, previous = n_increasing + 1, number
    return n_increasing / max(len(words), min_tokens, 1)


@dataclass(eq=False)
class IncreasingNumbersMetric(ReplyMetric):
    """Share of a text that is an increasing sequence of numbers from its start (``increasing_numbers_score``).

    Args:
        min_tokens: Number of words required for a full score.
    """

    min_tokens: Count

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        scores = [increasing_numbers_score(text, self.min_tokens) for text in batch.gen_texts]
        return {"synthetic/increasing_numbers_in_text": scores}


class IncreasingNumbersReward(MetricReward, metric=IncreasingNumbersMetric):
    """Share of the reply that is an increasing sequence of numbers."""


class KeywordReward(SentenceRewardFunction):
    """Share of keywords that the reply contains as whole words.

    Args:
        keywords: Words or phrases.
        meta_key: Key of the meta data with each sample's keywords, instead of ``keywords``: ``concepts`` in commongen.
        match: ``share`` pays the share of keywords that are found; ``any`` and ``all`` pay 1 or 0.
        case_sensitive: Whether matching is case-sensitive.
    """

    def __init__(
        self,
        keywords: Words | None = None,
        meta_key: str | None = None,
        match: Literal["share", "any", "all"] = "share",
        case_sensitive: bool = False,
    ) -> None:
        if (keywords is None) == (meta_key is None):
            raise ConfigError("reward 'keyword' needs either keywords, a list of words, or meta_key")
        self._keywords, self._meta_key, self._match = keywords, meta_key, match
        self._flags = 0 if case_sensitive else re.IGNORECASE

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        keywords = self._keywords if self._meta_key is None else meta_info.get(self._meta_key)
        if not (isinstance(keywords, list | tuple) and keywords and all(isinstance(k, str) and k for k in keywords)):
            where = f"meta_data[{self._meta_key!r}]"
            raise DataError(f"reward 'keyword' needs samples with a list of words in {where}, not {keywords!r}")
        # Not \b, which does not match next to a keyword with a punctuation mark at its edge, such as "C++".
        patterns = (rf"(?<!\w){re.escape(keyword)}(?!\w)" for keyword in keywords)
        found = [re.search(pattern, gen_text, self._flags) is not None for pattern in patterns]
        if self._match == "share":
            return sum(found) / len(found)
        return float(any(found) if self._match == "any" else all(found))


class RegexReward(SentenceRewardFunction):
    """1 for a reply that matches a regular expression, otherwise 0.

    Args:
        pattern: Regular expression in Python's ``re`` syntax.
        full: Whether the whole reply must match; by default a match anywhere is enough.
    """

    def __init__(self, pattern: Pattern, full: bool = False) -> None:
        self._match = regex.fullmatch if full else regex.search
        if matches_all(pattern, 0, "", "a b", match=self._match):
            raise ConfigError(f"reward 'regex': {pattern!r} matches every text, so the reward is always 1")
        self._pattern = pattern

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return float(matched(self._match, self._pattern, gen_text) is not None)


class LengthPenalty(SentenceRewardFunction):
    """Penalty for each word (split at whitespace) below or above the allowed length.

    Args:
        max_length: Maximum number of words without penalty; unlimited by default.
        min_length: Minimum number of words without penalty.
        per_word: Penalty per missing or excess word.
    """

    def __init__(
        self, max_length: NonNegativeInt | None = None, min_length: NonNegativeInt = 0, per_word: float = 0.1
    ) -> None:
        if max_length is None and min_length == 0:
            raise ConfigError("reward 'length_penalty' needs max_length or min_length, in words")
        if max_length is not None and min_length > max_length:
            raise ConfigError(f"reward 'length_penalty': min_length ({min_length}) is above max_length ({max_length})")
        self._min_length, self._max_length, self._per_word = min_length, max_length, per_word

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        n_words = len(gen_text.split())
        too_many = max(n_words - self._max_length, 0) if self._max_length is not None else 0
        return -self._per_word * max(self._min_length - n_words, too_many)


@dataclass(eq=False)
class RepetitionPenalty(SentenceRewardFunction):
    """Negative share of a reply's n-grams that repeat earlier ones (Welleck et al. 2020, arXiv 1908.04319).

    Args:
        n: Words per n-gram; with 4, it is the negative of the metric ``diversity_metrics/seq-rep-4``.
    """

    n: Count = 4

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return -repetition([word.lower() for word in split_words(gen_text)], self.n)


@dataclass(eq=False)
class MissingEosPenalty(RewardFunction):
    """Penalty if the episode's last reply was cut at the length limit instead of ending with an end token.

    Args:
        penalty: The penalty, subtracted from the reward.
    """

    needs_tokens = True
    penalty: float = 1.0

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
            cure = "use it as reward_fn or as a part of a composite reward_fn"
            raise ConfigError(f"reward 'missing_eos_penalty' needs a reply's tokens, which are missing here; {cure}")
        return 0.0 if end_of_turn.is_end(current_observation.context_ids) else -self.penalty
