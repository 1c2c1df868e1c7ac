"""A partner that answers questions about itself."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import Partner
from rl4dialog.partners.sample_texts import sample_texts
from rl4dialog.tasks.turn_goals import GoalChoice, chosen_goals
from rl4dialog.text.words import content_words

_HINT = (
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

    Raises:
        ConfigError: If a goal is unknown.
        DataError: At the start of a conversation, if the sample has no facts.
    """

    checks_samples = True

    def __init__(
        self,
        persona_key: str = "partner_persona",
        otherwise: str = "nothing special .",
        goals: GoalChoice | None = None,
    ) -> None:
        self._key, self._otherwise = persona_key, otherwise
        self._goals = () if goals is None else chosen_goals(goals, "partner 'facts': goals")
        self._facts: list[tuple[str, set[str]]] = []

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        facts = sample_texts(meta_info, self._key, "facts", _HINT, at_least=1)
        self._facts = [(fact, self._words(fact)) for fact in facts]

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
