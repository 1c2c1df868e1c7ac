"""Diversity of texts and of conversations by hand; Self-BLEU against the library."""

import math
import random

import pytest
from sacrebleu.metrics import BLEU

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.scores.diversity import ConversationDiversityMetric, DiversityMetric, SelfBleuMetric

# Words: a b a . | A c


def measure(texts, window_size=100):
    found = DiversityMetric(window_size).compute([""] * len(texts), texts, [[""]] * len(texts))
    assert all(scores is None for key, (scores, _) in found.items() if key != "diversity_metrics/seq-rep-4")
    return {key.removeprefix("diversity_metrics/"): corpus for key, (_, corpus) in found.items()}


def test_lengths_ngrams_and_entropies_by_hand():
    found = measure(["a b a .", "A c"])
    assert [found[f"{name}_pred_length"] for name in ("mean", "std", "median", "min", "max")] == [3, 1, 3, 2, 4]
    assert (found["total_length"], found["total_length-nopunct"], found["mean_pred_length-nopunct"]) == (6, 5, 2.5)
    assert measure(["a ... b !"])["total_length-nopunct"] == 2
    assert [found[f"vocab_size-{n}"] for n in (1, 2, 3)] == [4, 4, 2]
    assert [found[f"unique-{n}"] for n in (1, 2, 3)] == [3, 4, 2]
    assert [found[f"distinct-{n}"] for n in (1, 2, 3)] == pytest.approx([4 / 6, 1, 1])
    assert [found[f"vocab_size-{n}-nopunct"] for n in (1, 2, 3)] == [3, 3, 1]
    assert found["entropy-1"] == pytest.approx(0.5 + 0.5 * math.log2(6))
    assert found["entropy-2"] == pytest.approx(2)
    # p(ab) = p(ac) = p(ba) = p(a.) = 1/4; p(a) = 1/2 for three of them and p(b) = 1/6.
    assert found["cond_entropy-2"] == pytest.approx(-(3 * math.log2(1 / 2) + math.log2(6 / 4)) / 4)
    assert measure(["a a b", "c d"], window_size=2)["msttr-2"] == pytest.approx((1 / 2 + 1) / 2)
    assert measure(["a a b", "c d"])["msttr-100"] == pytest.approx(4 / 5)


def test_repetition_is_share_of_4grams_written_before():
    texts = ["a b c d a b c d", "a b c", ""]
    scores, corpus = DiversityMetric().compute([""] * 3, texts, [[""]] * 3)["diversity_metrics/seq-rep-4"]
    assert scores == pytest.approx([1 / 5, 0, 0])
    assert corpus == pytest.approx(1 / 15)


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("lowercase", [False, True])
def test_scores_are_bleu_against_all_others(order, lowercase):
    rng = random.Random(0)
    texts = [" ".join(rng.choices(["a", "b", "c", "d", "A", "B", ".", "!"], k=rng.randint(0, 12))) for _ in range(30)]
    texts += [texts[3], "😀"]
    bleu = BLEU(effective_order=True, max_ngram_order=order, lowercase=lowercase)
    expected = [bleu.sentence_score(text, texts[:i] + texts[i + 1 :]).score / 100 for i, text in enumerate(texts)]
    found = SelfBleuMetric(order, lowercase).compute([""] * 32, texts, [[]] * 32)
    scores, corpus = found["diversity_metrics/self_bleu"]
    assert scores == pytest.approx(expected)
    assert corpus == pytest.approx(sum(expected) / 32)
    assert SelfBleuMetric().compute([""], ["so it is"], [[]])["diversity_metrics/self_bleu"] == ([0.0], 0.0)


def dialogue(*turns, n_given=0):
    return Dialogue("x", tuple(Turn(text, speaker) for speaker, text in turns), n_given=n_given)


def measure_conversations(each, n=2):
    found = ConversationDiversityMetric(n).compute([each])
    assert all(scores == pytest.approx([corpus], nan_ok=True) for scores, corpus in found.values())
    return {key.removeprefix("conversation_diversity/"): corpus for key, (_, corpus) in found.items()}


def test_distinct_counts_ngrams_of_all_utterances_of_the_agent():
    # a b c a | A b: three of six words, bigrams ab bc ca of four, trigrams abc bca of two.
    found = measure_conversations(dialogue((AGENT, "a b c a"), (PARTNER, "x y z"), (AGENT, "A b")))
    assert [found[f"distinct-{n}"] for n in (1, 2, 3)] == pytest.approx([3 / 6, 3 / 4, 1])


def test_self_repetition_is_over_ngrams_that_could_repeat_an_earlier_utterance():
    # Bigrams: ab bc | ab bd de | de | bc. Of the five that come later, ab, de and bc stand in earlier utterances.
    texts = ("a b c", "a b d e", "d e", "b c")
    turns = [turn for text in texts for turn in ((AGENT, text), (PARTNER, "d e x"))]
    assert measure_conversations(dialogue(*turns))["self_repetition"] == pytest.approx(3 / 5)


def test_partner_echo_is_over_ngrams_said_after_the_partner():
    # The first utterance has nobody to echo. Then of bc cd | xy yz, bc and yz stand in what the partner said before.
    found = measure_conversations(
        dialogue((AGENT, "y z"), (PARTNER, "A B C"), (AGENT, "b c d"), (PARTNER, "w y z"), (AGENT, "x y z"))
    )
    assert found["partner_echo"] == pytest.approx(2 / 4)


def test_history_of_the_sample_can_be_echoed_but_echoes_nothing():
    given = ((PARTNER, "a b"), (AGENT, "a b"), (PARTNER, "c d"))
    found = measure_conversations(dialogue(*given, (AGENT, "a b"), n_given=3))
    assert found["partner_echo"] == 1 and found["distinct-2"] == 1
    assert math.isnan(found["self_repetition"]) and math.isnan(found["repeated_utterances"])


def test_literal_repetition_ignores_whitespace_but_not_case():
    found = measure_conversations(
        dialogue((AGENT, "is it a dog ?"), (AGENT, " is it  a dog ?"), (AGENT, "Is it a dog ?"))
    )
    assert found["repeated_utterances"] == 1 / 2
    assert measure_conversations(dialogue(*[(AGENT, "yes")] * 4))["repeated_utterances"] == 1


def test_blank_utterances_count_for_nothing():
    blank = measure_conversations(dialogue((AGENT, ""), (PARTNER, " "), (AGENT, ""), (AGENT, "\n")))
    assert len(blank) == 6 and all(map(math.isnan, blank.values()))
    found = measure_conversations(dialogue((AGENT, ""), (PARTNER, ""), (AGENT, "a b"), (AGENT, "")))
    assert math.isnan(found["self_repetition"]) and math.isnan(found["partner_echo"])
