"""How often replies have the dialogue act of the reference reply."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.metrics.checks import meta_data_there
from rl4dialog.metrics.intent_classifier import IntentClassifier
from rl4dialog.metrics.sentence_metric import SentenceMetric

BUILTIN_CLASSIFIER = "builtin/intent-classifier"


class IntentAccuracyMetric(SentenceMetric):
    """Share of replies whose predicted dialogue act is that of the reference reply (RL4LMs' ``intent/accuracy``).

    Args:
        classifier: Predicts dialogue acts; passed by the toolkit for the built-in one, trained on the run's datapool.
        model_name: Folder or hub id of another classifier.
        batch_size: Texts per forward pass of another classifier.
    """

    def __init__(self, classifier: Any = None, model_name: str = BUILTIN_CLASSIFIER, batch_size: Count = 64) -> None:
        self._classifier = classifier if classifier is not None else load_classifier(model_name, batch_size)

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        targets = gold_intents(meta_infos)
        predicted = self._classifier.predict(prompt_texts, generated_texts, meta_infos)
        return {"intent/accuracy": [float(p == t) for p, t in zip(predicted, targets, strict=True)]}


def load_classifier(model_name: str, batch_size: int = 64, *, reads_reply: bool = True) -> IntentClassifier:
    """Load a classifier other than the built-in one.

    Raises:
        ConfigError: If it is the built-in one, which only a run can train, or is of the other kind.
    """
    if model_name.startswith("builtin/"):
        raise ConfigError(f"{model_name!r} is trained by a run on its datapool; pass a classifier or a model folder")
    classifier = IntentClassifier.from_pretrained(model_name, batch_size)
    if classifier.reads_reply and not reads_reply:
        raise ConfigError(
            f"the classifier {model_name!r} reads replies, but this one must predict their act without them; train it "
            f"with `rl4dialog classifier --without_reply`"
        )
    if reads_reply and not classifier.reads_reply:
        raise ConfigError(
            f"the classifier {model_name!r} was trained with --without_reply, so it cannot tell the act of a reply; "
            f"train another without this option"
        )
    return classifier


def gold_intents(meta_infos: list[dict[str, Any]] | None) -> list[int]:
    """Return the dialogue acts of the reference replies.

    Raises:
        DataError: If a sample has none.
    """
    intents = []
    for row, info in enumerate(meta_infos if meta_infos is not None else [None]):
        try:
            intents.append(int(info["intent"][0]))  # type: ignore[index]
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise DataError(
                f"intent accuracy needs samples with meta_data['intent'], which the datapools small_talk and "
                f"daily_dialog provide; text {row} has {meta_data_there(info, 'intent')}"
            ) from error
    return intents
