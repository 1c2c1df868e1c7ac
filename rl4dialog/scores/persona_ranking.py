"""Ranking of a speaker's persona among others, by what the speaker said: candidates, metric and reward."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from rl4dialog.core.arguments import Count, Fraction, NonNegativeInt, Positive
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.protocols import BatchedConversationReward
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, Dialogue
from rl4dialog.data.dialogue_format import FormatName
from rl4dialog.scores.base import PerDialogueMetric, meta_data_there
from rl4dialog.scores.language_models import FrozenLanguageModel, HiddenMeanEmbedder, TextEmbedder, TfidfEmbedder
from rl4dialog.scores.persona_scorers import Case, EmbeddingScorer, LikelihoodScorer, Persona

_WHO = "persona_ranking"
Side = Literal["partner", "agent"]
SPEAKERS = {"partner": PARTNER, "agent": AGENT}
PERSONA_KEYS = {"partner": "partner_persona", "agent": "persona"}
"""Keys of the meta data with the facts about each side."""


class PersonaCandidates:
    """Draws the candidates of a conversation, which depend only on the seed and the sample.

    ``personas`` returns those of the run's train split, given a key of the meta data. The other arguments are those of
    `PersonaRanking`.
    """

    def __init__(
        self, personas: Callable[[str], Sequence[Persona]], side: Side, n_distractors: int, hard: int, seed: int
    ) -> None:
        self._key = PERSONA_KEYS[side]
        self._personas = list({frozenset(persona): persona for persona in personas(self._key)}.values())
        self._n_distractors, self._hard, self._seed = n_distractors, hard, seed
        n, shortest = len(self._personas), min(map(len, self._personas), default=0)
        if not n:
            raise DataError(
                f"{_WHO} needs samples with a list of sentences in meta_data[{self._key!r}], which the datapools "
                f"get_acquainted and persona_pairs provide, and persona_chat from files with both personas"
            )
        if n <= n_distractors:
            problem = f"needs at least {n_distractors + 1} different personas; the train split has {n}"
            raise ConfigError(f"{_WHO}: n_distractors: {n_distractors} {problem}")
        if hard >= shortest:
            problem = f"facts in common leave no difference from a persona of {shortest} facts; lower it"
            raise ConfigError(f"{_WHO}: hard: {hard} {problem}")

    @property
    def facts(self) -> list[str]:
        return list(dict.fromkeys(fact for persona in self._personas for fact in persona))

    def __call__(self, dialogue: Dialogue) -> list[Persona]:
        """Return the true persona of a conversation, followed by the distractors."""
        found = dialogue.meta_data.get(self._key)
        if not isinstance(found, list | tuple) or not found:
            there = f"sample {dialogue.id!r} has {meta_data_there(dialogue.meta_data, self._key)}"
            raise DataError(f"{_WHO} needs a list of sentences in meta_data[{self._key!r}]; {there}")
        true = tuple(found)
        rng = random.Random(derive_seed(self._seed, "persona_ranking", dialogue.id))
        chosen = {frozenset(true): true}
        for i in _random_order(len(self._personas), rng):
            other = self._distractor(true, self._personas[i], rng)
            if other is not None and set(other) - set(true):
                chosen.setdefault(frozenset(other), other)
            if len(chosen) > self._n_distractors:
                return list(chosen.values())
        problem = f"only {len(chosen) - 1} personas differ from that of sample {dialogue.id!r}"
        raise DataError(f"{_WHO}: {problem}; lower n_distractors: {self._n_distractors}")

    def _distractor(self, true: Persona, drawn: Persona, rng: random.Random) -> Persona | None:
        if not self._hard:
            return drawn
        # The shared facts replace those of the drawn persona with which they have most words in common, so that no one
        # has two pets. What is left is cut to the length of the true persona.
        shared = [true[i] for i in sorted([*_random_order(len(true), rng)][: self._hard])]
        own = [fact for fact in drawn if fact not in true]
        for fact in shared[: len(own)]:
            own.remove(max(own, key=lambda other: len(_words(other) & _words(fact))))
        n_own = len(true) - self._hard
        return (*shared, *own[:n_own]) if len(own) >= n_own else None


def _words(text: str) -> set[str]:
    return set(text.lower().split())


def _random_order(n: int, rng: random.Random) -> Iterator[int]:
    """Yield the numbers below n in random order; the first ones cost no more for a large n (Fisher and Yates)."""
    moved: dict[int, int] = {}
    for i in range(n):
        # random() alone has the same sequence in all versions of Python.
        j = i + int(rng.random() * (n - i))
        yield moved.get(j, j)
        moved[j] = moved.get(i, i)


class PersonaRanking:
    """What the metric and the reward have in common: candidates, and their comparison with what was said.

    Args:
        side: Whose utterances are read, and whose persona is to be found: the ``partner``'s, including those of the
            sample, or the ``agent``'s, which measures its consistency.
        scorer: ``embedding`` compares utterances with facts; ``likelihood`` asks a language model how likely they are
            for a speaker with each persona.
        embedder: For ``embedding``: ``tfidf`` needs no model, ``hidden_mean`` is the mean hidden state of one.
        model_name: Folder or hub id of a decoder-only language model, for ``hidden_mean``, and for ``likelihood``, for
            which it must have learned to speak as a persona.
        layer: For ``hidden_mean``: index among the hidden states; -1 is the last layer.
        margin: For ``embedding``: difference of the distances from which on a false fact is far enough.
        format: For ``likelihood``: format of the model's prompts, ``eou`` or ``chat_template``.
        temperature: For ``likelihood``: divides the log-likelihoods; above 1 if the model is too certain.
        n_distractors: Number of other personas. They are drawn from the run's train split, once for each sample.
        hard: Number of facts that each of them shares with the true persona; with 0, only by chance.
        seed: Random seed of the distractors.
        batch_size: Texts per forward pass of a model.
        personas: Personas of the run; passed by the toolkit.
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
        self._candidates = PersonaCandidates(personas, side, n_distractors, hard, seed)
        self._scorer: EmbeddingScorer | LikelihoodScorer
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
    """The expected ``p@1``, ``p@5``, ``r@5``, ``r@10`` and ``mrr`` of the first candidate if ties are broken at random.

    Scores that differ by less than 1e-9 are equal.
    """
    differences = np.asarray(scores[1:]) - scores[0]
    n_better = int((differences > 1e-9).sum())
    n_equal = int((np.abs(differences) <= 1e-9).sum()) + 1
    ranks = np.arange(n_better + 1, n_better + n_equal + 1)
    recall = {k: float((ranks <= k).mean()) for k in (1, 5, 10)}
    found = {"p@1": recall[1], "p@5": recall[5] / 5, "r@5": recall[5], "r@10": recall[10]}
    return {**found, "mrr": float((1 / ranks).mean())}


class PersonaRankingReward(PersonaRanking, BatchedConversationReward):
    """How much better the partner's persona can be told from others, by what the partner said in each turn.

    The potential of a conversation says how well the true persona is told from the distractors (see
    :mod:`rl4dialog.scores.persona_scorers`). With ``scorer: likelihood``, it is the log posterior probability of the
    true persona, and the reward of a turn is the information that it gave, in nats. The rewards are paid when the
    conversation is over, each for its turn.

    Args:
        shaping: ``potential`` pays for each turn the change of the potential (Ng, Harada and Russell 1999), so that
            turns that tell nothing new earn nothing. ``end`` pays their sum for the last turn. ``every_turn`` pays for
            each turn the negative ranking loss of convogym, with the distances of the chosen embedder. It is for
            comparisons: every further turn costs something, and the scale depends on the lengths of the personas.
            Unlike convogym's, the distractors are the same in all turns of a conversation.
        pays_now: Whether a turn is paid as soon as it is over, instead of all turns at the end; passed by the toolkit.
    """

    def __init__(
        self, shaping: Literal["potential", "end", "every_turn"] = "potential", pays_now: bool = False, **kwargs: Any
    ) -> None:
        if shaping == "every_turn" and kwargs.get("scorer", "embedding") != "embedding":
            raise ConfigError("reward 'persona_ranking': shaping: every_turn needs scorer: embedding")
        if pays_now and kwargs.get("embedder") == "hidden_mean":
            # A text's vector must not depend on the texts beside it in a batch, which a resumed run has not read.
            kwargs["batch_size"] = 1
        super().__init__(**kwargs)
        self.needs_partner = kwargs.get("side", "partner") == "partner"
        self._shaping, self._pays_now = shaping, pays_now

    def __call__(self, dialogues: list[Dialogue], overs: list[bool]) -> list[float | list[float]]:
        due = [over or self._pays_now for over in overs]
        by_turn = iter(self._by_turn([each for each, is_due in zip(dialogues, due, strict=True) if is_due]))
        pairs = zip(overs, due, strict=True)
        return [self._payment(next(by_turn), over) if is_due else 0.0 for over, is_due in pairs]

    def _by_turn(self, dialogues: Sequence[Dialogue]) -> list[np.ndarray]:
        """Rewards of all turns of each conversation."""
        cases = [self._case(dialogue) for dialogue in dialogues]
        if self._shaping == "every_turn":
            assert isinstance(self._scorer, EmbeddingScorer)
            after = [-self._scorer.triplet_losses(case) for case in cases]
        else:
            after = [fit.potential for fit in self._scorer(cases)]
        values = (
            each[np.searchsorted(case.read, dialogue.turn_bounds)]
            for dialogue, case, each in zip(dialogues, cases, after, strict=True)
        )
        return [each[1:] if self._shaping == "every_turn" else np.diff(each) for each in values]

    def _payment(self, by_turn: np.ndarray, over: bool) -> float | list[float]:
        if self._shaping == "end":
            return float(by_turn.sum()) if over else 0.0
        return float(by_turn[-1]) if self._pays_now else by_turn.tolist()
