"""Diversity of what the agent says in a conversation, and repetition of itself and of its partner."""

from __future__ import annotations

import math
from collections import Counter

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import AGENT, PARTNER, Dialogue
from rl4dialog.metrics.diversity import lowercase_words, ngrams
from rl4dialog.metrics.per_dialogue_metric import PerDialogueMetric

_Grams = Counter[tuple[str, ...]]


class ConversationDiversityMetric(PerDialogueMetric):
    """Distinct n-grams and repetition over all utterances of the agent in a conversation.

    ``distinct-1`` to ``distinct-3`` are distinct n-grams divided by n-grams (Li et al. 2016, arXiv 1510.03055, who
    divide by words and count over a whole corpus). ``self_repetition`` is the share of n-grams that occurred in an
    earlier utterance of the agent, and ``partner_echo`` the share that occurred in an earlier one of its partner (the
    external and partner repetition of See et al. 2019, arXiv 1902.08654). ``repeated_utterances`` is the
    share of utterances that equal an earlier one of the agent, except for whitespace.

    Shares are over the utterances that have an earlier one to repeat. Of the sample's history, only what the partner
    said counts, as earlier utterances. Blank utterances are ignored. Words are lowercase.

    Args:
        n: Words per n-gram of ``self_repetition`` and ``partner_echo``.
    """

    def __init__(self, n: Count = 3) -> None:
        self._n = n

    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        scores = []
        for dialogue in dialogues:
            words = [lowercase_words(turn.text) for turn in dialogue.turns]
            repetition = _repetition(dialogue, words, self._n)
            scores.append({**_distinct(dialogue, words), **repetition, "repeated_utterances": _repeated(dialogue)})
        return {f"conversation_diversity/{key}": [each[key] for each in scores] for key in scores[0]}


def _distinct(dialogue: Dialogue, words: list[list[str]]) -> dict[str, float]:
    said = zip(dialogue.said, words[dialogue.n_given :], strict=True)
    own = [text for turn, text in said if turn.speaker == AGENT]
    counts = {n: ngrams(own, n) for n in (1, 2, 3)}
    return {f"distinct-{n}": _share(len(grams), grams.total()) for n, grams in counts.items()}


def _repetition(dialogue: Dialogue, words: list[list[str]], n: int) -> dict[str, float]:
    """Shares of the agent's n-grams that occurred in earlier utterances of each speaker."""
    earlier: dict[int, _Grams] = {AGENT: Counter(), PARTNER: Counter()}
    has_spoken: set[int] = set()
    found, total = Counter[int](), Counter[int]()
    for i, turn in enumerate(dialogue.turns):
        is_given = i < dialogue.n_given
        if not words[i] or (is_given and turn.speaker == AGENT):
            continue
        grams = ngrams([words[i]], n)
        if turn.speaker == AGENT:
            for speaker in has_spoken:
                found[speaker] += sum(count for gram, count in grams.items() if gram in earlier[speaker])
                total[speaker] += grams.total()
        earlier[turn.speaker] += grams
        has_spoken.add(turn.speaker)
    return {
        "self_repetition": _share(found[AGENT], total[AGENT]),
        "partner_echo": _share(found[PARTNER], total[PARTNER]),
    }


def _repeated(dialogue: Dialogue) -> float:
    texts = [" ".join(text.split()) for text in dialogue.texts(AGENT) if text.strip()]
    return _share(len(texts) - len(set(texts)), len(texts) - 1)


def _share(part: int, whole: int) -> float:
    return part / whole if whole > 0 else math.nan
