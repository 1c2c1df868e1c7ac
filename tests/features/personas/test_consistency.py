"""Consistency with personas, by hand and with a tiny model."""

import numpy as np
import pytest

from rl4dialog.catalog import MetricRegistry
from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.features.personas.consistency import PersonaConsistencyMetric
from rl4dialog.scores.classifiers import NliModel


def test_missing_model_is_named():
    with pytest.raises(ModelError, match=r"consistency': NLI model .*nowhere.*-mnli"):
        MetricRegistry.get("persona_consistency", {"model_name": "./nowhere"})


NLI_LABELS = ["entailment", "contradiction", "neutral"]
TEXTS = ["a cat sat", "hi", "dog mat", "cat cat", ""]
PERSONAS = [["a cat", "dog sat", "hi"], ["mat"], [], ["sat sat a", "mat hi"], ["dog"]]


def test_scores_count_what_follows_and_what_contradicts(save_classifier):
    folder = save_classifier(NLI_LABELS)
    nli = NliModel(folder, 1, "x")
    verdicts = [
        [int(nli.probabilities([text], [fact])[0].argmax()) for fact in persona]
        for text, persona in zip(TEXTS, PERSONAS, strict=True)
    ]
    assert {verdict for each in verdicts for verdict in each} == {0, 1}
    infos = [{"persona": persona} for persona in PERSONAS]
    metric = PersonaConsistencyMetric(folder, batch_size=2)
    found = metric.compute([""] * 5, TEXTS, [[]] * 5, infos)
    named = {"prompt_texts": [""] * 5, "generated_texts": TEXTS, "reference_texts": [[]] * 5, "meta_infos": infos}
    assert metric.compute(**named) == found
    consistency = [each.count(0) - each.count(1) for each in verdicts]
    assert found["consistency/persona"] == (consistency, sum(consistency) / 5)
    contradiction = [float(1 in each) for each in verdicts]
    assert found["consistency/persona_contradiction"] == (contradiction, sum(contradiction) / 5)


def test_conversations_score_the_mean_of_their_replies(save_classifier, monkeypatch):
    metric = PersonaConsistencyMetric(save_classifier(NLI_LABELS))
    verdicts = {"yes": [1.0, 0, 0], "no": [0, 1.0, 0], "hm": [0, 0, 1.0]}

    def probabilities(premises, hypotheses):
        assert set(hypotheses) <= {"i like cats", "i like dogs"}
        return np.array([verdicts[premise] for premise in premises])

    def conversation(persona, *said, given=()):
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


@pytest.mark.parametrize("infos", [None, [{}], [{"persona": "i like cats"}]], ids=str)
def test_missing_persona_names_the_pool_that_has_it(infos, save_classifier):
    with pytest.raises(DataError, match=r"meta_data\['persona'\].*persona_chat.*text 0 has"):
        PersonaConsistencyMetric(save_classifier(NLI_LABELS)).compute([""], ["a"], [[]], infos)
