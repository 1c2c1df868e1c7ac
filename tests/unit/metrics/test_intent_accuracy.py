"""Intent accuracy with a classifier of known answers."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.metrics.intent_accuracy import IntentAccuracyMetric


class KnownAnswers:
    def predict(self, prompt_texts: list[str], reply_texts: list[str], meta_infos: Any) -> list[int]:
        return [int(reply) for reply in reply_texts]


def test_accuracy_is_share_of_gold_intents() -> None:
    infos = [{"intent": [1]}, {"intent": ["2", 3]}, {"intent": [4]}, {"intent": [4]}]
    found = IntentAccuracyMetric(KnownAnswers()).compute([""] * 4, ["1", "3", "4", "4"], [[""]] * 4, infos)
    assert found == {"intent/accuracy": ([1.0, 0.0, 1.0, 1.0], 0.75)}


@pytest.mark.parametrize("infos", [None, [{}], [{"intent": []}], [{"intent": None}]], ids=str)
def test_missing_intent_names_the_pools_that_have_it(infos: Any) -> None:
    with pytest.raises(DataError, match="small_talk and daily_dialog"):
        IntentAccuracyMetric(KnownAnswers()).compute([""], ["1"], [[""]], infos)


def test_builtin_classifier_must_be_given() -> None:
    with pytest.raises(ConfigError, match="builtin/intent-classifier"):
        IntentAccuracyMetric()


def test_missing_folder_is_refused(tmp_path: object) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        IntentAccuracyMetric(model_name=f"{tmp_path}/nowhere")
