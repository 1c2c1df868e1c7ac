"""The line of a conversation log: TRL's ``messages``, with rewards, token ids and log-probabilities of the agent's.

The page docs/logs.md describes all keys. What a line does not hold: acts, emotions and ``spoken`` texts of turns.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, get_args

from rl4dialog.core.errors import nearest_hint, shown
from rl4dialog.core.types import AGENT, PARTNER, SYSTEM_KEY, Dialogue, EndedBy, Turn, is_number, is_whole_number
from rl4dialog.data.dialogue_format import INSTRUCTIONS, Message
from rl4dialog.data.messages import check_turns, read_messages
from rl4dialog.data.rows import Row

VERSION = 1
KEYS = (
    *("version", "id", "tokenizer", "agent", "terminated", "messages", "n_given", "rewards", "reward"),
    *("outcome", "ended_by", "meta_data"),
)
# Keys that writers add for people and other programs.
NOTES = ("return", "sample_id", "seed", "iteration", "system", "failures", "goal", "goal_text")
ROLES = {PARTNER: "user", AGENT: "assistant"}
_OF_TOKENS = ("token_ids", "token_rewards", "log_probs")
_OF_AGENTS = ("reward", *_OF_TOKENS, "truncated")
MESSAGE_KEYS = ("role", "content", *_OF_AGENTS)


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
        # The history is in the messages.
        "meta_data": {key: each for key, each in dialogue.meta_data.items() if key not in ("history", SYSTEM_KEY)},
    }


def read_dialogues(row: Row, index: int, agent: str = ROLES[AGENT]) -> list[Dialogue]:
    """Read line `index` of a log: its conversation from the side of each of its agents, by default of `agent`."""
    if row.get("version") not in (None, VERSION):
        raise row.error(f"version must be {VERSION}, not {shown(row['version'])}")
    messages = read_messages(row, "messages", roles=None)
    agents = _agents(row, agent, messages)
    begin = _check_roles(row, messages, agents)
    instructions = [message["content"] for message in messages[:begin]]
    n_given = _n_given(row, len(messages))
    rewards = _rewards(row, messages, agents, n_given)
    paid = _reward(row, row.get("reward"), "reward")
    if paid and len(agents) > 1:
        raise row.error("reward does not say which of several agents gets it; give the reward of each message instead")
    turns = [_turn(row, i, messages[i], rewards[i], agents) for i in range(begin, len(messages))]
    about = _about(row, index)
    if instructions:
        about["meta_data"][SYSTEM_KEY] = " ".join(instructions)
    dialogues = []
    for role in agents:
        side = [
            turn if message["role"] == role else Turn(turn.text, PARTNER)
            for turn, message in zip(turns, messages[begin:], strict=True)
        ]
        given = max(n_given - begin, 0)
        if not any(turn.speaker == AGENT for turn in side[given:]):
            where = f" after n_given: {n_given}" if given else ""
            raise row.error(f"messages has no message of the agent {role!r}{where}")
        last = max(i for i, turn in enumerate(side) if turn.speaker == AGENT)
        side[last] = replace(side[last], reward=side[last].reward + paid)
        if side[0] == Turn("", PARTNER):  # nobody spoke before the agent
            side, given = side[1:], max(given - 1, 0)
        id = about["id"] if len(agents) == 1 else f"{about['id']}_{role}"
        dialogues.append(Dialogue(**{**about, "id": id}, turns=tuple(side), n_given=given))
    return dialogues


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number, and no ``bool``."""
    return is_number(value) and abs(value) <= sys.float_info.max


def _agents(row: Row, agent: str, messages: Sequence[Message]) -> list[str]:
    """Roles of the agents."""
    value = agent if row.get("agent") is None else row["agent"]
    agents = value if isinstance(value, list) else [value]
    if not agents or len(set(map(str, agents))) < len(agents) or not all(isinstance(role, str) for role in agents):
        raise row.error(f"agent must be a role, or a list of two roles, not {shown(value)}")
    roles = list(dict.fromkeys(message["role"] for message in messages if message["role"] not in INSTRUCTIONS))
    for role in agents:
        if role not in roles:
            known = ", ".join(roles) or "none"
            raise row.error(
                f"messages has no message of the agent {role!r}{nearest_hint(role, roles)} (roles: {known}); set "
                f"datapool.args.agent to the role of the agent"
            )
    return agents


def _check_roles(row: Row, messages: Sequence[Message], agents: Sequence[str]) -> int:
    """Check that two speakers take turns, after the instructions, whose number is returned."""
    others = {message["role"] for message in messages} - {*INSTRUCTIONS, *agents}
    usual = set(ROLES.values())
    unknown = others - usual if usual.issuperset(agents) else set()
    for number, message in enumerate(messages):
        if (role := message["role"]) in unknown:
            raise row.error(f"message {number} has the unknown role {role!r}{nearest_hint(role, usual)}")
    if len(others) + len(agents) > 2:
        names = ", ".join(sorted({*others, *agents}))
        raise row.error(f"messages has {len(others) + len(agents)} speakers ({names}); a conversation has two")
    return check_turns(messages, row, sides=(*others, *agents))


def _n_given(row: Row, n_messages: int) -> int:
    value = row.get("n_given")
    if value is None:
        return 0
    if not is_whole_number(value, at_least=0) or value > n_messages:
        raise row.error(f"n_given must be a number of messages from 0 to {n_messages}, not {shown(value)}")
    return value


def _rewards(row: Row, messages: Sequence[Message], agents: Sequence[str], n_given: int) -> list[float]:
    """Reward of each message; 0 for those without one."""
    raw, listed = row["messages"], row.get("rewards")
    rewards = [_reward(row, message.get("reward"), f"reward of message {i}") for i, message in enumerate(raw)]
    places = [number for number, message in enumerate(messages) if message["role"] in agents]
    if listed is not None:
        if any(message.get("reward") is not None for message in raw):
            raise row.error("rewards and the reward of a message are both given; use one of them")
        if not isinstance(listed, list) or len(listed) != len(places):
            n = len(listed) if isinstance(listed, list) else shown(listed)
            raise row.error(f"rewards must have one number per message of the agent, {len(places)}, not {n}")
        values = [value for value, place in zip(listed, places, strict=True) if place >= n_given]
        if None in values and any(value is not None for value in values):
            raise row.error(f"rewards has no number (null) for some messages after n_given: {n_given}")
        for value, place in zip(listed, places, strict=True):
            rewards[place] = _reward(row, value, f"the one of rewards for message {place}")
    if earned := [place for place, reward in enumerate(rewards) if reward and place < n_given]:
        raise row.error(f"message {earned[0]} has a reward, but is one of the n_given: {n_given} that were not said")
    return rewards


def _reward(row: Row, value: Any, what: str) -> float:
    if value is None:
        return 0.0
    if not is_finite(value) or abs(value) > 1e15:  # squares of larger ones overflow in fp32
        raise row.error(f"{what} must be a finite number, not {shown(value)}, and at most 1e15")
    return float(value)


def _turn(row: Row, number: int, message: Message, reward: float, agents: Sequence[str]) -> Turn:
    """A message, as if all were the agent's."""
    raw: Mapping[str, Any] = row["messages"][number]
    given = [key for key in _OF_AGENTS if raw.get(key) not in (None, False)]
    if message["role"] not in agents:
        if given:
            raise row.error(f"message {number} has {given[0]}, but is not the agent's (role: {message['role']})")
        return Turn(message["content"], PARTNER)
    ids = raw.get("token_ids")
    token_rewards, log_probs = (_numbers(row, raw.get(key), f"{key} of message {number}") for key in _OF_TOKENS[1:])
    if ids is not None:
        if not isinstance(ids, list) or {*map(type, ids)} != {int} or min(ids) < 0:
            raise row.error(f"token_ids of message {number} must be whole numbers of at least 0, not {shown(ids)}")
        if row.get("tokenizer") is None:
            raise row.error(
                f"message {number} has token_ids, but the line has no tokenizer, the hash of their tokenizer"
            )
    for key, values in zip(_OF_TOKENS[1:], (token_rewards, log_probs), strict=True):
        if values is not None and (ids is None or len(values) != len(ids)):
            n = "no token_ids" if ids is None else f"{len(ids)} token_ids"
            raise row.error(f"message {number} has {len(values)} {key}, but {n}")
    truncated = raw.get("truncated") or False
    if not isinstance(truncated, bool):
        raise row.error(f"truncated of message {number} must be true or false, not {shown(truncated)}")
    return Turn(
        message["content"],
        AGENT,
        reward=reward,
        truncated=truncated,
        ids=None if ids is None else tuple(ids),
        token_rewards=token_rewards,
        log_probs=log_probs,
    )


def _numbers(row: Row, value: Any, what: str) -> tuple[float, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise row.error(f"{what} must be a list of numbers, not {shown(value)}")
    if not ({*map(type, value)} <= {float} and all(map(math.isfinite, value))):  # fast, for the usual case
        for each in value:
            if not is_finite(each):
                raise row.error(f"{what} must be finite numbers, not {shown(each)}")
    return tuple(map(float, value))


def _about(row: Row, number: int) -> dict[str, Any]:
    """What a line says about the whole conversation."""
    id, terminated = number if row.get("id") is None else row["id"], row.get("terminated")
    if not is_whole_number(id, at_least=0):
        id = row.text("id")
    if terminated is not None and not isinstance(terminated, bool):
        raise row.error(f"terminated must be true or false, not {shown(terminated)}")
    tokenizer, ended_by = (None if row.get(key) is None else row.text(key) for key in ("tokenizer", "ended_by"))
    if ended_by not in (None, *get_args(EndedBy)):
        raise row.error(f"ended_by must be null or one of {', '.join(get_args(EndedBy))}, not {shown(ended_by)}")
    outcome, meta_data = ({} if row.get(key) is None else row[key] for key in ("outcome", "meta_data"))
    for key, value in (("outcome", outcome), ("meta_data", meta_data)):
        if not isinstance(value, Mapping):
            raise row.error(f"{key} must be an object, not {shown(value)}")
    outcome = {key: value for key, value in outcome.items() if value is not None}
    for key, value in outcome.items():
        if not is_finite(value):
            raise row.error(f"{key!r} of outcome must be a finite number, not {shown(value)}")
    return {
        "id": id,
        "terminated": terminated is not False,
        "tokenizer": tokenizer,
        "ended_by": ended_by,
        "outcome": {key: float(value) for key, value in outcome.items()},
        "meta_data": dict(meta_data),
        "has_reward": _has_reward(row),
    }


def _has_reward(row: Row) -> bool:
    """Whether a line has any reward."""
    return (
        row.get("reward") is not None
        or any(value is not None for value in row.get("rewards") or ())
        or any(message.get(key) is not None for message in row["messages"] for key in ("reward", "token_rewards"))
    )
