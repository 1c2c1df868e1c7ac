"""Consistency with a persona, told by a tiny classifier of random weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.metrics.nli import NliModel
from rl4dialog.metrics.persona_consistency import PersonaConsistencyMetric

LABELS = ["entailment", "contradiction", "neutral"]
TEXTS = ["a cat sat", "hi", "dog mat", "cat cat", ""]
PERSONAS = [["a cat", "dog sat", "hi"], ["mat"], [], ["sat sat a", "mat hi"], ["dog"]]


def test_scores_count_what_follows_and_what_contradicts(save_classifier: Callable[[Sequence[str]], str]) -> None:
    folder = save_classifier(LABELS)
    nli = NliModel(folder, 1, "x")
    verdicts = [
        [int(nli.probabilities([text], [fact])[0].argmax()) for fact in persona]
        for text, persona in zip(TEXTS, PERSONAS, strict=True)
    ]
    assert {verdict for each in verdicts for verdict in each} == {0, 1}
    infos = [{"persona": persona} for persona in PERSONAS]
    found = PersonaConsistencyMetric(folder, batch_size=2).compute([""] * 5, TEXTS, [[]] * 5, infos)
    consistency = [each.count(0) - each.count(1) for each in verdicts]
    assert found["consistency/persona"] == (consistency, sum(consistency) / 5)
    contradiction = [float(1 in each) for each in verdicts]
    assert found["consistency/persona_contradiction"] == (contradiction, sum(contradiction) / 5)


def test_neutral_facts_count_for_nothing(
    save_classifier: Callable[[Sequence[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = PersonaConsistencyMetric(save_classifier(LABELS))
    known = np.array([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1], [0.0, 0.9, 0.1]])
    monkeypatch.setattr(metric._nli, "probabilities", lambda premises, hypotheses: known)
    found = metric.compute(["", ""], ["a", "b"], [[], []], [{"persona": ["n", "e"]}, {"persona": ["c"]}])
    assert found["consistency/persona"] == ([1.0, -1.0], 0.0)
    assert found["consistency/persona_contradiction"] == ([0.0, 1.0], 0.5)


def test_conversations_score_the_mean_of_their_replies(
    save_classifier: Callable[[Sequence[str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = PersonaConsistencyMetric(save_classifier(LABELS))
    verdicts = {"yes": [1.0, 0, 0], "no": [0, 1.0, 0], "hm": [0, 0, 1.0]}

    def probabilities(premises: list[str], hypotheses: list[str]) -> np.ndarray:
        assert set(hypotheses) <= {"i like cats", "i like dogs"}
        return np.array([verdicts[premise] for premise in premises])

    def conversation(persona: list[str], *said: str, given: tuple[str, ...] = ()) -> Dialogue:
        turns = [Turn(text, AGENT) for text in given]
        turns += [turn for text in said for turn in (Turn(text, AGENT), Turn("from the partner", PARTNER))]
        return Dialogue("x", tuple(turns), meta_data={"persona": persona}, n_given=len(given))

    monkeypatch.setattr(metric._nli, "probabilities", probabilities)
    dialogues = [
        conversation(["i like cats", "i like dogs"], "yes", "hm", "no", "yes", given=("no",)),
        conversation(["i like cats"]),
        conversation(["i like cats"], "no"),
    ]
    found = metric.compute(dialogues, model=None, split_name="test")
    assert found == metric.compute(dialogues=dialogues)
    scores, corpus = found["consistency/persona"]
    assert scores == pytest.approx([(2 + 0 - 2 + 2) / 4, np.nan, -1], nan_ok=True) and corpus == (0.5 - 1) / 2
    scores, corpus = found["consistency/persona_contradiction"]
    assert scores == pytest.approx([1 / 4, np.nan, 1], nan_ok=True) and corpus == (0.25 + 1) / 2


def test_arguments_by_name_measure_replies(save_classifier: Callable[[Sequence[str]], str]) -> None:
    metric = PersonaConsistencyMetric(save_classifier(LABELS))
    infos = [{"persona": persona} for persona in PERSONAS]
    arguments = {"prompt_texts": [""] * 5, "generated_texts": TEXTS, "reference_texts": [[]] * 5, "meta_infos": infos}
    assert metric.compute(**arguments) == metric.compute([""] * 5, TEXTS, [[]] * 5, infos)


def test_samples_without_facts_score_0(save_classifier: Callable[[Sequence[str]], str]) -> None:
    found = PersonaConsistencyMetric(save_classifier(LABELS)).compute([""], ["a"], [[]], [{"persona": []}])
    assert [corpus for _, corpus in found.values()] == [0.0, 0.0]


@pytest.mark.parametrize("infos", [None, [{}], [{"persona": "i like cats"}]], ids=str)
def test_missing_persona_names_the_pool_that_has_it(
    infos: Any, save_classifier: Callable[[Sequence[str]], str]
) -> None:
    with pytest.raises(DataError, match=r"meta_data\['persona'\].*persona_chat.*text 0 has"):
        PersonaConsistencyMetric(save_classifier(LABELS)).compute([""], ["a"], [[]], infos)


def test_missing_model_is_named(tmp_path: object) -> None:
    with pytest.raises(ModelError, match=r"'persona_consistency': NLI model .*nowhere"):
        PersonaConsistencyMetric(f"{tmp_path}/nowhere")
