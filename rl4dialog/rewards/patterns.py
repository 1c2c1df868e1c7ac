"""Rewards for keywords and regular expressions in the reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.protocols import SentenceRewardFunction

Words = Annotated[Sequence[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class KeywordReward(SentenceRewardFunction):
    """Share of keywords that the reply contains as whole words.

    Args:
        keywords: Words or phrases.
        meta_key: Key of the meta data with each sample's keywords, instead of ``keywords``; for example ``concepts``
            in the datapool commongen.
        match: ``share`` pays the share of keywords that are found; ``any`` and ``all`` pay 1 or 0.
        case_sensitive: Whether matching is case-sensitive.

    Raises:
        ConfigError: If not exactly one of keywords and meta_key is given.
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
        if not _are_words(keywords):
            raise DataError(
                f"reward 'keyword' needs samples with a list of words in meta_data[{self._meta_key!r}], not "
                f"{keywords!r}"
            )
        assert keywords is not None
        # Not \b, which does not match next to a keyword with a punctuation mark at its edge, such as "C++".
        found = [
            re.search(rf"(?<!\w){re.escape(keyword)}(?!\w)", gen_text, self._flags) is not None for keyword in keywords
        ]
        if self._match == "share":
            return sum(found) / len(found)
        return float(any(found) if self._match == "any" else all(found))


class RegexReward(SentenceRewardFunction):
    """1 for a reply that matches a regular expression, otherwise 0.

    Args:
        pattern: Regular expression in Python's ``re`` syntax.
        full: Whether the whole reply must match; by default a match anywhere is enough.

    Raises:
        ConfigError: If the pattern is not a valid regular expression.
    """

    def __init__(self, pattern: str, full: bool = False) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"reward 'regex': {pattern!r} is not a valid regular expression: {error}") from error
        self._full = full

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        match = self._pattern.fullmatch if self._full else self._pattern.search
        return float(match(gen_text) is not None)


def _are_words(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(word, str) and word for word in value)
