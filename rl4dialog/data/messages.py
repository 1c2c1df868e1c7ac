"""Reads conversations from table columns: messages with roles, texts, or objects with any keys for speaker and text.

All readers of messages decide here about roles, positions and contents; docs/datapools.md has the table.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rl4dialog.core.errors import DataError, nearest_hint, shown
from rl4dialog.core.types import Prompt, is_number
from rl4dialog.data.dialogue_format import INSTRUCTIONS, DialogueFormat, Message, chat_messages, n_instructions
from rl4dialog.data.rows import ELSEWHERE, Row, is_blank, is_empty, parse_json

ROLES = ("system", "developer", "user", "assistant", "tool")

_SIDES = ("user", "assistant")
_TEXT_PARTS = (None, "text", "input_text", "output_text")
# A line of a text that begins with its speaker.
_SPOKEN = re.compile(r"^[ \t*]*([^\W\d_][\w .-]{0,29}?)[ \t]*:\**", re.MULTILINE)
_WRITTEN_ALREADY = "; remove format if the prompts already contain the markup"
UNREAD, EMPTY = "messages after the last reply of a conversation, which are not read", "empty replies"

_logger = logging.getLogger(__name__)
Notes = Counter[str]


class NoReply(DataError):
    """A dialogue in which the agent replies to nobody."""


class Utterance(NamedTuple):
    """One utterance; without speakers, two speakers alternate."""

    speaker: str | None
    text: str
    item: Mapping[str, Any]  # as it stands in the column; empty for a text


def log_notes(notes: Notes, source: str) -> None:
    """Log what was left out or empty while reading, with its number."""
    for what, number in notes.items():
        if number:
            _logger.warning("%s: %s: %d", source, what, number)


def read_messages(
    row: Row, column: str, roles: Sequence[str] | None = ROLES, also: Sequence[str] = ()
) -> list[Message]:
    """Read a column of messages with role and content. The reader knows `also` these keys.

    Without a list of roles, the reader must itself call `check_learned` for the agent's messages.
    """
    value = row[column]
    if not isinstance(value, list) or not value:
        raise row.error(f"{column} must be a list of messages with role and content, not {shown(value)}")
    messages = []
    for number, message in enumerate(value):
        place = f"message {number} of {column}"
        if not isinstance(message, Mapping) or "role" not in message:
            other = f"datapool jsonl reads other keys, with columns: {{dialogue: {column}}}"
            raise row.error(f"{place} must have role and content, not {shown(message)}; {other}")
        role = message["role"]
        if not isinstance(role, str) or (roles is not None and role not in roles):
            known = f"{nearest_hint(str(role), roles)} (roles: {', '.join(roles)})" if roles is not None else ""
            raise row.error(f"{place} has the unknown role {shown(role)}{known}")
        if roles is not None and role == "assistant":
            check_learned(message, row, place)
        messages.append({"role": role, "content": _content(message, "content", row, place, column, ("role", *also))})
    return messages


def check_learned(message: Mapping[str, Any], row: Row, place: str) -> None:
    """Check that no key of the agent's message, or of its parts, says that it is learned less than others."""
    usual, parts = ELSEWHERE["learned"], message.get("content")
    for each in (message, *(parts if isinstance(parts, list) else ())):
        for name in usual.keys() & each if isinstance(each, Mapping) else ():
            if each[name] not in (None, usual[name]):
                raise row.error(
                    f"{place} has {name} {shown(each[name])}, but all replies are learned alike: remove the key if the "
                    "reply is not learned anyway (turns: last learns only the last one), or leave out the conversation"
                )


def speaker_of(column: str) -> str:
    """The name of a column without its number."""
    return re.sub(r"[\W_]*\d+[\W_]*", "", column) or column


def turns_of(row: Row, columns: Sequence[str]) -> list[Any]:
    """Utterances in one column each, up to the first empty cell.

    Their speakers are the names of the columns without numbers (``customer_1``), unless all are the same.
    """
    texts = [*itertools.takewhile(lambda text: not is_blank(text), (row[column] for column in columns))]
    speakers = [*map(speaker_of, columns)]
    if len({*speakers}) == 1:
        return texts
    return [{"speaker": name, "text": text} for name, text in zip(speakers, texts, strict=False)]


def transcript_of(text: str) -> list[dict[str, str]]:
    """Utterances of a text in which each begins a line with its speaker (``User: hello``); empty for other texts.

    Successive ones of a speaker are joined. A name that begins a single line is no third speaker (``Note: ...``).
    """
    marks = [*_SPOKEN.finditer(text)]
    n_lines = Counter(mark[1] for mark in marks)
    marks = [mark for mark in marks if len(n_lines) == 2 or n_lines[mark[1]] > 1]
    if len({mark[1] for mark in marks}) < 2 or text[: marks[0].start()].strip():
        return []
    said = list[dict[str, str]]()
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(text)], strict=True):
        line = text[mark.end() : end].strip()
        if said and said[-1]["speaker"] == mark[1]:
            said[-1]["text"] += f"\n{line}"
        else:
            said.append({"speaker": mark[1], "text": line})
    return said


def branch_of(row: Row, mapping: Mapping[str, Any]) -> list[Message]:
    """The messages of a ChatGPT export from the root of its tree to ``current_node``, without what tools and it do."""
    said, node = list[Message](), mapping.get(row["current_node"])
    while node is not None:
        message = node.get("message") or {}
        role = (message.get("author") or {}).get("role")
        parts = (message.get("content") or {}).get("parts") or []
        text = "\n".join(part for part in parts if isinstance(part, str)).strip()
        if role in _SIDES and text and message.get("recipient", "all") == "all":
            if said and said[0]["role"] == role:  # one reply of several messages
                text = f"{text}\n{said.pop(0)['content']}"
            said.insert(0, {"role": role, "content": text})
        node = mapping.get(node.get("parent"))
    if not said:
        raise NoReply(f"{row.place}: the conversation has no text")
    return said


def _read_dialogue(row: Row, column: str | Sequence[str], keys: Mapping[str, Any]) -> list[Utterance]:
    """Read a column of utterances: texts, or objects with speaker and text, also as JSON; or one text with all lines.

    The keys are those of ``speaker`` and ``text`` in an utterance, and the speaker who is the ``agent``, or ``None``.
    """
    value = row[column] if isinstance(column, str) else turns_of(row, column)
    if isinstance(value, Mapping) and "current_node" in row:
        value = branch_of(row, value)
    column = str(column)
    if isinstance(value, str):
        what = f"{row.place}: column {column!r} must contain a dialogue, a list of utterances or lines with speakers"
        is_json = value.lstrip().startswith(("[", "{"))
        value = parse_json(value, what) if is_json else transcript_of(value)
        if not value:
            raise NoReply(what)
    if not isinstance(value, list) or not value:
        raise row.error(f"column {column!r} must contain a dialogue, a list of utterances, not {shown(value)}")
    if all(isinstance(item, str) for item in value):
        if given := [name for name in ("speaker", "text", "agent") if keys[name] is not None]:
            raise row.error(f"column {column!r} contains texts without speakers; remove columns.{given[0]}")
        return [Utterance(None, row.encodable(text, f"a text of column {column!r}"), {}) for text in value]
    places = [f"utterance {number} of column {column!r}" for number in range(len(value))]
    for place, item in zip(places, value, strict=True):
        if not isinstance(item, Mapping):
            raise row.error(f"{place} must be an object with speaker and text like the others, not {shown(item)}")
    text_key = _key(row, places[0], value[0], "text", keys["text"])
    # Objects with only a text are treated as texts.
    is_bare = keys["speaker"] is None and keys["agent"] is None and list(value[0]) == [text_key]
    speaker_key = None if is_bare else _key(row, places[0], value[0], "speaker", keys["speaker"])
    found = []
    for place, item in zip(places, value, strict=True):
        speaker, text = None, _content(item, text_key, row, place, column, (speaker_key,))
        if speaker_key is not None:
            _check_key(row, place, item, speaker_key)
            speaker = item[speaker_key]
            if not isinstance(speaker, str) and not is_number(speaker):
                raise row.error(f"{speaker_key!r} of {place} must name the speaker, not {shown(speaker)}")
        found.append(Utterance(None if speaker is None else str(speaker), text, item))
    return found


def prompt_messages(row: Row, column: str, keys: Mapping[str, Any]) -> list[Message]:
    """Read a column of utterances as messages, of which the model answers the last one; see `Columns` for the keys."""
    said = _read_dialogue(row, column, keys)
    return _as_messages(row, column, said, keys["agent"], said[-1].speaker)


def dialogue_replies(
    row: Row, column: str | Sequence[str], keys: Mapping[str, Any], notes: Notes
) -> Iterator[tuple[int, list[Message], str]]:
    """Yield each reply of the agent, or of both sides if they have no names: its number, messages before it, text."""
    said = _read_dialogue(row, column, keys)
    messages, has_names = _as_messages(row, column, said, keys["agent"]), said[0].speaker is not None
    numbers = reply_numbers(messages) if has_names else range(1, len(said))
    if not numbers:
        whose = " of the agent" if has_names else ""
        raise NoReply(f"{row.place}: column {column!r} has no utterance{whose} that replies to another speaker")
    notes[UNREAD] += len(said) - 1 - numbers[-1]
    for number in numbers:
        notes[EMPTY] += not said[number].text.strip()
        before = messages[:number] if has_names else chat_messages([one.text for one in said[:number]])
        yield number, before, said[number].text


def dialogue_messages(row: Row, column: str | Sequence[str], keys: Mapping[str, Any]) -> list[Message]:
    """Read a column of utterances as the messages of a whole dialogue; without speakers, the user begins."""
    said = _read_dialogue(row, column, keys)
    if said[0].speaker is not None:
        return _as_messages(row, column, said, keys["agent"])
    return [{"role": _SIDES[i % 2], "content": one.text} for i, one in enumerate(said)]


def reply_numbers(messages: Sequence[Message]) -> list[int]:
    """Numbers of the assistant's messages after the first message of the conversation."""
    begin = n_instructions(messages)
    return [number for number in range(begin + 1, len(messages)) if messages[number]["role"] == "assistant"]


def check_turns(
    messages: Sequence[Message], row: Row, dialogue_format: DialogueFormat | None = None, sides: Sequence[str] = _SIDES
) -> int:
    """Check that after the instructions, whose number is returned, two sides take turns, as rewards rely on.

    The format, if there is one, can have a place for later instructions and for answers of tools.
    """
    begin = n_instructions(messages)
    before: tuple[int, str] | None = None
    for number, message in enumerate(messages[begin:], start=begin):
        role = message["role"]
        if role not in sides and (dialogue_format is None or dialogue_format.name != "chat_template"):
            move = "move it to the beginning, or " if role in INSTRUCTIONS else ""
            keep = "; format: chat_template keeps it if the template has a place for it" if dialogue_format else ""
            raise row.error(f"message {number} has the role {role}, which has no place there: {move}leave it out{keep}")
        if role in INSTRUCTIONS:
            continue
        side = role if role in sides else sides[0]  # tools answer in place of the user
        if before is not None and side == before[1]:
            raise row.error(
                f"messages {before[0]} and {number} are both of {side!r}, but the two sides must alternate: join them "
                "to one, or put an empty message of the other side between them if it said nothing"
            )
        before = number, side
    return begin


def render_messages(
    messages: Sequence[Message], row: Row, dialogue_format: DialogueFormat, persona: str | None = None
) -> tuple[Prompt, list[str]]:
    """The prompt for a reply to messages, with the utterances that it contains.

    The persona is the system message of messages that begin without instructions, of which empty ones then mean none.
    """
    begin = check_turns(messages, row, dialogue_format)
    utterances = [number for number, message in enumerate(messages) if message["role"] not in INSTRUCTIONS]
    if not utterances:
        raise row.error("there is no message before the reply")
    if messages[utterances[-1]]["role"] == "assistant":
        last = f"message {utterances[-1]}, the last before the reply"
        raise row.error(f"{last}, is the assistant's own; messages must end with the one to reply to")
    recent = dialogue_format.context(utterances)
    kept = [
        n
        for n, message in enumerate(messages)
        if (message["content"] or persona is None if message["role"] in INSTRUCTIONS else n >= recent[0])
    ]
    history = [messages[n]["content"] for n in recent]
    opening = [{"role": "system", "content": persona}] if persona and not begin else []
    written_already = _WRITTEN_ALREADY if persona is None else ""  # data can be read without a format
    for message in (*opening, *messages):
        try:
            dialogue_format.check_said(message["content"])
        except DataError as error:
            raise row.error(f"{error}{written_already}") from error
    if dialogue_format.name != "chat_template":
        system = " ".join(message["content"] for message in (*opening, *messages[:begin]))
        return dialogue_format.prompt(history, system), history
    names = [*("the persona" for _ in opening), *(f"message {n}" for n in kept)]
    try:
        written = dialogue_format.chat_prompt([*opening, *(messages[n] for n in kept)], names)
    except DataError as error:
        raise row.error(str(error)) from error
    last = messages[-1]["content"]
    tail = written.rpartition(last)[2].strip() if last in written and last.strip() else ""
    if tail and last.rstrip().endswith(tail):
        raise row.error(f"a text ends with {tail!r}, which is markup of the chat template{written_already}")
    return written, history


def _as_messages(
    row: Row, column: str | Sequence[str], said: Sequence[Utterance], agent: str | None, answered: str | None = None
) -> list[Message]:
    """Convert utterances to messages with roles; without speakers the last one is the user's.

    The agent is the speaker whose role the model takes; in a prompt, ``answered`` spoke last.
    """
    if said[0].speaker is None:
        return chat_messages([one.text for one in said])
    others = _speakers_of_neither_side(said, agent)
    names = list(dict.fromkeys(str(one.speaker) for one in said if one.speaker not in others))
    has, listed, agents = f"column {column!r} has", ", ".join(names), (*ELSEWHERE["agents"], "system")
    if agent is None:
        found = [name for name in names if name.lower() in agents]
        unknown = [name for name in names if name.lower() not in (*agents, *ELSEWHERE["people"])]
        if not found:
            found = [name for name in unknown if name != answered]
        elif len(names) > 2:  # of two, one unknown name is a person's
            found += unknown
        if len(found) > 1 or (not found and answered is None and names):
            what = f"{len(found)} of which can be the agent" if found else "none of which is known as the agent"
            also = f", or to {' or '.join(map(repr, others))} if that is it" if others else ""
            cure = f"set columns.agent to the one whose role the model takes{also}"
            kind = NoReply if len(names) == 1 else DataError
            raise kind(f"{row.place}: {has} {len(names)} speakers ({listed}), {what}; {cure}")
        agent = found[0] if found else None
    elif agent not in names and (answered is None or len(names) > 1):
        kind, hint = NoReply if len(names) == 1 else DataError, nearest_hint(agent, names)
        required = f"which columns.agent requires{hint} (speakers: {listed})"
        raise kind(f"{row.place}: {has} no speaker {agent!r}, {required}")
    if agent is not None and answered == agent:
        cure = "it must end with the utterance to reply to"
        raise row.error(f"column {column!r} ends with an utterance of {agent!r}, whose role the model takes; {cure}")
    messages = []
    for number, one in enumerate(said):
        if one.speaker == agent:
            check_learned(one.item, row, f"utterance {number} of column {column!r}")
        side = "assistant" if one.speaker == agent else "user"
        role = str(one.speaker).lower() if one.speaker in others else side
        messages.append({"role": role, "content": one.text})
    return messages


def _speakers_of_neither_side(said: Sequence[Utterance], agent: str | None) -> list[str]:
    """Speakers of system messages and of tools.

    In corpora of task-oriented dialogues the agent is called SYSTEM, who takes turns with a user (Rastogi et al. 2020,
    arXiv 1909.05855). Messages with a ``role`` cannot do so, because there it has its own meaning.
    """
    speakers = [str(one.speaker) for one in said]
    names = {name.lower() for name in speakers}
    takes_turns = len({*speakers}) == 2 and all(one != other for one, other in itertools.pairwise(speakers))
    is_corpus = "role" not in said[0].item and "system" in {name.lower() for name in speakers[1:]}
    if takes_turns and is_corpus and names.isdisjoint(ELSEWHERE["agents"]):
        return []
    roles = (*INSTRUCTIONS, *ELSEWHERE["tools"])
    return [name for name in dict.fromkeys(speakers) if name.lower() in roles and name != agent]


def _key(row: Row, place: str, item: Mapping[str, Any], name: str, chosen: str | None) -> str:
    """Determine the key of an utterance's speaker or text."""
    if chosen is not None:
        _check_key(row, place, item, chosen)
        return chosen
    found = [key for key in ELSEWHERE["keys"][name] if key in item]
    if len(found) != 1:
        what = f"several keys that can be its {name}" if found else f"no known key for its {name}"
        keys = ", ".join(map(str, found or item)) or "none"
        raise row.error(f"{place} has {what}; set columns.{name} (keys: {keys})")
    return found[0]


def _check_key(row: Row, place: str, item: Mapping[str, Any], key: str) -> None:
    if key not in item:
        raise row.error(f"{place} has no key {key!r}{nearest_hint(key, item)} (keys: {', '.join(map(str, item))})")


def _content(
    message: Mapping[str, Any], key: str, row: Row, place: str, column: str, also: Sequence[str | None]
) -> str:
    """Return the text of a message, which can consist of parts of type ``text``. Unknown keys are unread."""
    for name, cure in ELSEWHERE["beside_text"].items():
        if message.get(name):
            raise row.error(f"{place} has {name}: {cure}")
    _check_key(row, place, message, key)
    content, objects = message[key], [message]
    if isinstance(content, list) and content and all(map(_is_text_part, content)):
        objects += content
        content, also = "".join(part["text"] for part in content), (*also, "type", "text")
    for each in objects:
        for name, value in each.items():
            if not (name == key or name in also or name in ELSEWHERE["learned"] or is_empty(value)):
                row.unread[f"{name!r} of {column}"] = None
    if isinstance(content, str):
        return row.encodable(content, f"{key!r} of {place}")
    cures = {type(None): '; write "" if nothing was said', list: "; a list can only have parts of type text"}
    raise row.error(f"{key!r} of {place} must be text, not {shown(content)}{cures.get(type(content), '')}")


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str)
