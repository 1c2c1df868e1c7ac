"""A partner that follows rules: patterns, and what it says if they match."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply

Texts = Annotated[list[str], Field(min_length=1)] | str

_BRACES = re.compile(r"\{\{|\}\}|\{(\w+)\}")


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"should be a regular expression in Python's syntax: {error}") from error
    return pattern


class Rule(TypedDict):
    """A rule in YAML.

    Attributes:
        pattern: Regular expression, searched in the agent's utterance; case is ignored.
        replies: One reply, or several to choose from at random. ``{1}`` or ``{name}`` inserts a group of the match.
        leaves: Whether the partner then ends the conversation.
        reward: Reward of the agent for the utterance.
    """

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)  # type: ignore[misc]
    pattern: Annotated[str, AfterValidator(_check_pattern)]
    replies: NotRequired[Texts]
    leaves: NotRequired[bool]
    reward: NotRequired[float]


def _check_keys(rule: Any) -> Any:
    """Name an unknown or missing key, which pydantic's own messages do not."""
    if isinstance(rule, Mapping):
        keys = Rule.__annotations__
        for key in rule:
            if key not in keys:
                raise ValueError(f"unknown key {key!r}{nearest_hint(key, keys)} (accepted: {', '.join(keys)})")
        if "pattern" not in rule:
            raise ValueError("a rule needs the key 'pattern'")
    return rule


def _check_groups(rule: Rule) -> Rule:
    """Check that the pattern has all groups that the replies insert."""
    pattern = re.compile(rule["pattern"])
    for name in (name for reply in _as_list(rule.get("replies")) for name in _BRACES.findall(reply) if name):
        if not (int(name) <= pattern.groups if name.isdecimal() else name in pattern.groupindex):
            raise ValueError(
                f"replies insert {{{name}}}, but the pattern has no such group; write {{{{{name}}}}} for the text "
                f"itself, in braces"
            )
    return rule


CheckedRule = Annotated[Rule, BeforeValidator(_check_keys), AfterValidator(_check_groups)]


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    replies: list[str]
    leaves: bool
    reward: float


class RulesPartner(Partner):
    """Replies by rules: the first whose pattern matches the agent's utterance decides.

    Replies are drawn with the seed of the conversation.

    Args:
        rules: List of ``{pattern, replies, leaves, reward}``. ``pattern`` is a regular expression, searched regardless
            of case. ``replies`` is a text or a list to choose from at random; ``{1}`` or ``{name}`` in it inserts a
            group of the match, and ``{{`` a brace; without it the partner says nothing. With ``leaves: true`` the
            partner then ends the conversation. ``reward`` is paid for the utterance by ``reward_fn: {id: partner}``.
        otherwise: Reply, or replies to choose from, if no pattern matches; by default the partner says nothing.
        opening: First utterance of the conversation, or several to choose from; required for
            ``first_speaker: partner``.
    """

    def __init__(
        self,
        rules: Annotated[list[CheckedRule], Field(min_length=1)],
        otherwise: Texts | None = None,
        opening: Texts | None = None,
    ) -> None:
        self._rules = [
            _Rule(
                re.compile(rule["pattern"], re.IGNORECASE),
                _as_list(rule.get("replies")),
                rule.get("leaves", False),
                rule.get("reward", 0.0),
            )
            for rule in rules
        ]
        patterns = [rule["pattern"] for rule in rules]
        if "" in patterns or len({*patterns}) < len(patterns):
            raise ConfigError("partner 'rules': a pattern is empty or listed twice, so rules after it never decide")
        self._otherwise, self._opening = _as_list(otherwise), _as_list(opening)
        self._random = random.Random()
        self.can_open = bool(self._opening)
        self.pays = any(rule.reward for rule in self._rules)

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._random = random.Random(seed)

    def open(self) -> str:
        return self._random.choice(self._opening)

    def reply(self, history: list[str]) -> PartnerReply:
        for rule in self._rules:
            match = rule.pattern.search(history[-1])
            if match is not None:
                text = self._random.choice(rule.replies) if rule.replies else None
                text = None if text is None else _with_groups(text, match)
                return PartnerReply(text, reward=rule.reward, leaves=rule.leaves)
        return PartnerReply(self._random.choice(self._otherwise) if self._otherwise else None)


def _with_groups(reply: str, match: re.Match[str]) -> str:
    """Insert the groups of a match; one that did not take part is empty."""

    def inserted(braces: re.Match[str]) -> str:
        name = braces[1]
        if name is None:
            return braces[0][0]
        return match[int(name) if name.isdecimal() else name] or ""

    return _BRACES.sub(inserted, reply)


def _as_list(texts: Texts | None) -> list[str]:
    if texts is None:
        return []
    return [texts] if isinstance(texts, str) else texts
