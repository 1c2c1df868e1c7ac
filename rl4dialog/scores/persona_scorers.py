"""How well what a speaker said fits each of several personas, after each of its utterances.

With the true persona p_1, p_2, ..., the facts q_1, q_2, ... of all distractors, and ``[x]+ = max(x, 0)``:

- `EmbeddingScorer`: the distance d(s, f) of what was said, s, to a fact f is 1 - cos to the nearest utterance, and at
  most 1. A persona's score is -mean_i d(s, p_i), and the potential -mean_ij [d(s, p_i) - d(s, q_j) + margin]+.
- `LikelihoodScorer`: a persona's score is the sum of log p(utterance | persona, history) under a frozen language model,
  divided by ``temperature``. The potential is the log-softmax of the true persona's score: the log posterior, in nats,
  if all candidates are equally likely before. It starts at -log(number of candidates).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rl4dialog.core.errors import ModelError
from rl4dialog.core.types import Turn
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName
from rl4dialog.scores.language_models import FrozenLanguageModel, TextEmbedder, cosines
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


class Fit(NamedTuple):
    """How well a conversation fits its candidates, after 0, 1, ... U utterances."""

    scores: np.ndarray  # of each candidate, higher for a better fit. Shape (U + 1, candidates)
    potential: np.ndarray  # how well the true persona can be told from the others. Shape (U + 1,)


class EmbeddingScorer:
    """Similarity of utterances and facts, which have the same embedder.

    An utterance that was said before, or that is no nearer to any fact than earlier ones, changes nothing.
    """

    def __init__(self, embed: TextEmbedder, margin: float) -> None:
        self.embed, self._margin = embed, margin

    def __call__(self, cases: Sequence[Case]) -> list[Fit]:
        return [self._fit(case) for case in cases]

    def _fit(self, case: Case) -> Fit:
        facts = [fact for persona in case.candidates for fact in persona]
        # Each text once: equal rows of a matrix product can differ in their last digits.
        rows = {text: i for i, text in enumerate(dict.fromkeys(case.texts))}
        said = cosines(self.embed([*rows]), self.embed(facts)) if case.read else np.zeros((0, len(facts)))
        said = said[[rows[text] for text in case.texts]]
        nearest = np.maximum.accumulate(np.concatenate([np.zeros((1, len(facts))), said]), axis=0)
        ends = np.cumsum([len(persona) for persona in case.candidates])
        scores = np.stack([part.mean(-1) - 1 for part in np.split(nearest, ends[:-1], axis=1)], axis=1)
        true, false = nearest[:, : ends[0], None], nearest[:, None, ends[0] :]
        return Fit(scores, -np.maximum(false - true + self._margin, 0).mean((1, 2)))

    def triplet_losses(self, case: Case) -> np.ndarray:
        """Convogym's ranking loss after 0, 1, ... utterances: the sum over i and b of [|s - p_i| - |s - q_bi| + 1]+.

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
        return np.asarray(np.maximum(to_true[:, None] - blocks + 1, 0).sum((1, 2)))


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

    def __call__(self, cases: Sequence[Case]) -> list[Fit]:
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
        return [self._fit(log_likelihoods) for log_likelihoods in found]

    def _fit(self, log_likelihoods: np.ndarray) -> Fit:
        start = np.zeros((1, log_likelihoods.shape[1]))
        scores = np.concatenate([start, log_likelihoods.cumsum(0)]) / self._temperature
        return Fit(scores, scores[:, 0] - np.logaddexp.reduce(scores, axis=1))

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
