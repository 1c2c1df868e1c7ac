"""Self-BLEU against sacrebleu with all other texts as references."""

from __future__ import annotations

import random

import pytest
from sacrebleu.metrics import BLEU

from rl4dialog.metrics.self_bleu import SelfBleuMetric


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("lowercase", [False, True])
def test_scores_are_bleu_against_all_others(order: int, lowercase: bool) -> None:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(["a", "b", "c", "d", "A", "B", ".", "!"], k=rng.randint(0, 12))) for _ in range(30)]
    texts += [texts[3], "😀"]
    bleu = BLEU(effective_order=True, max_ngram_order=order, lowercase=lowercase)
    expected = [bleu.sentence_score(text, texts[:i] + texts[i + 1 :]).score / 100 for i, text in enumerate(texts)]
    found = SelfBleuMetric(order, lowercase).compute([""] * 32, texts, [[]] * 32)
    scores, corpus = found["diversity_metrics/self_bleu"]
    assert scores == pytest.approx(expected)
    assert corpus == pytest.approx(sum(expected) / 32)


def test_same_texts_score_1_different_ones_and_one_alone_0() -> None:
    metric = SelfBleuMetric()
    assert metric.compute([""] * 2, ["so it is"] * 2, [[]] * 2)["diversity_metrics/self_bleu"][1] == pytest.approx(1.0)
    assert metric.compute([""] * 2, ["so it is", "what else"], [[]] * 2)["diversity_metrics/self_bleu"][1] == 0.0
    assert metric.compute([""], ["so it is"], [[]])["diversity_metrics/self_bleu"] == ([0.0], 0.0)
