"""Consistency of replies with the speaker's persona, by natural language inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import MetricResult
from rl4dialog.core.types import AGENT, Dialogue
from rl4dialog.metrics.checks import meta_data_there
from rl4dialog.metrics.nli import DEFAULT_MODEL, NliModel
from rl4dialog.metrics.per_dialogue_metric import PerDialogueMetric, mean_of_known
from rl4dialog.metrics.sentence_metric import SentenceMetric


class PersonaConsistencyMetric(SentenceMetric, PerDialogueMetric):
    """C score of the replies, and the share of replies that contradict the persona.

    It measures replies, and conversations, whose scores are means over all utterances of the agent.

    The C score, ``consistency/persona`` (Madotto et al. 2019, "Personalizing Dialogue Agents via Meta-Learning"), adds
    1 for each sentence of the persona that follows from the reply, and -1 for each that the reply contradicts. The
    share of replies with at least one contradiction is ``consistency/persona_contradiction`` (Welleck et al. 2019,
    arXiv 1811.00671).

    Args:
        model_name: Folder or hub id of a model for natural language inference.
        batch_size: Pairs of reply and sentence per forward pass.

    Raises:
        ModelError: If the model cannot be loaded, or its labels do not identify the classes.
    """

    needs_references = False

    def __init__(self, model_name: str = DEFAULT_MODEL, batch_size: Count = 64) -> None:
        self._nli = NliModel(model_name, batch_size, "metric 'persona_consistency'")

    @overload
    def compute(self, dialogues: list[Dialogue], model: Any = None, split_name: str | None = None) -> MetricResult: ...

    @overload
    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult: ...

    def compute(self, *args: Any, **kwargs: Any) -> MetricResult:
        """Measure replies, like a ``BaseMetric``, or conversations, like a ``DialogueMetric``."""
        of_replies = "generated_texts" in kwargs or (len(args) > 1 and isinstance(args[1], Sequence))
        return (SentenceMetric if of_replies else PerDialogueMetric).compute(self, *args, **kwargs)

    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        replies = [(text, dialogue.meta_data) for dialogue in dialogues for text in dialogue.texts(AGENT)]
        found = self.sentence_scores([], [text for text, _ in replies], [], [info for _, info in replies])
        ends = np.cumsum([len(dialogue.texts(AGENT)) for dialogue in dialogues])[:-1]
        return {key: [mean_of_known(part.tolist()) for part in np.split(scores, ends)] for key, scores in found.items()}

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        personas = _personas_of(meta_infos, len(generated_texts))
        rows = [row for row, persona in enumerate(personas) for _ in persona]
        facts = [fact for persona in personas for fact in persona]
        consistency, contradiction = np.zeros(len(personas)), np.zeros(len(personas))
        if facts:
            likeliest = self._nli.probabilities([generated_texts[row] for row in rows], facts).argmax(-1)
            # The columns are entailment, contradiction and neutral.
            np.add.at(consistency, rows, np.array([1.0, -1.0, 0.0])[likeliest])
            np.maximum.at(contradiction, rows, likeliest == 1)
        return {
            "consistency/persona": consistency.tolist(),
            "consistency/persona_contradiction": contradiction.tolist(),
        }


def _personas_of(meta_infos: list[dict[str, Any]] | None, n_texts: int) -> list[list[str]]:
    personas = []
    for row, info in enumerate(meta_infos if meta_infos is not None else [None] * n_texts):
        persona = (info or {}).get("persona")
        if not isinstance(persona, (list, tuple)):
            raise DataError(
                f"metric 'persona_consistency' needs samples with a list of sentences in meta_data['persona'], which "
                f"the datapool persona_chat provides; text {row} has {meta_data_there(info, 'persona')}"
            )
        personas.append(list(persona))
    return personas
