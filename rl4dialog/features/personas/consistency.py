"""Consistency of replies with the speaker's persona, by natural language inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rl4dialog.core.arguments import Count
from rl4dialog.core.protocols import MetricResult
from rl4dialog.core.types import AGENT, Dialogue
from rl4dialog.scores.base import Batch, PerDialogueMetric, ReplyMetric, mean_of_known, meta_values
from rl4dialog.scores.classifiers import NLI_MODEL, NliModel


class PersonaConsistencyMetric(ReplyMetric, PerDialogueMetric):
    """C score of the replies, and the share of replies that contradict the persona.

    It measures replies, and conversations, whose scores are means over all utterances of the agent.

    The C score, ``consistency/persona`` (Madotto et al. 2019, "Personalizing Dialogue Agents via Meta-Learning"), adds
    1 for each sentence of the persona that follows from the reply, and -1 for each that the reply contradicts. The
    share of replies with at least one contradiction is ``consistency/persona_contradiction`` (Welleck et al. 2019,
    arXiv 1811.00671).

    Args:
        model_name: Folder or hub id of a model for natural language inference.
        batch_size: Pairs of reply and sentence per forward pass.
    """

    def __init__(self, model_name: str = NLI_MODEL, batch_size: Count = 64) -> None:
        self._nli = NliModel(model_name, batch_size, "metric 'persona_consistency'")

    def compute(self, *args: Any, **kwargs: Any) -> MetricResult:
        """Measure replies, like a ``BaseMetric``, or conversations, like a ``DialogueMetric``."""
        of_replies = "generated_texts" in kwargs or (len(args) > 1 and isinstance(args[1], Sequence))
        return (ReplyMetric if of_replies else PerDialogueMetric).compute(self, *args, **kwargs)

    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        replies = [(text, dialogue.meta_data) for dialogue in dialogues for text in dialogue.texts(AGENT)]
        found = self.sentence_scores(Batch([], [text for text, _ in replies], [], [info for _, info in replies]))
        ends = np.cumsum([len(dialogue.texts(AGENT)) for dialogue in dialogues])[:-1]
        return {key: [mean_of_known(part.tolist()) for part in np.split(scores, ends)] for key, scores in found.items()}

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        needs = "metric 'persona_consistency' needs sentences in meta_data['persona'], which persona_chat provides"
        personas = meta_values(batch.meta_infos, "persona", lambda each: isinstance(each, list | tuple), needs)
        rows = [row for row, persona in enumerate(personas) for _ in persona]
        facts = [fact for persona in personas for fact in persona]
        consistency, contradiction = np.zeros(len(personas)), np.zeros(len(personas))
        if facts:
            likeliest = self._nli.probabilities([batch.gen_texts[row] for row in rows], facts).argmax(-1)
            # The columns are entailment, contradiction and neutral.
            np.add.at(consistency, rows, np.array([1.0, -1.0, 0.0])[likeliest])
            np.maximum.at(contradiction, rows, likeliest == 1)
        return {
            "consistency/persona": consistency.tolist(),
            "consistency/persona_contradiction": contradiction.tolist(),
        }
