"""The line of a conversation log: TRL's ``messages``, with rewards, token ids and log-probabilities of the agent's.

The page docs/logs.md describes all keys. What a line does not hold: acts, emotions and ``spoken`` texts of turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from rl4dialog.core.arguments import NonNegativeInt
from rl4dialog.core.errors import nearest_hint
from rl4dialog.core.types import AGENT, PARTNER, SYSTEM_KEY, TOOL, Dialogue, EndedBy, Turn, is_whole_number
from rl4dialog.data.dialogue_format import INSTRUCTIONS, Message
from rl4dialog.data.messages import check_learned, check_turns, read_messages
from rl4dialog.data.rows import Row, TypedRow

VERSION = 1
# Keys that writers add for people and other programs.
_NOTES = ("return", "sample_id", "seed", "iteration", "system", "failures", "goal", "goal_text")
ROLES = {PARTNER: "user", AGENT: "assistant", TOOL: "tool"}
_OF_TOKENS = ("token_ids", "token_rewards", "log_probs")
Reward = Annotated[float, Field(ge=-1e15, le=1e15)]  # squares of larger ones overflow in fp32


class MessageNumbers(TypedRow):
    """What a message of the agent can have beside role and content."""

    reward: Reward | None = None
    token_ids: Annotated[list[NonNegativeInt], Field(min_length=1)] | None = None
    token_rewards: list[float] | None = None
    log_probs: list[float] | None = None
    truncated: bool | None = None


class Line(TypedRow):
    """The keys of a line."""

    version: Literal[1] | None = None
    id: Any = None
    tokenizer: str | None = None
    agent: str | Annotated[list[str], Field(min_length=1)] | None = None
    terminated: bool | None = None
    messages: list[MessageNumbers]
    n_given: NonNegativeInt | None = None
    rewards: list[Reward | None] | None = None
    reward: Reward | None = None
    outcome: dict[str, float | None] | None = None
    ended_by: EndedBy | None = None
    partner: str | None = None
    meta_data: dict[str, Any] | None = None


def logged_record(dialogue: Dialogue) -> dict[str, Any]:
    """Convert a conversation to a line of a log. :func:`read_dialogues` is the inverse.

    Where the partner said nothing between two utterances of the agent, or before its first, the user's message is
    empty. Rewards that are NaN become ``None``; the meta data are not converted to JSON types.
    """
    system = dialogue.meta_data.get(SYSTEM_KEY)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    n_given = len(messages) + dialogue.n_given
    rewards: list[float | None] = []
    last = None if dialogue.n_given else AGENT  # so that the partner is first
    for i, turn in enumerate(dialogue.turns):
        is_said = i >= dialogue.n_given
        if turn.speaker == last == AGENT:
            messages.append({"role": ROLES[PARTNER], "content": ""})
        messages.append({"role": ROLES[turn.speaker], "content": turn.text})
        if turn.speaker == AGENT:
            rewards.append(turn.reward if is_said and not math.isnan(turn.reward) else None)
            numbers = dict(zip(_OF_TOKENS, (turn.ids, turn.token_rewards, turn.log_probs), strict=True))
            messages[-1] |= {key: list(values) for key, values in numbers.items() if values is not None and is_said}
            if turn.truncated:
                messages[-1]["truncated"] = True
        last = turn.speaker
    return {
        "version": VERSION,
        "id": dialogue.id,
        **({} if dialogue.tokenizer is None else {"tokenizer": dialogue.tokenizer}),
        "agent": ROLES[AGENT],
        "terminated": dialogue.terminated,
        "messages": messages,
        "n_given": n_given,
        "rewards": rewards,
        "outcome": dict(dialogue.outcome),
        "ended_by": dialogue.ended_by,
        **({"partner": dialogue.partner} if dialogue.partner else {}),
        # The history is in the messages.
        "meta_data": {key: each for key, each in dialogue.meta_data.items() if key not in ("history", SYSTEM_KEY)},
    }


def read_dialogues(row: Row, index: int, agent: str = ROLES[AGENT]) -> list[Dialogue]:
    """Read line `index` of a log: its conversation from the side of each of its agents, by default of `agent`."""
    messages = read_messages(row, "messages", roles=None, also=tuple(MessageNumbers.model_fields))
    line = row.parsed(Line)
    for note in _NOTES if line.version is not None else ():
        row.unread.pop(note, None)
    agents = line.agent if isinstance(line.agent, list) else [line.agent or agent]
    begin = _check_roles(row, messages, agents)
    n_given = line.n_given or 0
    if n_given > len(messages):
        raise row.error(f"n_given is {n_given}, but there are {len(messages)} messages")
    rewards = _rewards(row, line, messages, agents)
    paid = line.reward or 0.0
    if paid and len(agents) > 1:
        raise row.error("reward does not say which of several agents gets it; give the reward of each message instead")
    turns = [_turn(row, line, i, messages[i], rewards[i], agents) for i in range(begin, len(messages))]
    id = index if line.id is None else line.id
    about: dict[str, Any] = {
        "id": id if is_whole_number(id, at_least=0) else row.text("id"),
        "terminated": line.terminated is not False,
        "tokenizer": line.tokenizer,
        "ended_by": line.ended_by,
        "partner": line.partner or "",
        "outcome": {key: value for key, value in (line.outcome or {}).items() if value is not None},
        "meta_data": line.meta_data or {},
        "has_reward": any(value is not None for value in (line.reward, *(line.rewards or ())))
        or any(each.reward is not None or each.token_rewards is not None for each in line.messages),
    }
    if begin:
        about["meta_data"][SYSTEM_KEY] = " ".join(message["content"] for message in messages[:begin])
    dialogues = []
    for role in agents:
        side = [
            turn if message["role"] == role else Turn(turn.text, _other(message))
            for turn, message in zip(turns, messages[begin:], strict=True)
        ]
        given = max(n_given - begin, 0)
        last = max((i for i, turn in enumerate(side) if turn.speaker == AGENT), default=-1)
        if last < given:
            where = f" after n_given: {n_given}" if given else ""
            raise row.error(f"messages has no message of the agent {role!r}{where}")
        side[last] = replace(side[last], reward=side[last].reward + paid)
        if side[0] == Turn("", PARTNER):  # nobody spoke before the agent
            side, given = side[1:], max(given - 1, 0)
        own = {} if len(agents) == 1 else {"id": f"{about['id']}_{role}"}
        dialogues.append(Dialogue(**{**about, **own}, turns=tuple(side), n_given=given))
    return dialogues


def _check_roles(row: Row, messages: Sequence[Message], agents: Sequence[str]) -> int:
    """Check that two speakers take turns, after the instructions, whose number is returned."""
    roles = list(dict.fromkeys(message["role"] for message in messages if message["role"] not in INSTRUCTIONS))
    for agent in agents:
        if agent not in roles:
            raise row.error(
                f"messages has no message of the agent {agent!r}{nearest_hint(agent, roles)} (roles: "
                f"{', '.join(roles) or 'none'}); set datapool.args.agent to the role of the agent"
            )
    others, usual = [role for role in roles if role not in (*agents, ROLES[TOOL])], ROLES.values()
    if {*usual}.issuperset(agents) and (unknown := [role for role in others if role not in usual]):
        number = next(i for i, message in enumerate(messages) if message["role"] in unknown)
        raise row.error(f"message {number} has the unknown role {unknown[0]!r}{nearest_hint(unknown[0], usual)}")
    if len(others) + len(agents) > 2:
        names = ", ".join(sorted({*others, *agents}))
        raise row.error(f"messages has {len(others) + len(agents)} speakers ({names}); a conversation has two")
    sides = (*others, *agents) if len(others) + len(agents) > 1 else (ROLES[PARTNER], *agents)
    # Tools answer in place of the partner.
    heard = [{**each, "role": sides[0]} if each["role"] == ROLES[TOOL] else each for each in messages]
    return check_turns(heard, row, sides=sides)


def _rewards(row: Row, line: Line, messages: Sequence[Message], agents: Sequence[str]) -> list[float]:
    """Reward of each message; 0 for those without one."""
    rewards = [each.reward or 0.0 for each in line.messages]
    places = [number for number, message in enumerate(messages) if message["role"] in agents]
    n_given = line.n_given or 0
    if line.rewards is not None:
        if any(each.reward is not None for each in line.messages):
            raise row.error("rewards and the reward of a message are both given; use one of them")
        if len(line.rewards) != len(places):
            raise row.error(
                f"rewards must have one number per message of the agent, {len(places)}, not {len(line.rewards)}"
            )
        values = [value for value, place in zip(line.rewards, places, strict=True) if place >= n_given]
        if None in values and any(value is not None for value in values):
            raise row.error(f"rewards has no number (null) for some messages after n_given: {n_given}")
        for value, place in zip(line.rewards, places, strict=True):
            rewards[place] = value or 0.0
    if earned := [place for place, reward in enumerate(rewards) if reward and place < n_given]:
        raise row.error(f"message {earned[0]} has a reward, but is one of the n_given: {n_given} that were not said")
    return rewards


def _other(message: Message) -> int:
    """The speaker of a message that is not the agent's."""
    return TOOL if message["role"] == ROLES[TOOL] else PARTNER


def _turn(row: Row, line: Line, number: int, message: Message, reward: float, agents: Sequence[str]) -> Turn:
    """A message, as if all were the agent's."""
    numbers = line.messages[number]
    if message["role"] not in agents:
        if given := [key for key, value in numbers if value not in (None, False)]:
            raise row.error(f"message {number} has {given[0]}, but is not the agent's (role: {message['role']})")
        return Turn(message["content"], _other(message))
    check_learned(row.values["messages"][number], row, f"message {number}")
    own: dict[str, Any] = {key: tuple(values) for key in _OF_TOKENS if (values := getattr(numbers, key)) is not None}
    if "token_ids" in own and line.tokenizer is None:
        raise row.error(f"message {number} has token_ids, but the line has no tokenizer, the hash of their tokenizer")
    ids = own.pop("token_ids", ())
    for key, values in own.items():
        if not ids or len(values) != len(ids):
            raise row.error(f"message {number} has {len(values)} {key}, but {len(ids) or 'no'} token_ids")
    truncated = bool(numbers.truncated)
    return Turn(message["content"], AGENT, reward=reward, truncated=truncated, ids=ids or None, **own)
