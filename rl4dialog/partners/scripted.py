"""Partners without a model: lines in order, the dataset's own dialogue, facts of a persona, and patterns."""

from __future__ import annotations

import random
import re
from typing import Annotated, Any, NotRequired

import regex
from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict

from rl4dialog.core.arguments import Pattern, matches_all
from rl4dialog.core.errors import ConfigError, DataError, shown
from rl4dialog.core.protocols import Partner
from rl4dialog.core.time_limit import matched
from rl4dialog.core.types import PartnerReply
from rl4dialog.tasks.turn_goals import GoalChoice, chosen_goals
from rl4dialog.text.words import content_words


def sample_texts(meta_info: dict[str, Any], key: str, partner: str, hint: str, at_least: int = 0) -> list[str]:
    """At least so many texts in a sample's ``meta_data``; ``hint`` names sources of such samples."""
    texts = meta_info.get(key)
    if not isinstance(texts, (list, tuple)) or len(texts) < at_least or not all(isinstance(t, str) for t in texts):
        raise DataError(
            f"partner {partner!r} needs samples with a list of texts in meta_data[{key!r}], not {shown(texts)}; {hint}"
        )
    return list(texts)


_SCRIPTED_HINT = "set the argument replies, or use a datapool whose samples have such a script"


class ScriptedPartner(Partner):
    """Replies with given lines in order, then leaves.

    Args:
        replies: The lines; by default those in the sample's ``meta_data["partner_replies"]``.
    """

    def __init__(self, replies: Annotated[list[str], Field(min_length=1)] | None = None) -> None:
        self._given = replies

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        given = self._given
        if given is None:
            given = sample_texts(meta_info, "partner_replies", "scripted", _SCRIPTED_HINT)
        self._left = iter(given)

    def reply(self, history: list[str]) -> str | None:
        return next(self._left, None)


_REPLAY_HINT = (
    "the datapools daily_dialog, persona_chat and small_talk provide it with datapool.args.samples: dialogues, and "
    "conversational with datapool.args.turns: first"
)


class ReplayPartner(Partner):
    """Says the next utterance of the dataset's own dialogue, whatever the agent said; leaves at the end of it.

    Samples need ``meta_data["continuation"]``: the utterances after the reference reply, by the partner and the agent
    in turn. Those of the agent, and their labels, are the references and labels of its later replies.
    """

    gives_references = True
    checks_samples = True
    unrepeatable = "it says the lines of one recorded dialogue, whatever the agent says, and nobody knows its others"

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._continuation = sample_texts(meta_info, "continuation", "replay", _REPLAY_HINT)
        self._labels = meta_info.get("continuation_labels") or [{}] * len(self._continuation)
        self._position = 0

    def reply(self, history: list[str]) -> PartnerReply:
        said = self._continuation[self._position : self._position + 2]
        labels = self._labels[self._position + 1 : self._position + 2]
        self._position += 2
        text, references = next(iter(said), None), said[1:]
        # Without a reference, the agent had nothing more to say.
        info = {"references": references, "labels": labels[0]} if references else {}
        return PartnerReply(text, info=info, leaves=not references)


_FACTS_HINT = (
    "the datapools persona_pairs and get_acquainted provide partner_persona, and so does persona_chat if its files "
    "contain the personas of both sides, such as path: {train: train_both_original.txt}"
)


class FactsPartner(Partner):
    """Answers a question with the fact of its persona that shares most words with it.

    A question is an utterance with a question mark. It matches a fact if both contain the same content word, that is,
    any word that is not a function word such as "the" or "do". Case and a final ``s`` are ignored. Of several facts
    that match equally well, the first is the answer. A repeated question gets the same answer.

    Args:
        persona_key: Key of the meta data with the list of facts.
        otherwise: Answer to questions that match no fact, and to other utterances.
        goals: Goals of turns, whose words stand for one another: with ``convogym``, a question about pets finds "i have
            two dogs .". The id of a set, or a list, as in ``env.args.goals`` of ``turn_goals``.
    """

    role = "You answer questions about yourself from your persona."
    checks_samples = True

    def __init__(
        self,
        persona_key: str = "partner_persona",
        otherwise: str = "nothing special .",
        goals: GoalChoice | None = None,
    ) -> None:
        self._key, self._otherwise = persona_key, otherwise
        self._goals = () if goals is None else chosen_goals(goals, "partner 'facts': goals")

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        facts = sample_texts(meta_info, self._key, "facts", _FACTS_HINT, at_least=1)
        self._facts = [(fact, self._words(fact)) for fact in facts]

    def secret(self) -> str:
        return " ".join(fact for fact, _ in self._facts)

    def reply(self, history: list[str]) -> str:
        if "?" not in history[-1]:
            return self._otherwise
        asked = self._words(history[-1])
        fact, words = max(self._facts, key=lambda fact: len(fact[1] & asked))
        return fact if words & asked else self._otherwise

    def _words(self, text: str) -> set[str]:
        """Content words, and the names of the goals among whose words they are."""
        words = content_words(text)
        return words | {goal.name for goal in self._goals if goal.content & words}


Texts = Annotated[list[str], Field(min_length=1)] | str

_BRACES = re.compile(r"\{\{|\}\}|\{(\w+)\}")


class Rule(TypedDict):
    """A rule in YAML; `RulesPartner` explains the keys."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # type: ignore[misc]
    pattern: Pattern
    replies: NotRequired[Texts]
    leaves: NotRequired[bool]
    reward: NotRequired[float]


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


CheckedRule = Annotated[Rule, AfterValidator(_check_groups)]


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
        patterns = [rule["pattern"] for rule in rules]
        always = [pattern for pattern in patterns[:-1] if matches_all(pattern, re.IGNORECASE)]
        if always or "" in patterns or len({*patterns}) < len(patterns):
            what = f"{always[0]!r} matches every text" if always else "a pattern is empty or listed twice"
            raise ConfigError(f"partner 'rules': {what}, so rules after it never decide")
        self._rules, self._otherwise, self._opening = rules, _as_list(otherwise), _as_list(opening)
        self.can_open = bool(self._opening)
        self.pays = any(rule.get("reward") for rule in rules)

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._random = random.Random(seed)

    def open(self) -> str:
        return self._random.choice(self._opening)

    def reply(self, history: list[str]) -> PartnerReply:
        for rule in self._rules:
            if (match := matched(regex.search, rule["pattern"], history[-1], flags=re.IGNORECASE)) is not None:
                texts = _as_list(rule.get("replies"))
                text = _with_groups(self._random.choice(texts), match) if texts else None
                return PartnerReply(text, reward=rule.get("reward", 0.0), leaves=rule.get("leaves", False))
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
