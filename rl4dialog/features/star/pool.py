"""Datapool of STAR: one conversation each of a user with a written goal and of a clerk, by tasks and groups of people.

Nobody is in two groups. With ``people: both``, conversations between two groups are left out; with ``users``, a clerk
of one group can talk to users of another one. Goals of ``val`` and ``test`` are not those of ``train``.
"""

from __future__ import annotations

import functools
import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, TOOL, Call, Dialogue, Sample, Turn
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat, SampleUnit
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import FilePath
from rl4dialog.data.sides import check_partner, grouped, partner_sample
from rl4dialog.features.star.exchange import Exchange
from rl4dialog.features.star.gold import compare
from rl4dialog.features.star.reading import Conversation, answer_text, files_of, place_of
from rl4dialog.features.tools.right_calls import GOLD_KEY, Gold, gold_call, right_slots

_logger = logging.getLogger(__name__)
Kind = Literal["checkable", "single", "all"]
_PEOPLE = ("user", "clerk")  # whose ids are in the meta data
_SPEAKERS = {"user": PARTNER, "answer": TOOL}
Groups = dict[str, list[Annotated[int, Field(ge=1)]]]


class Star(TextGenPool):
    """Conversations of people with written goals and checkable calls (STAR).

    The user is the partner. The agent is the clerk, whose calls are utterances that the knowledge base answers. In the
    meta data are the goal, as ``partner_persona``, its values (``goal_values``), the right call
    (``gold_call``), the ``task``, and the ids of both people (``user``, ``clerk``).

    Args:
        path: The repository of STAR, or a folder or archive of the same form: ``dialogues/1.json`` and so on, and
            ``apis/apis/ride_book.json`` and so on. By default, the files of ``rl4dialog prepare star``.
        tasks: Names of tasks to keep; by default all.
        kind: ``checkable``: complete conversations about one task, along its flow, with a goal from which the right
            call is clear. ``single``: the same, with or without one. ``all``: all conversations.
        n_groups: Number of groups of people, of about the same number of the user's utterances.
        groups: Numbers of the groups of each split, from 1. By default ``test`` is the last one, or those not in
            ``train``; ``train`` has those not in ``test``, and ``val`` those of ``train``.
        group_seed: Random seed of the groups, and of the goals that are held out.
        people: What the groups are disjoint in: ``both`` roles, or ``users`` alone.
        held_out_share: Share of goals of which ``val`` and ``test`` have conversations, and ``train`` has none.
        calls: Whether calls and their answers are utterances. Without, only what both people said is.
        until_call: Whether conversations end with the first call; those without a call are left out.
        right_only: Whether ``train`` has only conversations whose call was right.
        exchanged: Number of copies of each conversation of ``train``, in which names, days, times and numbers are
            exchanged for others, so that a small model learns to copy them. Copies with a goal that ``val`` and
            ``test`` can have, or whose call is not as right as before, are left out.
        learn: Side that is learned: ``agent``, the clerk, or ``partner``, the user, with the goal as beginning of the
            prompt and one row per conversation, after which it says ``[end]``.
    """

    has_rewards = True

    def __init__(
        self, samples: list[Sample], dialogues: Sequence[Dialogue] | None, dialogue_format: DialogueFormat | None = None
    ) -> None:
        super().__init__(samples, dialogue_format=dialogue_format)
        self._dialogues, self.has_rewards = dialogues, dialogues is not None

    def conversations(self) -> Iterator[Dialogue]:
        """Yield the conversations; at the end, the clerk is paid for the share of right slots of the best call."""
        return super().conversations() if self._dialogues is None else iter(self._dialogues)

    @classmethod
    def prepare(
        cls,
        split: str,
        path: FilePath | None = None,
        tasks: Annotated[list[str], Field(min_length=1)] | None = None,
        kind: Kind = "checkable",
        n_groups: Count = 4,
        groups: Groups | None = None,
        group_seed: int = 0,
        people: Literal["both", "users"] = "users",
        held_out_share: Annotated[float, Field(ge=0, lt=1)] = 0.2,
        calls: bool = True,
        until_call: bool = False,
        right_only: bool = False,
        exchanged: Annotated[int, Field(ge=0)] = 0,
        learn: Literal["agent", "partner"] = "agent",
        samples: SampleUnit = "replies",
        context_size: Count | None = None,
        format: FormatName = "eou",
        max_size: Count | None = None,
        render_chat: RenderChat | None = None,
    ) -> Star:
        """Load one split."""
        check_split(split)
        of_partner = learn == "partner"
        dialogue_format = DialogueFormat(format, None if of_partner else context_size, render_chat, of_partner)
        calls = calls and not of_partner
        own = _groups_of(split, groups, n_groups)
        found, schemas = files_of(place := place_of(path))
        known = sorted({task for each in found for task in each.tasks})
        for task in tasks or ():
            if task not in known:
                hint = f"{nearest_hint(task, known)} (tasks: {', '.join(known)})"
                raise DataError(f"star: no conversation is about {task!r}{hint}")
        numbers = people_groups(found, n_groups, group_seed, people)
        notes, dialogues, copies = Counter[str](), list[Dialogue](), list[Dialogue]()
        for each in found:
            why, dialogue = _dialogue(each, schemas, tasks, kind, calls, until_call)
            inside = [numbers[each.user] in own, people == "users" or numbers[each.clerk] in own]
            if dialogue is None:
                notes[why] += any(inside)
            elif not all(inside):
                notes["between groups"] += people == "both" and any(inside)
            elif held_out_share and (_is_held_out(each.goal, group_seed, held_out_share) == (split == "train")):
                notes["goals of another split"] += 1
            elif right_only and split == "train" and dialogue.outcome.get("success") != 1.0:
                notes["the call was not right"] += 1
            else:
                group = numbers[each.user]
                dialogues.append(replace(dialogue, meta_data={**dialogue.meta_data, "group": group}))
                if split == "train":
                    copies += _copies(dialogues[-1], each, schemas, exchanged, group_seed, held_out_share)
        left_out = ", ".join(f"{n} {why}" for why, n in notes.most_common() if n)
        _logger.info("star, %s: %d conversations of groups %s; left out: %s", split, len(dialogues), own, left_out)
        if copies:
            _logger.info("star, %s: %d copies with exchanged names, days, times and numbers", split, len(copies))
            dialogues += copies
        of_agent = functools.partial(_samples, unit=samples)
        make = functools.partial(_of_partner, is_whole=not until_call) if of_partner else of_agent
        made = (sample for dialogue in dialogues for sample in make(dialogue, dialogue_format))
        limited = limit_samples(made, max_size, "star", split, str(place))
        if of_partner and split == "train":
            check_partner(limited)
        return cls(limited, None if of_partner else dialogues, dialogue_format)


def _groups_of(split: str, groups: Groups | None, n_groups: int) -> list[int]:
    """Numbers of the groups of a split."""
    given, known = groups or {}, range(1, n_groups + 1)
    test = given.get("test") or [each for each in known if each not in given.get("train", known[:-1])] or [n_groups]
    train = given.get("train") or [each for each in known if each not in test] or test
    chosen = {"train": train, "val": train, "test": test, **given}
    for name, own in chosen.items():
        check_split(name)
        if not own or not {*own} <= {*known}:
            raise DataError(f"star: groups.{name} must be numbers from 1 to n_groups ({n_groups}), not {own}")
    if (shared := {*chosen["train"]} & {*chosen["test"]}) and n_groups > 1:
        raise DataError(f"star: groups {shared} are in train and in test; nobody of test must be met in training")
    return chosen[split]


def people_groups(
    conversations: Sequence[Conversation], n_groups: int, seed: int, people: Literal["both", "users"] = "users"
) -> dict[str, int]:
    """Numbers of the group of everybody, from 1, in which people say about as much."""
    said = Counter[str]()
    for each in conversations:
        said[each.user] += sum(event.who == "user" for event in each.events)
        if people == "both":
            said[each.clerk] += 0
    if len(said) < n_groups:
        raise DataError(f"star: {len(said)} people cannot be divided into {n_groups} groups (n_groups)")
    return {person: group + 1 for person, group in grouped(said, n_groups, seed).items()}


def _is_held_out(goal: str, seed: int, share: float) -> bool:
    return derive_seed(seed, goal) < share * 2**31


def _dialogue(
    each: Conversation,
    schemas: Mapping[str, Mapping[str, Any]],
    tasks: Sequence[str] | None,
    kind: Kind,
    calls: bool,
    until_call: bool,
) -> tuple[str, Dialogue | None]:
    """A conversation, or why it is left out."""
    if tasks is not None and not {*each.tasks} <= {*tasks}:
        return "of other tasks", None
    if kind != "all" and not (each.is_happy and each.is_complete and len(each.tasks) == 1):
        return "not one task along its flow, or not complete", None
    found = compare(each, schemas)
    if kind == "checkable" and (found is None or found.why_left_out):
        return "without a clear right call", None
    if until_call and not each.queries:
        return "without a call", None
    made = {query.place: Call(query.api, dict(query.arguments), answer_text(query.answer)) for query in each.queries}
    turns = [
        Turn(text, _SPEAKERS.get(who, AGENT), call=made.get(place))
        for place, (who, text) in enumerate(each.until_call() if until_call else each.events)
        if calls or who in ("user", "clerk")
    ]
    # Both sides take turns in all complete conversations, with a call before its answer.
    if len(turns) < 2 or any((turn.speaker == AGENT) != i % 2 for i, turn in enumerate(turns)):
        return "in which both sides do not take turns", None
    info: dict[str, Any] = {"task": each.tasks[0] if each.tasks else "", "user": each.user, "clerk": each.clerk}
    info["partner_persona"] = each.goal if found is None else found.goal
    dialogue = Dialogue(each.id, tuple(turns), topic=info["task"], meta_data=info, n_given=1, ended_by="partner")
    if found is None or found.why_left_out:
        return "", replace(dialogue, has_reward=False)
    # Slots that the goal leaves open do not count.
    info[GOLD_KEY] = {
        "name": found.api,
        "arguments": {slot: asdict(each) for slot, each in found.gold.items()},
        "open": True,
    }
    info["goal_values"] = [*_values(found.gold.values())]
    query = each.queries[0] if until_call else found.query
    call = Call(query.api, dict(query.arguments))
    share = right_slots([call], Gold(found.api, found.gold, is_open=True))
    last = max(i for i, turn in enumerate(turns) if turn.speaker == AGENT)
    turns[last] = replace(turns[last], reward=share)
    return "", replace(dialogue, turns=tuple(turns), outcome={"success": float(share == 1), "right_slots": share})


def _copies(
    dialogue: Dialogue,
    conversation: Conversation,
    schemas: Mapping[str, Mapping[str, Any]],
    n: int,
    seed: int,
    held_out_share: float,
) -> Iterator[Dialogue]:
    """Up to n copies with exchanged values."""
    apis, share = [schemas[task] for task in conversation.tasks if task in schemas], _share(dialogue)
    for number in range(1, n + 1):
        exchange = Exchange(apis, random.Random(derive_seed(seed, conversation.id, number)))
        copy = _copy(dialogue, exchange, number)
        # Where a value is spelled in another way, the copy's call can be another one than its goal's.
        if not _is_held_out(exchange(conversation.goal), seed, held_out_share) and _share(copy) == share:
            yield copy


def _copy(dialogue: Dialogue, exchange: Exchange, number: int) -> Dialogue:
    calls = [
        turn.call and replace(turn.call, arguments=exchange(turn.call.arguments), answer=exchange(turn.call.answer))
        for turn in dialogue.turns
    ]
    turns = [replace(t, text=exchange(t.text), call=call) for t, call in zip(dialogue.turns, calls, strict=True)]
    info = {key: each if key in _PEOPLE else exchange(each) for key, each in dialogue.meta_data.items()}
    return replace(dialogue, id=f"{dialogue.id}_copy_{number}", turns=tuple(turns), meta_data=info)


def _share(dialogue: Dialogue) -> float | None:
    """Share of right slots in the last call, if it is known which call is right."""
    calls, gold = [turn.call for turn in dialogue.turns if turn.call], gold_call(dialogue.meta_data)
    return right_slots(calls, gold) if calls and gold else None


def _values(wanted: Any) -> Iterator[str]:
    return (each.values[0] for each in wanted if not each.unwanted and not each.in_own_words)


def _samples(dialogue: Dialogue, dialogue_format: DialogueFormat, unit: SampleUnit) -> Iterator[Sample]:
    texts = [turn.text for turn in dialogue.turns]
    for index in range(1, len(texts), 2):
        context = dialogue_format.context(texts[:index])
        info = {**dialogue.meta_data, "history": context}
        if unit == "dialogues":
            info["continuation"] = texts[index + 1 :]
        id = dialogue.id if unit == "dialogues" else f"{dialogue.id}_{index}"
        yield Sample(id, dialogue_format.prompt(context), [texts[index]], info)
        if unit == "dialogues":
            return


def _of_partner(dialogue: Dialogue, dialogue_format: DialogueFormat, is_whole: bool) -> Iterator[Sample]:
    """A conversation from the user's side."""
    said = [(turn.speaker == PARTNER, turn.text) for turn in dialogue.turns]
    goal = dialogue.meta_data["partner_persona"]
    yield partner_sample(dialogue.id, said, is_whole, dialogue.meta_data, goal, dialogue_format)
