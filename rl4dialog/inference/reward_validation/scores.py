"""Scores of rated dialogues and replies: baselines of length, metrics, and each part of the reward.

A dialogue's score by a metric or reward of replies is the mean over the agent's replies, each scored with its own
history. Rewards of whole conversations are summed over the turns, as a run would pay them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rl4dialog.core.errors import RL4DialogError
from rl4dialog.core.protocols import BaseMetric, BatchedConversationReward, ConversationReward, DialogueMetric
from rl4dialog.core.reward_parts import FinishedReplies, RewardPart, names_needing, weighted_sum
from rl4dialog.core.types import Dialogue, RatedDialogue
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.rollouts.conversing import Talk
from rl4dialog.runs.summary import is_headline
from rl4dialog.scores.scoring import Scorer
from rl4dialog.training.talks import compute_metrics

REFERENCES = "it needs references; what a person said next is none"


@dataclass(frozen=True)
class Scores:
    """One column of scores.

    Attributes:
        name: Name of the metric's key, of the reward's part, or of a baseline.
        values: One per dialogue, NaN where there is none.
        problem: Why it cannot be computed.
    """

    name: str
    values: Sequence[float] = ()
    problem: str | None = None


def talk_of(rated: RatedDialogue, dialogue_format: DialogueFormat | None) -> Talk:
    """Return a rated dialogue as a conversation, with the prompt of each of the agent's replies.

    Args:
        rated: The rated dialogue or reply.
        dialogue_format: Format of prompts; by default each utterance is on a separate line.
    """
    turns = tuple(replace(turn, reward=math.nan) for turn in rated.dialogue.turns)
    dialogue = replace(rated.dialogue, turns=turns)
    talk, persona = Talk(dialogue), dialogue.meta_data.get("persona")
    for i in dialogue.agent_turns:
        history = [turn.text for turn in dialogue.turns[:i]]
        if dialogue_format is None:
            prompt = "".join(f"{text}\n" for text in history)
        else:
            history = dialogue_format.context(history)
            prompt = dialogue_format.prompt(history, persona)
        talk.prompts.append(prompt)
        talk.replies.append(dialogue.turns[i].text)
        talk.references.append([])
        talk.meta_infos.append({**dialogue.meta_data, "history": history})
    return talk


def baseline_scores(talks: Sequence[Talk]) -> Iterator[Scores]:
    """Length, with which every score should be compared: people often prefer longer replies and conversations."""
    words = [[len(reply.split()) for reply in talk.replies] for talk in talks]
    yield Scores("baseline/words_per_reply", [sum(each) / len(each) for each in words])
    if any(len(each) > 1 for each in words):
        yield Scores("baseline/words", [float(sum(each)) for each in words])
        yield Scores("baseline/replies", [float(len(each)) for each in words])


def metric_scores(name: str, metric: BaseMetric | DialogueMetric, talks: Sequence[Talk]) -> Iterator[Scores]:
    """Scores by a metric, by key; of a group with dozens of keys only the most informative.

    A metric without scores per text is computed for each dialogue separately.
    """
    if getattr(metric, "needs_references", False):
        yield Scores(name, problem=REFERENCES)
        return
    try:
        found = compute_metrics([metric], talks, "test", None)
        for key in [key for key in found if is_headline(key)] or found:
            each = found[key][0]
            if each is None:
                each = [compute_metrics([metric], [talk], "test", None)[key][1] for talk in talks]
            yield Scores(key, each)
    except Exception as error:  # a metric may be any code; the others are still computed
        yield Scores(name, problem=_reason(error))


def reward_scores(scorer: Scorer, talks: Sequence[Talk]) -> Iterator[Scores]:
    """Scores by each part of a reward, and their sum as ``reward`` if all can be computed."""
    columns = [_part_scores(part, scorer, talks) for part in scorer.parts]
    total = Scores("reward")
    if problems := [f"{each.name}: {each.problem}" for each in columns if each.problem]:
        total = replace(total, problem="; ".join(problems))
    else:
        by_name = [dict(zip([part.name for part in scorer.parts], row, strict=True)) for row in _rows(columns)]
        total = replace(total, values=[float(weighted_sum(scorer.parts, row)) for row in by_name])
    is_single = len(columns) == 1 and scorer.parts[0].weight == 1.0 and scorer.parts[0].clip is None
    if not is_single:
        yield total
    for column in columns:
        yield replace(column, name=f"reward/{column.name}")


def _rows(columns: Sequence[Scores]) -> Iterator[tuple[float, ...]]:
    return zip(*(column.values for column in columns), strict=True)


def _part_scores(part: RewardPart, scorer: Scorer, talks: Sequence[Talk]) -> Scores:
    if getattr(part.function, "needs_partner", False):
        return Scores(part.name, problem="it comes from the partner of a conversation, which rated ones do not have")
    if names_needing([part], "references"):
        return Scores(part.name, problem=REFERENCES)
    if names_needing([part], "tokens"):
        return Scores(part.name, problem="it needs the tokens of replies, and these are texts")
    of_conversation = isinstance(part.function, (ConversationReward, BatchedConversationReward))
    replies = _finished_replies(talks, only_last_is_done=of_conversation)
    try:
        values = replace(scorer, parts=[part]).values(replies)[part.name]
    except RL4DialogError as error:
        return Scores(part.name, problem=_reason(error))
    earlier = replies.earlier.get(part.name, [])
    paid = [value + sum(earlier[i] if earlier else ()) for i, value in enumerate(values)]
    collect: Callable[[list[float]], float] = sum if of_conversation else _mean
    found, position = [], 0
    for talk in talks:
        found.append(collect(paid[position : position + len(talk.replies)]))
        position += len(talk.replies)
    return Scores(part.name, found)


def _finished_replies(talks: Sequence[Talk], only_last_is_done: bool) -> FinishedReplies:
    rows = [(talk, j) for talk in talks for j in range(len(talk.replies))]
    return FinishedReplies(
        [talk.prompts[j] for talk, j in rows],
        [talk.replies[j] for talk, j in rows],
        [talk.references[j] for talk, j in rows],
        [talk.meta_infos[j] for talk, j in rows],
        [talk.dialogue.id for talk, _ in rows],
        [not only_last_is_done or j == len(talk.replies) - 1 for talk, j in rows],
        [until for talk in talks for until in _settled(talk.dialogue)],
    )


def _settled(dialogue: Dialogue) -> Iterator[Dialogue]:
    """The conversation after each turn: up to the answer to each of the agent's replies."""
    for end in dialogue.turn_bounds[1:]:
        yield replace(dialogue, turns=dialogue.turns[:end])


def _mean(values: list[float]) -> float:
    """Mean of the replies; NaN if the reward of one failed."""
    return sum(values) / len(values) if values else math.nan


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RL4DialogError) else f"{type(error).__name__}: {error}"
