"""Selects the replies or conversations that the page shows: the extremes by each score, and some in between."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import escape

from rl4dialog.core.types import AGENT, SPEAKERS, Turn
from rl4dialog.runs.conversations import GOAL_KEY, ending
from rl4dialog.runs.report.predictions import Predictions
from rl4dialog.runs.report.word_diff import Piece, word_diff

MAX_SAMPLES, MAX_BYTES = 200, 500_000
REWARD_KEY, RETURN_KEYS = "reward", ("conversation/return", "episode/return")

_MAX_CHARACTERS = 2000
_BYTES_OF_MARKUP = {"card": 400, "answer": 250, "bubble": 120, "score": 60}


@dataclass(frozen=True)
class Bubble:
    """One utterance of a conversation; only those that the agent said in it have a reward."""

    speaker: str
    text: str
    reward: float | None


@dataclass(frozen=True)
class Conversation:
    """A conversation as it is shown, without the turns of its sample.

    Attributes:
        bubbles: What was said, in order.
        ending: How it ended, and its outcome.
        failures: Why the partner did not reach its goal.
    """

    bubbles: list[Bubble]
    ending: str
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """What an evaluation made of a sample.

    Attributes:
        label: Name of the evaluation.
        reply: The reply in pieces, those marked that the answer it is compared with does not have.
        conversation: The conversation, instead of a reply.
        scores: Its scores by key; missing ones are ``None``.
        is_changed: Whether it differs from the first answer.
    """

    label: str
    reply: list[Piece]
    conversation: Conversation | None
    scores: dict[str, float | None]
    is_changed: bool


@dataclass(frozen=True)
class Sample:
    """One prompt with the answers of all evaluations.

    Attributes:
        number: Number of the sample among those that are shown.
        sample_id: Id of the sample.
        turns: Turns of the prompt, ending with the one to answer.
        given: Turns of the sample at the beginning of its conversations.
        references: Reference replies.
        answers: One per evaluation, in order.
        goal: What the partner wants; empty if it has no goal.
    """

    number: int
    sample_id: str
    turns: list[str]
    given: list[Bubble]
    references: list[str]
    answers: list[Answer]
    goal: str = ""

    @property
    def has_conversations(self) -> bool:
        """Whether there are conversations rather than replies."""
        return any(answer.conversation is not None for answer in self.answers)


@dataclass(frozen=True)
class SampleSet:
    """Samples that the page shows in one place.

    Attributes:
        id: Name of the place, unique on the page.
        labels: Names of the evaluations.
        samples: The samples.
        n_samples: Number of samples from which these were chosen.
        of: What they are: ``replies`` or ``conversations``.
        sort_keys: Scores to sort by.
        shown_keys: Scores to show with each answer.
        takes_turns: Whether the first answer is shown with one of the others, which can be chosen; otherwise all are.
    """

    id: str
    labels: list[str]
    samples: list[Sample]
    n_samples: int
    of: str
    sort_keys: list[str]
    shown_keys: list[str]
    takes_turns: bool = True

    @property
    def ranking_key(self) -> str | None:
        """The score by which samples were chosen, if it was one."""
        return ranking_key(self.sort_keys)

    def scores(self, sample: Sample) -> dict[str, list[float | None]]:
        """Scores to sort by, of each answer, by key."""
        return {key: [answer.scores[key] for answer in sample.answers] for key in self.sort_keys}


def sort_keys(evaluations: Sequence[Predictions]) -> list[str]:
    """Scores to sort samples by, with the reward or return and its parts first."""
    keys = dict.fromkeys(key for predictions in reversed(evaluations) for key in predictions.scores)
    first = ranking_key(keys)
    return sorted(keys, key=lambda key: (key != first, not key.startswith(f"{REWARD_KEY}/")))


def ranking_key(keys: Collection[str]) -> str | None:
    """The score by which samples are selected: the reward, otherwise the return of a conversation, if there is one."""
    return next((key for key in (REWARD_KEY, *RETURN_KEYS) if key in keys), None)


def choose_samples(
    evaluations: Mapping[str, Predictions], n: int = MAX_SAMPLES, max_bytes: int = MAX_BYTES
) -> list[Sample]:
    """Select the samples to show.

    If they are more than fit, the selection alternates between the best, the worst, the most improved and the most
    degraded ones by reward or return (without one, by each score), and evenly spaced ones.

    Args:
        evaluations: Replies or conversations about the same samples, by the name of their evaluation.
        n: Maximum number of samples.
        max_bytes: Maximum size of all samples on the page, roughly.
    """
    found = list(evaluations.values())
    if not found or not len(found[0]):
        return []
    keys = sort_keys(found)
    ranked = _in_turn(_rankings(found, keys[:1] if ranking_key(keys) else keys, min(n, len(found[0]))))
    chosen: list[int] = []
    room = max_bytes
    for row in itertools.islice(ranked, n):
        room -= _size(row, found)
        if room < 0 and chosen:
            break
        chosen.append(row)
    return [_sample(number, row, evaluations, keys) for number, row in enumerate(sorted(chosen), start=1)]


def _rankings(evaluations: Sequence[Predictions], keys: Sequence[str], n: int) -> Iterator[Sequence[int]]:
    """Rows ranked by each criterion, most relevant first."""
    first, last = evaluations[0], evaluations[-1]
    for key in keys:
        columns = [last.scores[key]] if key in last.scores else []
        if key in first.scores and key in last.scores and first is not last:
            columns.append(last.scores[key] - first.scores[key])
        for values in columns:
            order = [int(row) for row in np.argsort(values, kind="stable") if not np.isnan(values[row])]
            yield order
            yield order[::-1]
    spaced = [int(row) for row in np.linspace(0, len(last) - 1, n)]
    yield list(dict.fromkeys([*spaced[:: max(1, n // 20)], *spaced]))


def _in_turn(rankings: Iterator[Sequence[int]]) -> Iterator[int]:
    """The rows of all rankings in turn, each once."""
    seen: set[int] = set()
    for rank in itertools.zip_longest(*rankings):
        for row in rank:
            if row is not None and row not in seen:
                seen.add(row)
                yield row


def _size(row: int, evaluations: Sequence[Predictions]) -> int:
    """Bytes of a sample on the page, roughly."""
    shared = evaluations[0]
    size = _BYTES_OF_MARKUP["card"] + sum(map(_bytes, [*shared.utterances[row], *shared.references[row]]))
    for each in evaluations:
        conversation = each.conversations[row]
        said = [each.replies[row]] if conversation is None else [turn.for_people for turn in conversation.turns]
        size += _BYTES_OF_MARKUP["answer"] + _BYTES_OF_MARKUP["score"] * len(each.scores)
        size += sum(_bytes(text) + _BYTES_OF_MARKUP["bubble"] for text in said)
    return size


def _bytes(text: str) -> int:
    return len(escape(_clipped(text)).encode("utf-8", errors="replace"))


def _sample(number: int, row: int, evaluations: Mapping[str, Predictions], keys: Sequence[str]) -> Sample:
    found = list(evaluations.values())
    shared = found[0]
    conversation = shared.conversations[row]
    given = conversation.turns[: conversation.n_given] if conversation is not None else ()
    return Sample(
        number,
        shared.sample_ids[row],
        [_clipped(turn) for turn in shared.utterances[row]],
        [_bubble(turn, is_given=True) for turn in given],
        [_clipped(reference) for reference in shared.references[row]],
        [_answer(label, each, row, found, keys) for label, each in evaluations.items()],
        str(conversation.meta_data.get(GOAL_KEY, "")) if conversation is not None else "",
    )


def _answer(
    label: str, predictions: Predictions, row: int, evaluations: Sequence[Predictions], keys: Sequence[str]
) -> Answer:
    """An answer, compared with the first one; the first one with the last."""
    first = evaluations[0]
    other = evaluations[-1] if predictions is first else first
    conversation, reply = predictions.conversations[row], _clipped(predictions.replies[row])
    scores = {key: _score(predictions, key, row) for key in keys}
    if conversation is None:
        changed = reply != _clipped(first.replies[row])
        return Answer(label, word_diff(reply, _clipped(other.replies[row])), None, scores, changed)
    said = [_bubble(turn) for turn in conversation.said]
    before = first.conversations[row]
    changed = before is None or said != [_bubble(turn) for turn in before.said]
    return Answer(label, [], Conversation(said, ending(conversation), list(conversation.failures)), scores, changed)


def _bubble(turn: Turn, is_given: bool = False) -> Bubble:
    has_reward = turn.speaker == AGENT and not is_given and not math.isnan(turn.reward)
    return Bubble(SPEAKERS[turn.speaker], _clipped(turn.for_people), turn.reward if has_reward else None)


def _score(predictions: Predictions, key: str, row: int) -> float | None:
    if key not in predictions.scores:
        return None
    value = float(predictions.scores[key][row])
    return None if not math.isfinite(value) else round(value, 4) + 0.0  # not -0.0


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + " …"
