"""What a report shows of single samples: replies or conversations, why they failed, and utterances by advantage."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
from markupsafe import escape

from rl4dialog.core.types import AGENT, SPEAKERS, Turn
from rl4dialog.runs.reading import GOAL_KEY, Predictions, aligned, ending
from rl4dialog.runs.report.metrics import direction, is_of_reward, ranking_key, repeated_keys, sort_keys
from rl4dialog.runs.summary import is_headline

MAX_SAMPLES, MAX_BYTES = 200, 500_000
N_UTTERANCES = 10

_MAX_CHARACTERS = 2000
_N_SCORES = 4  # shown with each answer, unless the reward has more parts
_BYTES_OF_MARKUP = {"card": 400, "answer": 250, "bubble": 120, "score": 60}
_N_EXAMPLES = 3
_WORDS = re.compile(r"\s*\S+|\s+$")


class Piece(NamedTuple):
    """A part of a text, and whether the other text lacks it."""

    text: str
    is_new: bool


class Bubble(NamedTuple):
    """One utterance of a conversation; only those that the agent said in it have a reward, and perhaps a value."""

    speaker: str
    text: str
    reward: float | None
    value: float | None = None  # of the state before it


@dataclass(frozen=True)
class Answer:
    """What an evaluation made of a sample: a reply or a conversation, and its scores; missing ones are ``None``.

    Pieces of the reply are marked that the answer it is compared with does not have. A conversation has ``bubbles``
    without the turns of its sample, and says why its goal was not reached. The answer ``is_changed`` if it differs from
    the first one.
    """

    label: str
    scores: dict[str, float | None]
    is_changed: bool
    reply: Sequence[Piece] = ()
    bubbles: list[Bubble] | None = None
    ending: str = ""
    failures: Sequence[str] = ()


@dataclass(frozen=True)
class Sample:
    """One prompt, whose turns end with the one to answer, with the answers of all evaluations in order.

    ``given`` are turns of the sample at the beginning of its conversations, and ``goal`` is what the partner wants, if
    any.
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
        return any(answer.bubbles is not None for answer in self.answers)


@dataclass(frozen=True)
class SampleSet:
    """Samples that the page shows in one place, whose id is unique, chosen from ``n_samples`` replies or conversations.

    They can be sorted by some scores, and some are shown with each answer. If it ``takes_turns``, the first answer is
    shown with one of the others, which can be chosen; otherwise all are.
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


def what_they_are(evaluations: Sequence[Predictions]) -> str:
    """The name of what evaluations consist of: ``conversations``, ``replies`` or ``episodes``."""
    if any(each.has_conversations for each in evaluations):
        return "conversations"
    return "replies" if any(each.has_texts for each in evaluations) else "episodes"


def sample_set(id: str, evaluations: Mapping[str, Predictions], takes_turns: bool = True) -> SampleSet | None:
    """Samples of evaluations by name; ``None`` if these have no texts or share no sample. See :class:`SampleSet`."""
    found = aligned(list(evaluations.values()))
    of = what_they_are(found)
    if of == "episodes" or not len(found[0]):
        return None
    repeats = repeated_keys(found)
    values = {key: {score for each in found for score in each.scores.get(key, ())} for key in sort_keys(found)}
    keys = [key for key in values if key not in repeats and len(values[key]) > 1]
    headlines = [*filter(is_headline, keys)]
    of_reward = [key for key in headlines if is_of_reward(key)]  # all of them: the reader may want to add them up
    others = sorted((key for key in headlines if not is_of_reward(key)), key=lambda key: direction(key) is None)
    shown = [*of_reward, *others[: max(0, _N_SCORES - len(of_reward))]]
    samples = choose_samples(dict(zip(evaluations, found, strict=True)))
    return SampleSet(id, list(evaluations), samples, len(found[0]), of, keys, shown, takes_turns)


def choose_samples(
    evaluations: Mapping[str, Predictions], n: int = MAX_SAMPLES, max_bytes: int = MAX_BYTES
) -> list[Sample]:
    """Samples to show; if not all fit, the best, worst, most improved, most degraded and evenly spaced ones in turn."""
    found = list(evaluations.values())
    if not found or not len(found[0]):
        return []
    keys = sort_keys(found)
    rankings = _rankings(found, keys[:1] if ranking_key(keys) else keys, min(n, len(found[0])))
    in_turn = dict.fromkeys(row for rank in itertools.zip_longest(*rankings) for row in rank if row is not None)
    chosen: list[int] = []
    room = max_bytes
    for row in itertools.islice(in_turn, n):
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
    return Sample(
        number,
        shared.sample_ids[row],
        list(map(_clipped, shared.utterances[row])),
        [] if conversation is None else [_bubble(t, is_given=True) for t in conversation.turns[: conversation.n_given]],
        list(map(_clipped, shared.references[row])),
        [_answer(label, each, row, found, keys) for label, each in evaluations.items()],
        "" if conversation is None else str(conversation.meta_data.get(GOAL_KEY, "")),
    )


def _answer(label: str, own: Predictions, row: int, others: Sequence[Predictions], keys: Sequence[str]) -> Answer:
    """An answer, compared with the first one; the first one with the last."""
    first = others[0]
    scores = {key: _score(own, key, row) for key in keys}
    conversation, before = own.conversations[row], first.conversations[row]
    if conversation is None:
        other = others[-1] if own is first else first
        reply = _clipped(own.replies[row])
        is_changed = reply != _clipped(first.replies[row])
        return Answer(label, scores, is_changed, word_diff(reply, _clipped(other.replies[row])))
    said = list(map(_bubble, conversation.said))
    is_changed = before is None or said != list(map(_bubble, before.said))
    left = iter(own.values[row] if own.values else ())
    valued = [each._replace(value=next(left, None)) if each.speaker == SPEAKERS[AGENT] else each for each in said]
    return Answer(label, scores, is_changed, (), valued, ending(conversation), conversation.failures)


def _bubble(turn: Turn, is_given: bool = False) -> Bubble:
    has_reward = turn.speaker == AGENT and not is_given and not math.isnan(turn.reward)
    return Bubble(SPEAKERS[turn.speaker], _clipped(turn.for_people), turn.reward if has_reward else None)


def _score(predictions: Predictions, key: str, row: int) -> float | None:
    value = float(predictions.scores[key][row]) if key in predictions.scores else math.nan
    return round(value, 4) + 0.0 if math.isfinite(value) else None  # not -0.0


def _clipped(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + " …"


def word_diff(text: str, other: str) -> list[Piece]:
    """Split a text into pieces that another text shares or lacks; without common words, marks would say nothing."""
    words, bare = _WORDS.findall(text), text.split()
    blocks = SequenceMatcher(None, bare, other.split(), autojunk=False).get_matching_blocks()
    if len(blocks) == 1:  # the empty one at the end
        return [Piece(text, False)] if text else []
    pieces, start = list[Piece](), 0
    for block in blocks:
        end = block.a + block.size
        new = "".join(words[start : block.a if block.size else None])
        n_spaces = len(new) - len(new.lstrip())  # space before new words is not marked
        shared = "".join(words[block.a : end])
        pieces += [Piece(new[:n_spaces], False), Piece(new[n_spaces:], True), Piece(shared, False)]
        start = end
    return [piece for piece in pieces if piece.text]


class FailureCount(NamedTuple):
    """A cause of failures, with the number of conversations in which it occurred; ``None`` without an evaluation.

    The examples are samples on the page where it occurred, after training if it still does.
    """

    cause: str
    before: int | None
    after: int | None
    examples: list[Sample]


def failure_counts(
    before: Predictions | None, after: Predictions | None, samples: Sequence[Sample]
) -> list[FailureCount]:
    """Count causes, the most frequent one after training first, with examples among the samples on the page."""
    counts: list[Counter[str] | None] = []
    for predictions in (before, after):
        held = [each for each in predictions.conversations if each is not None] if predictions is not None else []
        causes = Counter(cause for conversation in held for cause in set(conversation.failures))
        counts.append(None if predictions is None else causes)
    found = []
    for cause in dict.fromkeys(cause for count in counts[::-1] if count for cause, _ in count.most_common()):
        old, new = (None if count is None else count[cause] for count in counts)
        examples = [sample for sample in samples if cause in sample.answers[-1 if new else 0].failures]
        found.append(FailureCount(cause, old, new, examples[:_N_EXAMPLES]))
    return found


class JudgedUtterance(NamedTuple):
    """An utterance of the agent, what it heard before, and the mean advantage of its tokens."""

    advantage: float
    heard: str
    text: str
    sample_id: str


def extreme_utterances(predictions: Predictions | None) -> dict[str, list[JudgedUtterance]]:
    """Distinct utterances of the highest and lowest advantage by title, if two or more have one."""
    if predictions is None or not predictions.advantages:
        return {}
    found: dict[tuple[str, str], JudgedUtterance] = {}
    for row, advantages in enumerate(predictions.advantages):
        conversation, id = predictions.conversations[row], predictions.sample_ids[row]
        said = [(predictions.utterances[row][-1] if predictions.utterances[row] else "", predictions.replies[row])]
        if conversation is not None:
            turns = conversation.turns
            said = [(turns[i - 1].text if i else "", turns[i].text) for i in conversation.agent_turns]
        for (heard, text), advantage in zip(said, advantages, strict=False):  # a failed utterance has none
            if math.isfinite(advantage):
                found.setdefault((heard, text), JudgedUtterance(advantage, heard, text, id))
    ranked = sorted(found.values(), key=lambda each: -each.advantage)
    n = min(N_UTTERANCES, len(ranked) // 2)
    return {"Highest advantage": ranked[:n], "Lowest advantage": ranked[::-1][:n]} if n else {}
