"""A partner that answers questions about itself."""

from __future__ import annotations

import re
from typing import Any

from rl4dialog.core.protocols import Partner
from rl4dialog.partners.sample_texts import sample_texts

# Function words, ends of contractions ("don't", "I'll"), and words of questions and facts about anything: "do you like
# ...?", "my favorite ... is".
_STOP_WORDS = """
a about all also am an and any are aren as at be been but by can could d did didn do does doesn doing don done for from
get go going got had has have having he her him his how i if in into is isn it just kind like likes ll lot love m many
me more most much my no not of off often on one or other our out re really s she so some t tell than that the their
them then there these they thing things this those to too up us ve very was were what when where which who whom whose
why will with would yes you your favorite favourite
"""
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

    Raises:
        DataError: At the start of a conversation, if the sample has no facts.
    """

    checks_samples = True

    def __init__(self, persona_key: str = "partner_persona", otherwise: str = "nothing special .") -> None:
        self._key, self._otherwise = persona_key, otherwise
        self._facts: list[tuple[str, set[str]]] = []

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        facts = sample_texts(meta_info, self._key, "facts", _HINT, at_least=1)
        self._facts = [(fact, content_words(fact)) for fact in facts]

    def reply(self, history: list[str]) -> str:
        if "?" not in history[-1]:
            return self._otherwise
        asked = content_words(history[-1])
        fact, words = max(self._facts, key=lambda fact: len(fact[1] & asked))
        return fact if words & asked else self._otherwise


def content_words(text: str) -> set[str]:
    """Return the words of a text in lower case, without function words and without a final ``s``."""
    words = set(re.findall(r"[^\W_]+", text.lower())).difference(_STOP_WORDS.split())
    return {word.removesuffix("s") for word in words}
