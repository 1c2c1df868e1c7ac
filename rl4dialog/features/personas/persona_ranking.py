"""Ranking of a speaker's persona among others, by what the speaker said: candidates, scorers, metric and reward.

Scorers say how well what was said fits each persona, after each utterance. With the true persona p_1, p_2, ..., the
facts q_1, q_2, ... of all distractors, and ``[x]+ = max(x, 0)``:

- `EmbeddingScorer`: the distance d(s, f) of what was said, s, to a fact f is 1 - cos to the nearest utterance, and at
  most 1. A persona's score is -mean_i d(s, p_i), and the potential -mean_ij [d(s, p_i) - d(s, q_j) + margin]+.
- `LikelihoodScorer`: a persona's score is the sum of log p(utterance | persona, history) under a frozen language model,
  divided by ``temperature``. The potential is the log-softmax of the true persona's score: the log posterior, in nats,
  if all candidates are equally likely before. It starts at -log(number of candidates).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from rl4dialog.core.arguments import Count, Fraction, NonNegativeInt, Positive
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.protocols import BatchedConversationReward
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName
from rl4dialog.features.personas.embedders import HiddenMeanEmbedder, TextEmbedder, TfidfEmbedder
from rl4dialog.scores.base import PerDialogueMetric, meta_data_there
from rl4dialog.scores.language_models import FrozenLanguageModel, cosines
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.text.prompts import History, encode_reply

Persona = tuple[str, ...]


class Case(NamedTuple):
    """A conversation, the numbers of the utterances that are read, and who could have said them, the true one first."""

    turns: Sequence[Turn]
    read: Sequence[int]
    candidates: Sequence[Persona]

    @property
    def texts(self) -> list[str]:
        return [self.turns[i].text for i in self.read]


class CandidateScores(NamedTuple):
    """How well a conversation fits its candidates, after 0, 1, ... U utterances."""

    scores: np.ndarray  # of each candidate, higher for a better fit. Shape (U + 1, candidates)
    potential: np.ndarray  # how well the true persona can be told from the others. Shape (U + 1,)


class EmbeddingScorer:
    """Similarity of utterances and facts, which have the same embedder.

    An utterance that was said before, or that is no nearer to any fact than earlier ones, changes nothing.
    """

    def __init__(self, embed: TextEmbedder, margin: float) -> None:
        self.embed, self._margin = embed, margin

    def __call__(self, cases: Sequence[Case]) -> list[CandidateScores]:
        return [self._scores_of(case) for case in cases]

    def _scores_of(self, case: Case) -> CandidateScores:
        facts = [fact for persona in case.candidates for fact in persona]
        # Each text once: equal rows of a matrix product can differ in their last digits.
        rows = {text: i for i, text in enumerate(dict.fromkeys(case.texts))}
        said = cosines(self.embed([*rows]), self.embed(facts)) if case.read else np.zeros((0, len(facts)))
        said = said[[rows[text] for text in case.texts]]
        nearest = np.maximum.accumulate(np.concatenate([np.zeros((1, len(facts))), said]), axis=0)
        ends = np.cumsum([len(persona) for persona in case.candidates])
        scores = np.stack([part.mean(-1) - 1 for part in np.split(nearest, ends[:-1], axis=1)], axis=1)
        true, false = nearest[:, : ends[0], None], nearest[:, None, ends[0] :]
        return CandidateScores(scores, -np.maximum(false - true + self._margin, 0).mean((1, 2)))

    def triplet_losses(self, case: Case) -> np.ndarray:
        """Convogym's ranking loss after 0, 1, ... utterances: sum_ib [|s - p_i| - |s - q_bi| + margin]+.

        s is the embedding of all that was said, the zero vector before. The false facts are taken in blocks b, each as
        long as the true persona; an incomplete last block is left out. Shape (U + 1,).
        """
        true, *others = case.candidates
        facts = self.embed(true)
        false = self.embed([fact for persona in others for fact in persona])
        texts = [" ".join(case.texts[:n]) for n in range(1, len(case.read) + 1)]
        states = np.concatenate([np.zeros((1, facts.shape[1])), *([self.embed(texts)] if texts else [])])
        to_true, to_false = (np.linalg.norm(states[:, None] - each[None], axis=-1) for each in (facts, false))
        n_blocks = len(false) // len(true)
        blocks = to_false[:, : n_blocks * len(true)].reshape(len(states), n_blocks, len(true))
        return np.asarray(np.maximum(to_true[:, None] - blocks + self._margin, 0).sum((1, 2)))


class LikelihoodScorer:
    """Likelihood of the utterances under a frozen language model that has each of the personas in turn.

    The speaker's utterances are those of the assistant, as for the partner ``language_model``. They are scored with
    their ends, and those longer than half of the model's positions are cut.
    """

    def __init__(self, model: FrozenLanguageModel, format: FormatName, temperature: float, who: str) -> None:
        self._model, self._temperature = model, temperature
        if format != "eou" and model.tokenizer.eos_token_id is None:
            raise ModelError(f"{who}: the tokenizer has no end-of-sequence token to end an utterance; use format: eou")
        self._format = DialogueFormat(format, None, ChatTemplate(model.tokenizer), in_conversation=True)
        self._frame = self._format.frame(with_system=True)

    def __call__(self, cases: Sequence[Case]) -> list[CandidateScores]:
        rows: list[_Row] = []
        places = []
        for case_number, case in enumerate(cases):
            for candidate, persona in enumerate(case.candidates):
                for row in self._rows(case, " ".join(persona)):
                    rows.append(row)
                    places.append((case_number, candidate))
        found = [np.zeros((len(case.read), len(case.candidates))) for case in cases]
        log_probs = self._model.token_log_probs([row.ids for row in rows])
        for (case_number, candidate), row, each in zip(places, rows, log_probs, strict=True):
            for number, start, end in row.scored:
                found[case_number][number, candidate] = each[start - 1 : end - 1].sum()
        return [self._scores_of(log_likelihoods) for log_likelihoods in found]

    def _scores_of(self, log_likelihoods: np.ndarray) -> CandidateScores:
        start = np.zeros((1, log_likelihoods.shape[1]))
        scores = np.concatenate([start, log_likelihoods.cumsum(0)]) / self._temperature
        return CandidateScores(scores, scores[:, 0] - np.logaddexp.reduce(scores, axis=1))

    def _rows(self, case: Case, persona: str) -> Iterator[_Row]:
        """Encode a conversation as the speaker sees it; several rows if it is too long for one."""
        if not case.read:
            return
        texts, read = _alternating(case)
        tokenizer, end, room = self._model.tokenizer, self._end_of_turn, self._model.max_length // 2
        first = texts[: read[0]]
        prompt = self._format.prompt(first, persona) if first else self._format.opening_prompt(persona)
        replies = [encode_reply(tokenizer, texts[i], end.marker, room, prompt) for i in read]
        limit = self._model.max_length - max(map(len, replies))
        history = History(tokenizer, prompt, limit, frame=self._frame)
        row = _Row([], [])
        for number, (i, reply) in enumerate(zip(read, replies, strict=True)):
            before = history.prompt_ids
            if before[: len(row.ids)] != row.ids:
                yield row
                row = _Row([], [])
            row.ids[:] = [*before, *reply]
            row.scored.append((number, len(before), len(row.ids)))
            for own in range(i, read[number + 1] if number + 1 < len(read) else i, 2):
                own_ids = reply if own == i else encode_reply(tokenizer, texts[own], end.marker, room, prompt)
                history.go_on(own_ids, texts[own], texts[own + 1], end)
        yield row

    @cached_property
    def _end_of_turn(self) -> EndOfTurn:
        tokenizer = self._model.tokenizer
        ids = end_of_sequence_ids(tokenizer, self._model.config, self._model.generation_config)
        return EndOfTurn(tokenizer, ids, self._format.end_of_turn)


class _Row(NamedTuple):
    """Token ids, and the utterances that are scored in them: number, start and end."""

    ids: list[int]
    scored: list[tuple[int, int, int]]


def _alternating(case: Case) -> tuple[list[str], list[int]]:
    """Return all utterances with an empty one between two of the same side, and the numbers of those that are read."""
    texts: list[str] = []
    places = []
    for i, turn in enumerate(case.turns):
        if i and turn.speaker == case.turns[i - 1].speaker:
            texts.append("")
        places.append(len(texts))
        texts.append(turn.text)
    return texts, [places[i] for i in case.read]


_WHO = "persona_ranking"
Side = Literal["partner", "agent"]
SPEAKERS = {"partner": PARTNER, "agent": AGENT}
PERSONA_KEYS = {"partner": "partner_persona", "agent": "persona"}
"""Keys of the meta data with the facts about each side."""


class PersonaCandidates:
    """Draws the candidates of a conversation, which depend only on the seed and the sample.

    ``personas`` returns those of the train split under a key of the meta data; the rest is as for `PersonaRanking`.
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
        found = self._scorer([self._case(dialogue) for dialogue in dialogues])
        return [{**ranking_scores(each.scores[-1].tolist()), "potential": float(each.potential[-1])} for each in found]


class PersonaRankingMetric(PersonaRanking, PerDialogueMetric):
    """Rank of a speaker's persona among others, by what the speaker said in the conversation.

    ``p@1`` is 1 if the true persona is ranked first. ``r@5`` and ``r@10`` are 1 if it is among the first 5 or 10, and
    ``p@5`` is the share of the first 5 that are the true one, which is at most 0.2. ``mrr`` is the mean reciprocal
    rank; with ties, these are expected values. ``potential`` is what the reward ``persona_ranking`` increases.

    convogym's numbers of the same names rank facts instead of personas, and are not comparable.
    """

    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        found = self.ranks(dialogues)
        return {f"persona_ranking/{key}": [each[key] for each in found] for key in found[0]}


def ranking_scores(scores: Sequence[float]) -> dict[str, float]:
    """Expected ``p@1``, ``p@5``, ``r@5``, ``r@10`` and ``mrr`` of the first candidate, with ties within 1e-9."""
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
    `EmbeddingScorer` and `LikelihoodScorer`). With ``scorer: likelihood``, it is the log posterior probability of the
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
            after = [each.potential for each in self._scorer(cases)]
        values = (
            each[np.searchsorted(case.read, dialogue.turn_bounds)]
            for dialogue, case, each in zip(dialogues, cases, after, strict=True)
        )
        return [each[1:] if self._shaping == "every_turn" else np.diff(each) for each in values]

    def _payment(self, by_turn: np.ndarray, over: bool) -> float | list[float]:
        if self._shaping == "end":
            return float(by_turn.sum()) if over else 0.0
        return float(by_turn[-1]) if self._pays_now else by_turn.tolist()
