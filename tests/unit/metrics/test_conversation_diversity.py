"""Repetition in conversations small enough to count by hand."""

from __future__ import annotations

import math

import pytest

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.metrics.conversation_diversity import ConversationDiversityMetric


def dialogue(*turns: tuple[int, str], n_given: int = 0) -> Dialogue:
    return Dialogue("x", tuple(Turn(text, speaker) for speaker, text in turns), n_given=n_given)


def measure(each: Dialogue, n: int = 2) -> dict[str, float]:
    found = ConversationDiversityMetric(n).compute([each])
    assert all(scores == pytest.approx([corpus], nan_ok=True) for scores, corpus in found.values())
    return {key.removeprefix("conversation_diversity/"): corpus for key, (_, corpus) in found.items()}


def test_distinct_counts_ngrams_of_all_utterances_of_the_agent() -> None:
    # a b c a | A b: three of six words, bigrams ab bc ca of four, trigrams abc bca of two.
    found = measure(dialogue((AGENT, "a b c a"), (PARTNER, "x y z"), (AGENT, "A b")))
    assert [found[f"distinct-{n}"] for n in (1, 2, 3)] == pytest.approx([3 / 6, 3 / 4, 1])


def test_self_repetition_is_over_ngrams_that_could_repeat_an_earlier_utterance() -> None:
    # Bigrams: ab bc | ab bd de | de | bc. Of the five that come later, ab, de and bc stand in earlier utterances.
    texts = ("a b c", "a b d e", "d e", "b c")
    turns = [turn for text in texts for turn in ((AGENT, text), (PARTNER, "d e x"))]
    assert measure(dialogue(*turns))["self_repetition"] == pytest.approx(3 / 5)


def test_repetition_within_an_utterance_is_no_repetition_of_an_earlier_one() -> None:
    assert measure(dialogue((AGENT, "a b"), (AGENT, "c d c d")))["self_repetition"] == 0


def test_partner_echo_is_over_ngrams_said_after_the_partner() -> None:
    # The first utterance has nobody to echo. Then of bc cd | xy yz, bc and yz stand in what the partner said before.
    found = measure(
        dialogue((AGENT, "y z"), (PARTNER, "A B C"), (AGENT, "b c d"), (PARTNER, "w y z"), (AGENT, "x y z"))
    )
    assert found["partner_echo"] == pytest.approx(2 / 4)


def test_history_of_the_sample_can_be_echoed_but_echoes_nothing() -> None:
    given = ((PARTNER, "a b"), (AGENT, "a b"), (PARTNER, "c d"))
    found = measure(dialogue(*given, (AGENT, "a b"), n_given=3))
    assert found["partner_echo"] == 1 and found["distinct-2"] == 1
    assert math.isnan(found["self_repetition"]) and math.isnan(found["repeated_utterances"])


def test_order_of_ngrams_is_three_by_default() -> None:
    each = dialogue((PARTNER, "a b c d"), (AGENT, "a b x b c d"))
    assert measure(each, n=1)["partner_echo"] == pytest.approx(5 / 6)
    (scores, _) = ConversationDiversityMetric().compute([each])["conversation_diversity/partner_echo"]
    assert scores == [1 / 4]


def test_literal_repetition_ignores_whitespace_but_not_case() -> None:
    found = measure(dialogue((AGENT, "is it a dog ?"), (AGENT, " is it  a dog ?"), (AGENT, "Is it a dog ?")))
    assert found["repeated_utterances"] == 1 / 2
    assert measure(dialogue(*[(AGENT, "yes")] * 4))["repeated_utterances"] == 1


def test_blank_utterances_count_for_nothing() -> None:
    blank = measure(dialogue((AGENT, ""), (PARTNER, " "), (AGENT, ""), (AGENT, "\n")))
    assert len(blank) == 6 and all(map(math.isnan, blank.values()))
    found = measure(dialogue((AGENT, ""), (PARTNER, ""), (AGENT, "a b"), (AGENT, "")))
    assert math.isnan(found["self_repetition"]) and math.isnan(found["partner_echo"])


def test_conversations_without_a_score_do_not_change_the_mean() -> None:
    each = dialogue((AGENT, "a a"), (PARTNER, "b"))
    scores, corpus = ConversationDiversityMetric().compute([dialogue(), each])["conversation_diversity/distinct-1"]
    assert scores == pytest.approx([math.nan, 0.5], nan_ok=True) and corpus == 0.5
