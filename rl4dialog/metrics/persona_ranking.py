"""Ranking of the true persona of a speaker among others, by what the speaker said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from rl4dialog.core.arguments import Count, Fraction, NonNegativeInt, Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.types import PARTNER, Dialogue
from rl4dialog.data.dialogue_format import FormatName
from rl4dialog.metrics.frozen_language_model import FrozenLanguageModel
from rl4dialog.metrics.per_dialogue_metric import PerDialogueMetric
from rl4dialog.metrics.persona_candidates import SPEAKERS, Persona, PersonaCandidates, Side
from rl4dialog.metrics.persona_scorers import Case, EmbeddingScorer, LikelihoodScorer, PersonaScorer
from rl4dialog.metrics.text_embedders import HiddenMeanEmbedder, TextEmbedder, TfidfEmbedder

_WHO = "persona_ranking"


class PersonaRanking:
    """What the metric and the reward have in common: candidates, and their comparison with what was said.

    Args:
        side: Whose utterances are read, and whose persona is to be found: the ``partner``'s, including those of the
            sample, or the ``agent``'s, which measures its consistency.
        scorer: ``embedding`` compares utterances with facts; ``likelihood`` asks a language model how likely they are
            for a speaker with each persona.
        embedder: For ``embedding``: ``tfidf`` needs no model, ``hidden_mean`` is the mean hidden state of one.
        model_name: Folder or hub id of a decoder-only language model, for ``hidden_mean`` and ``likelihood``. For the
            latter, it must have learned to speak as a persona.
        layer: For ``hidden_mean``: index among the hidden states; -1 is the last layer.
        margin: For ``embedding``: difference of the distances from which on a false fact is far enough.
        format: For ``likelihood``: format of the model's prompts, ``eou`` or ``chat_template``.
        temperature: For ``likelihood``: divides the log-likelihoods; above 1 if the model is too certain.
        n_distractors: Number of other personas. They are drawn from the run's train split, once for each sample.
        hard: Number of facts that each of them shares with the true persona; with 0, only by chance.
        seed: Random seed of the distractors.
        batch_size: Texts per forward pass of a model.
        personas: Personas of the run; passed by the toolkit.

    Raises:
        ConfigError: If an argument does not fit the others, the samples have too few personas, or the model has random
            weights.
        DataError: If the samples have no personas.
        ModelError: If the model cannot be loaded.
    """

    def __init__(
        self,
        personas: Callable[[str], Sequence[Persona]],
        side: Side = "partner",
        scorer: Literal["embedding", "likelihood"] = "embedding",
        embedder: Literal["tfidf", "hidden_mean"] = "tfidf",
        model_name: str | None = None,
        layer: int = -1,
        margin: Fraction = 1.0,
        format: FormatName = "eou",
        temperature: Positive = 1.0,
        n_distractors: Count = 19,
        hard: NonNegativeInt = 0,
        seed: int = 0,
        batch_size: Count = 32,
    ) -> None:
        needs_model = scorer == "likelihood" or embedder == "hidden_mean"
        if needs_model != (model_name is not None):
            chosen = f"scorer: {scorer}" + (f" with embedder: {embedder}" if scorer == "embedding" else "")
            raise ConfigError(f"{_WHO}: {chosen} {'needs a' if needs_model else 'has no use for'} model_name")
        self._speaker = SPEAKERS[side]
        self._candidates = PersonaCandidates(personas, side, n_distractors, hard, seed, _WHO)
        self._scorer: PersonaScorer
        if scorer == "likelihood":
            assert model_name is not None
            model = FrozenLanguageModel(model_name, _WHO, batch_size)
            self._scorer = LikelihoodScorer(model, format, temperature, _WHO)
        else:
            embed: TextEmbedder = TfidfEmbedder(self._candidates.facts)
            if model_name is not None:
                embed = HiddenMeanEmbedder(FrozenLanguageModel(model_name, _WHO, batch_size), layer, _WHO)
            self._scorer = EmbeddingScorer(embed, margin)

    def _case(self, dialogue: Dialogue) -> Case:
        first = 0 if self._speaker == PARTNER else dialogue.n_given
        read = [i for i in range(first, len(dialogue.turns)) if dialogue.turns[i].speaker == self._speaker]
        return Case(dialogue.turns, read, self._candidates(dialogue))

    def ranks(self, dialogues: Sequence[Dialogue]) -> list[dict[str, float]]:
        """Numbers of `ranking_scores` for each conversation, and its ``potential``."""
        fits = self._scorer([self._case(dialogue) for dialogue in dialogues])
        return [{**ranking_scores(fit.scores[-1].tolist()), "potential": float(fit.potential[-1])} for fit in fits]


class PersonaRankingMetric(PersonaRanking, PerDialogueMetric):
    """Rank of a speaker's persona among others, by what the speaker said in the conversation.

    ``p@1`` is 1 if the true persona is ranked first. ``r@5`` and ``r@10`` are 1 if it is among the first 5 or 10, and
    ``p@5`` is the share of the first 5 that are the true one, which is at most 0.2. ``mrr`` is the mean reciprocal
    rank. Candidates that fit equally well are in random order, of which these are the expected values. ``potential`` is
    what the reward ``persona_ranking`` increases.

    convogym's numbers of the same names rank facts instead of personas, and are not comparable.
    """

    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        found = self.ranks(dialogues)
        return {f"persona_ranking/{key}": [each[key] for each in found] for key in found[0]}


def ranking_scores(scores: Sequence[float]) -> dict[str, float]:
    """Compute the expected ``p@1``, ``p@5``, ``r@5``, ``r@10`` and ``mrr`` if ties are broken at random.

    Args:
        scores: Scores of the candidates, of which the first one is the true one. Those that differ by less than 1e-9
            are equal.
    """
    differences = np.asarray(scores[1:]) - scores[0]
    n_better = int((differences > 1e-9).sum())
    n_equal = int((np.abs(differences) <= 1e-9).sum()) + 1
    ranks = np.arange(n_better + 1, n_better + n_equal + 1)
    recall = {k: float((ranks <= k).mean()) for k in (1, 5, 10)}
    return {
        "p@1": recall[1],
        "p@5": recall[5] / 5,
        "r@5": recall[5],
        "r@10": recall[10],
        "mrr": float((1 / ranks).mean()),
    }
