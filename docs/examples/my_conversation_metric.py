"""A custom metric of whole conversations."""

from rl4dialog import DialogueMetric, MetricRegistry
from rl4dialog.core.types import PARTNER


@MetricRegistry.register("answered_yes")
class AnsweredYes(DialogueMetric):
    """Share of the partner's answers that start with "yes"."""

    def compute(self, dialogues, model=None, split_name=None):
        answers = [dialogue.texts(PARTNER) for dialogue in dialogues]
        scores = [sum(text.startswith("yes") for text in texts) / max(len(texts), 1) for texts in answers]
        return {"answers/yes": (scores, sum(scores) / len(scores))}
