"""A dialogue as a record for files, reports and other judges."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from rl4dialog.core.types import AGENT, PARTNER, SPEAKERS
from rl4dialog.tasks.dialogue_acts.acts import DialogueAct
from rl4dialog.tasks.dialogue_acts.dialogue import TaskDialogue
from rl4dialog.tasks.dialogue_acts.goals import goal_text
from rl4dialog.tasks.dialogue_acts.outcome import Exchange, Outcome
from rl4dialog.tasks.dialogue_acts.templates import Templates

_OUTCOME = ("success", "complete", "match", "book")


def transcript(
    dialogue: TaskDialogue,
    rewards: Sequence[float],
    outcome: Outcome,
    user_is_over: bool,
    templates: Templates,
) -> dict[str, Any]:
    """Write a dialogue as plain JSON types.

    Args:
        dialogue: The dialogue.
        rewards: Reward of each turn of the agent.
        outcome: Its outcome.
        user_is_over: Whether the user has left.
        templates: Words of both sides.

    Returns:
        ``goal``, and ``goal_text`` in words; ``turns``, each with its ``speaker`` (``partner`` for the user, or
        ``agent``), ``text`` and ``acts``; the user's also with the acts that the agent ``understood``, the agent's with
        its ``chosen`` delexicalized acts, ``bookings`` and ``reward``; ``outcome``, some numbers by name;
        ``ended_by``; ``failures`` in words.
    """
    turns: list[dict[str, Any]] = []
    for exchange, reward in zip(dialogue.exchanges, rewards, strict=True):
        turns.append(
            {
                "speaker": SPEAKERS[PARTNER],
                "text": templates.render(exchange.user, "user"),
                "acts": _plain(exchange.user),
                "understood": _plain(exchange.heard),
            }
        )
        turns.append(
            {
                "speaker": SPEAKERS[AGENT],
                "text": exchange.text or templates.render(exchange.said, "agent"),
                "acts": _plain(exchange.said),
                "chosen": _plain(exchange.chosen),
                "bookings": [booking._asdict() for booking in exchange.bookings],
                "reward": reward,
            }
        )
    turns.append(
        {
            "speaker": SPEAKERS[PARTNER],
            "text": templates.render(dialogue.told, "user"),
            "acts": _plain(dialogue.told),
        }
    )
    return {
        "goal": dialogue.goal.to_json(),
        "goal_text": goal_text(dialogue.goal.domains, templates),
        "turns": turns,
        "outcome": {key: value for key, value in outcome.numbers().items() if key in _OUTCOME},
        "ended_by": "partner" if user_is_over else "max_turns",
        "failures": failures(dialogue.exchanges, outcome, user_is_over),
    }


def failures(exchanges: Sequence[Exchange], outcome: Outcome, user_is_over: bool) -> list[str]:
    """Why a dialogue failed, in words; empty if it did not."""
    return [] if outcome.success else [*outcome.failures, *_causes(exchanges, outcome, user_is_over)]


def _causes(exchanges: Sequence[Exchange], outcome: Outcome, user_is_over: bool) -> Iterable[str]:
    """What else went wrong in a dialogue that failed."""
    if any(one.chosen == other.chosen for one, other in itertools.pairwise(exchanges)):
        yield "the agent repeated itself"
    if not user_is_over:
        yield "out of turns"
    elif not outcome.complete:
        yield "the user gave up"


def _plain(acts: Iterable[DialogueAct]) -> list[list[str]]:
    return [list(act) for act in acts]
