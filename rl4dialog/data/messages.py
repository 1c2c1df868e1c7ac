"""Reads conversations from table columns: messages with roles, texts, or objects with any keys for speaker and text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.errors import DataError, nearest_hint, shown
from rl4dialog.core.types import Prompt, is_number
from rl4dialog.data.chat_markup import INSTRUCTIONS, Message
from rl4dialog.data.dialogue_format import DialogueFormat, chat_messages
from rl4dialog.data.rows import Row, parse_json

ROLES = ("system", "developer", "user", "assistant", "tool")

SPEAKER_KEYS = ("role", "speaker", "from", "author", "sender", "name")
TEXT_KEYS = ("content", "text", "utterance", "value", "message")
AGENTS = ("assistant", "agent", "bot", "gpt", "model")

_WRITTEN_ALREADY = "; remove format if the prompts already contain the markup"


@dataclass(frozen=True)
class Utterance:
    """One utterance; without speakers, two speakers alternate."""

    speaker: str | None
    text: str


@dataclass(frozen=True)
class DialogueKeys:
    """Keys of the utterances of a dialogue.

    Attributes:
        speaker: Key of the speaker; by default the one of :data:`SPEAKER_KEYS` that exists.
        text: Key of the text; by default the one of :data:`TEXT_KEYS` that exists.
        agent: The speaker whose role the model takes; by default one of :data:`AGENTS`, or else the one who replies.
    """

    speaker: str | None = None
    text: str | None = None
    agent: str | None = None


def read_messages(row: Row, column: str, roles: Sequence[str] | None = ROLES) -> list[Message]:
    """Read a column of messages with role and content.

    Args:
        row: The row.
        column: Its column.
        roles: Known roles; ``None`` for any text.

    Raises:
        DataError: If it contains anything else.
    """
    value = row[column]
    if not isinstance(value, list) or not value:
        raise row.error(f"{column} must be a list of messages with role and content, not {shown(value)}")
    messages = []
    for number, message in enumerate(value):
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise row.error(f"message {number} of {column} must have role and content, not {shown(message)}")
        role = message["role"]
        if not isinstance(role, str) or (roles is not None and role not in roles):
            known = f"{nearest_hint(str(role), roles)} (roles: {', '.join(roles)})" if roles is not None else ""
            raise row.error(f"message {number} of {column} has the unknown role {shown(role)}{known}")
        content = _content(message["content"], row, f"content of message {number} of {column}")
        messages.append({"role": role, "content": content})
    return messages


def read_dialogue(row: Row, column: str, keys: DialogueKeys) -> list[Utterance]:
    """Read a column of utterances: texts, or objects with speaker and text. In a CSV file they are encoded as JSON.

    Raises:
        DataError: If it contains anything else, or the keys are ambiguous.
    """
    value = row[column]
    if isinstance(value, str):
        value = parse_json(value, f"{row.place}: column {column!r} must contain a dialogue, a list of utterances")
    if not isinstance(value, list) or not value:
        raise row.error(f"column {column!r} must contain a dialogue, a list of utterances, not {shown(value)}")
    if all(isinstance(item, str) for item in value):
        if given := [name for name in ("speaker", "text", "agent") if getattr(keys, name) is not None]:
            raise row.error(f"column {column!r} contains texts without speakers; remove columns.{given[0]}")
        return [Utterance(None, row.encodable(text, f"a text of column {column!r}")) for text in value]
    places = [f"utterance {number} of column {column!r}" for number in range(len(value))]
    for place, item in zip(places, value, strict=True):
        if not isinstance(item, Mapping):
            raise row.error(f"{place} must be an object with speaker and text like the others, not {shown(item)}")
    first = value[0]
    text_key = _key(row, places[0], first, "text", keys.text, TEXT_KEYS)
    # Objects with only a text are treated as texts.
    is_bare = keys.speaker is None and keys.agent is None and list(first) == [text_key]
    speaker_key = None if is_bare else _key(row, places[0], first, "speaker", keys.speaker, SPEAKER_KEYS)
    found = []
    for place, item in zip(places, value, strict=True):
        for key in filter(None, (text_key, speaker_key)):
            if key not in item:
                raise row.error(f"{place} has no key {key!r}{nearest_hint(key, item)} (keys: {_names(item)})")
        speaker = None if speaker_key is None else item[speaker_key]
        if speaker_key is not None and not isinstance(speaker, str) and not is_number(speaker):
            raise row.error(f"{speaker_key!r} of {place} must name the speaker, not {shown(speaker)}")
        text = _content(item[text_key], row, f"{text_key!r} of {place}")
        found.append(Utterance(None if speaker is None else str(speaker), text))
    return found


def prompt_messages(row: Row, column: str, said: Sequence[Utterance], agent: str | None) -> list[Message]:
    """Convert utterances to messages, of which the model answers the last one.

    Raises:
        DataError: If the model's role is ambiguous, or the last utterance is its own.
    """
    last = said[-1].speaker
    speakers = list(dict.fromkeys(one.speaker for one in said if one.speaker and not _is_instruction(one)))
    names = ", ".join(speakers)
    if agent is not None and len(speakers) > 1 and agent not in speakers:
        raise row.error(f"column {column!r} has no speaker {agent!r}, which columns.agent requires (speakers: {names})")
    agent = agent or next((name for name in speakers if name.lower() in AGENTS), None)
    if agent is None:
        others = [name for name in speakers if name != last]
        if len(others) > 1:
            raise row.error(f"column {column!r} has {len(speakers)} speakers ({names}); set columns.agent to the one "
                            "whose role the model takes")  # fmt: skip
        agent = next(iter(others), None)
    elif last == agent:
        raise row.error(f"column {column!r} ends with an utterance of {agent!r}, whose role the model takes; it must "
                        "end with the utterance to reply to")  # fmt: skip
    return _as_messages(said, agent)


def dialogue_replies(
    row: Row, column: str, said: Sequence[Utterance], agent: str | None
) -> Iterator[tuple[int, list[Message]]]:
    """Yield each utterance that replies to another speaker: its number in the dialogue, and the messages before it.

    Raises:
        DataError: If there is none.
    """
    speakers = {one.speaker for one in said if one.speaker}
    wanted = agent or next((name for name in speakers if name.lower() in AGENTS), None)
    n_found = 0
    for number in range(1, len(said)):
        before, reply = said[:number], said[number]
        if reply.speaker is not None:
            is_other = reply.speaker == before[-1].speaker or _is_instruction(reply)
            if is_other or all(map(_is_instruction, before)) or (wanted and reply.speaker != wanted):
                continue
        n_found += 1
        yield number, _as_messages(before, reply.speaker)
    if not n_found:
        whose = f" of {wanted!r}" if wanted else ""
        raise row.error(f"column {column!r} has no utterance{whose} that replies to another speaker")


def render_messages(messages: Sequence[Message], row: Row, dialogue_format: DialogueFormat) -> tuple[Prompt, list[str]]:
    """Format the prompt for a reply to messages; returns it with the utterances that it contains.

    Raises:
        DataError: If there are only instructions, or a text contains markup of the format.
    """
    instructions = [message for message in messages if message["role"] in INSTRUCTIONS]
    said = dialogue_format.context([message for message in messages if message["role"] not in INSTRUCTIONS])
    if not said:
        raise row.error("there is no message before the reply")
    history = [message["content"] for message in said]
    try:
        for message in messages:
            dialogue_format.check_said(message["content"])
        if dialogue_format.render_chat is None or dialogue_format.name != "chat_template":
            system = " ".join(message["content"] for message in instructions)
            return dialogue_format.prompt(history, system), history
        written = dialogue_format.chat_prompt([*instructions, *said])
    except DataError as error:
        raise row.error(f"{error}{_WRITTEN_ALREADY}") from error
    _, found, tail = written.rpartition(history[-1])
    if history[-1] and found and tail.strip() and history[-1].rstrip().endswith(tail.strip()):
        raise row.error(f"a text ends with {tail.strip()!r}, which is markup of the chat template{_WRITTEN_ALREADY}")
    return written, history


def _as_messages(said: Sequence[Utterance], agent: str | None) -> list[Message]:
    """Convert utterances to messages with roles; without speakers the last one is the user's."""
    if said[0].speaker is None:
        return chat_messages([one.text for one in said])

    def role(one: Utterance) -> str:
        if _is_instruction(one):
            return str(one.speaker).lower()
        return "assistant" if one.speaker == agent else "user"

    return [{"role": role(one), "content": one.text} for one in said]


def _is_instruction(utterance: Utterance) -> bool:
    return (utterance.speaker or "").lower() in INSTRUCTIONS


def _key(row: Row, place: str, item: Mapping[str, Any], name: str, chosen: str | None, usual: Sequence[str]) -> str:
    """Determine the key of an utterance's speaker or text."""
    if chosen is not None:
        if chosen not in item:
            raise row.error(f"{place} has no key {chosen!r}{nearest_hint(chosen, item)} (keys: {_names(item)})")
        return chosen
    found = [key for key in usual if key in item]
    if len(found) != 1:
        what = f"several keys that can be its {name}" if found else f"no known key for its {name}"
        raise row.error(f"{place} has {what}; set columns.{name} (keys: {_names(found or item)})")
    return found[0]


def _names(keys: Iterable[Any]) -> str:
    return ", ".join(map(str, keys)) or "none"


def _content(content: Any, row: Row, what: str) -> str:
    """Return the text of a message, which can consist of parts of type ``text``."""
    if isinstance(content, str):
        return row.encodable(content, what)
    if isinstance(content, list) and all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        return row.encodable("".join(part["text"] for part in content), what)
    raise row.error(f"{what} must be text, not {shown(content)}")
