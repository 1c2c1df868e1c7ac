"""Layouts of logged conversations in table columns: our own, and those of TRL, LMRL-Gym, ILQL and user feedback.

All of them are converted to lines of our own layout, which :mod:`rl4dialog.data.conversations.record` reads. Sources:
"Dataset formats and types" in TRL's documentation; ``train_ilql.py`` of LMRL-Gym's Wordle (Abdulhai et al. 2023, arXiv
2311.18232); :mod:`rl4dialog.core.feedback`. The layout of ILQL's tweets is in :mod:`.tweets`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

from rl4dialog.core.errors import shown
from rl4dialog.core.feedback import Feedback, feedback_of
from rl4dialog.core.types import Dialogue
from rl4dialog.data.chat_markup import Message
from rl4dialog.data.conversational import plain_or_messages, preference_of, refuse_foreign, reply_of
from rl4dialog.data.conversations.record import KEYS, MESSAGE_KEYS, NOTES, is_finite, read_dialogues
from rl4dialog.data.conversations.tweets import GAME_COLUMNS
from rl4dialog.data.dialogue_format import chat_messages
from rl4dialog.data.rows import Row

Layout = Literal["messages", "completion", "preference", "lmrl", "feedback", "tweets"]
Record = Mapping[str, Any]

# Columns that a row of each layout must have, and further ones that are read.
_COLUMNS: Mapping[Layout, tuple[str, ...]] = {
    "messages": ("messages",),
    "completion": ("prompt", "completion"),
    "preference": ("chosen", "rejected"),
    "lmrl": ("sequence", "reward", "done"),
    "feedback": ("kind", "turns", "replies"),
    "tweets": GAME_COLUMNS,
}
_OPTIONAL: Mapping[Layout, tuple[str, ...]] = {
    "messages": (*KEYS, *NOTES),
    "completion": ("label", "id", "meta_data"),
    "preference": ("prompt", "id", "meta_data"),
    "lmrl": ("id", "meta_data"),
    "feedback": (*Feedback.__dataclass_fields__, "version"),
    "tweets": (),
}


def guess_layout(row: Row) -> Layout:
    """Determine the layout from the columns of the first row."""
    found = [layout for layout in get_args(Layout) if _has_columns(row, layout)]
    if not found:
        refuse_foreign(row)
    if len(found) != 1:
        what = f"columns of several layouts ({', '.join(found)})" if found else "the columns of no layout"
        layouts = "; ".join(f"{layout}: {', '.join(_COLUMNS[layout])}" for layout in get_args(Layout))
        raise row.error(f"has {what}: {', '.join(row.values) or 'none'}; set layout to one of: {layouts}")
    return found[0]


def unread_columns(row: Row, layout: Layout) -> list[str]:
    """Columns of a row, and keys of its messages, that its layout does not have."""
    messages = row.get("messages") if layout == "messages" else ()
    keys = {key: None for message in messages if isinstance(message, Mapping) for key in message}
    return [
        *(name for name in row.values if name not in (*_COLUMNS[layout], *_OPTIONAL[layout])),
        *(f"{key!r} of messages" for key in keys if key not in MESSAGE_KEYS),
    ]


def dialogues_of(row: Row, number: int, layout: Layout, agent: str) -> Iterator[Dialogue]:
    """Read the conversations of a row.

    Args:
        row: The row.
        number: Its number.
        layout: The layout.
        agent: Role of the agent in ``messages``.
    """
    if not _has_columns(row, layout):
        missing = next(name for name in _COLUMNS[layout] if row.get(name) is None)
        raise row.error(f"no column {missing!r}, but all rows of a log must have the same layout, here {layout!r}")
    if layout == "messages":
        yield from read_dialogues(row, number, agent)
        return
    for record in _RECORDS[layout](row):
        kept = {key: row.get(key) for key in ("id", "meta_data") if row.get(key) is not None}
        id = kept.get("id", number)
        if (part := record.get("part")) is not None:
            kept["id"] = f"{id}_{part}"
        yield from read_dialogues(Row({**kept, **record}, row.place), number)


def _has_columns(row: Row, layout: Layout) -> bool:
    return all(row.get(name) is not None for name in _COLUMNS[layout])


def _completions(row: Row) -> Iterator[Record]:
    """A prompt and a reply, which TRL's KTO labels with true or false."""
    label = row.get("label")
    if label is not None and not isinstance(label, bool) and not is_finite(label):
        raise row.error(f"label must be true, false or a finite number, not {shown(label)}")
    prompt = plain_or_messages(row, "prompt")
    yield _reply(prompt, reply_of(row, "completion", plain_or_messages(row, "completion")), label)


def _preferences(row: Row) -> Iterator[Record]:
    """A prompt with a better and a worse reply."""
    prompt, chosen, rejected = preference_of(row, as_messages=True)
    meta_data = {**(row.get("meta_data") or {}), "rejected": rejected}  # for the metric q_rank
    yield {**_reply(prompt, chosen, 1.0), "part": "chosen", "meta_data": meta_data}
    yield {**_reply(prompt, rejected, 0.0), "part": "rejected"}


def _lmrl(row: Row) -> Iterator[Record]:
    """LMRL-Gym's trajectories.

    ``sequence`` is a list of pairs, a text and whether the agent said it. ``reward`` has a number for each text or, as
    in LMRL-Gym's files, for each but the first; those of other texts are 0. ``done`` says whether the end was reached.
    """
    sequence, rewards, done = row["sequence"], row["reward"], row["done"]
    if not isinstance(sequence, list) or not all(map(_is_pair, sequence)):
        raise row.error(f"sequence must be a list of pairs [text, is_action], not {shown(sequence)}")
    if not isinstance(rewards, list) or not 0 <= len(sequence) - len(rewards) <= 1:
        n = len(rewards) if isinstance(rewards, list) else shown(rewards)
        raise row.error(
            f"reward must have a number for each of the {len(sequence)} texts of sequence, or for each but the first, "
            f"not {n}"
        )
    if not isinstance(done, bool):
        raise row.error(f"done must be true or false, not {shown(done)}")
    aligned = [0.0] * (len(sequence) - len(rewards)) + rewards
    for number, ((_, is_action), reward) in enumerate(zip(sequence, aligned, strict=True)):
        if not is_finite(reward) or (reward and not is_action):
            what = "a finite number" if is_action else "0, because the agent did not say it"
            raise row.error(f"reward of text {number} of sequence must be {what}, not {shown(reward)}")
    yield {
        "messages": [
            {"role": "assistant" if is_action else "user", "content": text.strip()} for text, is_action in sequence
        ],
        "rewards": [reward for (_, is_action), reward in zip(sequence, aligned, strict=True) if is_action],
        "terminated": done,
    }


def _is_pair(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    text, is_action = value
    return isinstance(text, str) and isinstance(is_action, (bool, int, float)) and is_action in (0, 1)


def _feedback(row: Row) -> Iterator[Record]:
    """Feedback: 1 or -1 for a rated reply or conversation, 1 for the better of two replies and for a correction."""
    feedback = feedback_of({key: value for key, value in row.values.items() if value is not None}, row.place)
    if feedback.withdrawn:
        return
    system = [] if not feedback.persona else [{"role": "system", "content": feedback.persona}]
    prompt = [*system, *chat_messages(feedback.turns)]
    if feedback.rates_conversation:
        answer = [] if feedback.answer is None else [{"role": "user", "content": feedback.answer}]
        (reply,) = feedback.replies
        record = _reply(prompt, reply.text, float(feedback.rating or 0))
        yield {**record, "messages": [*record["messages"], *answer], "n_given": 0, "meta_data": {"model": reply.model}}
        return
    if feedback.correction is not None:
        yield _reply(prompt, feedback.correction, 1.0)
        return
    for number, reply in enumerate(feedback.replies):
        score = float(number == feedback.chosen) if feedback.rating is None else float(feedback.rating)
        part = {} if feedback.rating is not None else {"part": number}
        yield {**_reply(prompt, reply.text, score), "meta_data": {"model": reply.model}, **part}


def _reply(prompt: str | list[Message], reply: str, reward: float | None) -> Record:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    messages = [*messages, {"role": "assistant", "content": reply}]
    return {"messages": messages, "n_given": len(messages) - 1, "reward": None if reward is None else float(reward)}


_RECORDS: Mapping[str, Callable[[Row], Iterator[Record]]] = {
    "completion": _completions,
    "preference": _preferences,
    "lmrl": _lmrl,
    "feedback": _feedback,
}
