"""Selects the replies or conversations that the page shows: the extremes by each score, and some in between."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rl4dialog.core.types import AGENT, SPEAKERS, Turn
from rl4dialog.runs.conversations import GOAL_KEY, ending
from rl4dialog.runs.report.predictions import Predictions

MAX_SAMPLES = 200
REWARD_KEY, RETURN_KEYS = "reward", ("conversation/return", "episode/return")

_MAX_CHARACTERS = 2000


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
class Sample:
    """One prompt with its replies or conversations; missing scores are ``None``.

    Attributes:
        sample_id: Id of the sample.
        turns: Turns of the prompt, ending with the one to answer.
        given: Turns of the sample at the beginning of its conversations.
        references: Reference replies.
        before: Reply or conversation before training, if any.
        after: Reply or conversation after training, if any.
        scores: Scores before and after training, by key.
        goal: What the partner wants; empty if it has no goal.
    """

    sample_id: str
    turns: list[str]
    given: list[Bubble]
    references: list[str]
    before: str | Conversation | None
    after: str | Conversation | None
    scores: dict[str, tuple[float | None, float | None]]
    goal: str = ""

    @property
    def has_conversations(self) -> bool:
        """Whether there are conversations rather than replies."""
        return isinstance(self.after or self.before, Conversation)


def sort_keys(before: Predictions | None, after: Predictions | None) -> list[str]:
    """Scores to sort samples by, with the reward or return and its parts first."""
    keys = dict.fromkeys(key for predictions in (after, before) if predictions for key in predictions.scores)
    first = ranking_key(keys)
    return sorted(keys, key=lambda key: (key != first, not key.startswith(f"{REWARD_KEY}/")))


def ranking_key(keys: Collection[str]) -> str | None:
    """The score by which samples are selected: the reward, otherwise the return of a conversation, if there is one."""
    return next((key for key in (REWARD_KEY, *RETURN_KEYS) if key in keys), None)


def choose_samples(before: Predictions | None, after: Predictions | None, n: int = MAX_SAMPLES) -> list[Sample]:
    """Select the samples to show.

    If there are more than ``n``, the selection alternates between the best, the worst, the most improved and the most
    degraded ones by reward or return (without one, by each score), and evenly spaced ones.

    Args:
        before: Replies or conversations before training.
        after: Those of the same samples after training.
        n: Maximum number of samples.
    """
    shown = after or before
    if shown is None:
        return []
    keys = sort_keys(before, after)
    rows = range(len(shown))
    chosen: Sequence[int] = rows
    if len(shown) > n:
        chosen = sorted(_in_turn(_rankings(before, after, keys[:1] if ranking_key(keys) else keys, n), n))
    return [_sample(row, before, after, keys) for row in chosen]


def _rankings(
    before: Predictions | None, after: Predictions | None, keys: Sequence[str], n: int
) -> Iterator[Sequence[int]]:
    """Rows ranked by each criterion, most relevant first."""
    shown = after or before
    assert shown is not None
    for key in keys:
        columns = [shown.scores[key]] if key in shown.scores else []
        if before and after and key in before.scores and key in after.scores:
            columns.append(after.scores[key] - before.scores[key])
        for values in columns:
            order = [int(row) for row in np.argsort(values, kind="stable") if not np.isnan(values[row])]
            yield order
            yield order[::-1]
    spaced = [int(row) for row in np.linspace(0, len(shown) - 1, n)]
    yield list(dict.fromkeys([*spaced[:: max(1, n // 20)], *spaced]))


def _in_turn(rankings: Iterator[Sequence[int]], n: int) -> set[int]:
    chosen: set[int] = set()
    for rank in itertools.zip_longest(*rankings):
        for row in rank:
            if len(chosen) == n:
                return chosen
            if row is not None:
                chosen.add(row)
    return chosen


def _sample(row: int, before: Predictions | None, after: Predictions | None, keys: Sequence[str]) -> Sample:
    shown = after or before
    assert shown is not None
    conversation = shown.conversations[row]
    given = conversation.turns[: conversation.n_given] if conversation is not None else ()
    return Sample(
        shown.sample_ids[row],
        [_clipped(turn) for turn in shown.utterances[row]],
        [_bubble(turn, is_given=True) for turn in given],
        [_clipped(reference) for reference in shown.references[row]],
        _reply(before, row) if before else None,
        _reply(after, row) if after else None,
        {key: (_score(before, key, row), _score(after, key, row)) for key in keys},
        str(conversation.meta_data.get(GOAL_KEY, "")) if conversation is not None else "",
    )


def _reply(predictions: Predictions, row: int) -> str | Conversation:
    conversation = predictions.conversations[row]
    if conversation is None:
        return _clipped(predictions.replies[row])
    said = [_bubble(turn) for turn in conversation.said]
    return Conversation(said, ending(conversation), list(conversation.failures))


def _bubble(turn: Turn, is_given: bool = False) -> Bubble:
    has_reward = turn.speaker == AGENT and not is_given and not math.isnan(turn.reward)
    return Bubble(SPEAKERS[turn.speaker], _clipped(turn.for_people), turn.reward if has_reward else None)


def _score(predictions: Predictions | None, key: str, row: int) -> float | None:
    if predictions is None or key not in predictions.scores:
        return None
    value = float(predictions.scores[key][row])
    return None if np.isnan(value) else round(value, 4) + 0.0  # not -0.0


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + " …"
