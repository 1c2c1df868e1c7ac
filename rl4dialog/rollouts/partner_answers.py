"""Answers of a partner in the main process, checked before they reach the environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from rl4dialog.core.errors import PartnerError, RL4DialogError, shown
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.time_limit import TimeIsUp, time_limit
from rl4dialog.envs.outside_partner import OutsidePartner
from rl4dialog.envs.utterance_view import FAILED_ACTION, LEAVES_ACTION


def partner_answers(
    partner: PartnerService, observations: Mapping[str, np.ndarray], timeout_s: float | None = None
) -> tuple[list[Sequence[int]], dict[int, str]]:
    """Ask a partner for its utterances in several conversations.

    Args:
        partner: The partner.
        observations: Its prompts: ``prompt_ids`` (n, P) and so on.
        timeout_s: Time limit in seconds; by default none.

    Returns:
        The action of each environment, without padding; and the messages of failures, by position.
    """
    n = len(observations["prompt_ids"])
    try:
        with time_limit(timeout_s):
            answers = partner.answers(dict(observations))
        if not isinstance(answers, Sequence) or isinstance(answers, str) or len(answers) != n:
            raise PartnerError(f"it returned {shown(answers)}, not a list of {n} answers")
    except TimeIsUp:
        problem = f"it had not returned after {timeout_s:g} s; reward_fn.timeout_s sets this limit (null disables it)"
        return [[FAILED_ACTION]] * n, dict.fromkeys(range(n), problem)
    except Exception as error:
        if isinstance(error, RL4DialogError) and not isinstance(error, PartnerError):
            raise
        problem = str(error) if isinstance(error, PartnerError) else f"{type(error).__name__}: {error}"
        return [[FAILED_ACTION]] * n, dict.fromkeys(range(n), problem)
    side = partner.side
    actions, problems = [], {}
    for i, answer in enumerate(answers):
        if (what := _problem(answer, side)) is not None:
            problems[i] = f"it answered {shown(answer)}, but {what}"
        actions.append([FAILED_ACTION] if i in problems else [LEAVES_ACTION] if answer is None else answer)
    return actions, problems


def _problem(answer: Any, side: OutsidePartner) -> str | None:
    """Find out what is wrong with an answer."""
    if answer is None:
        return None
    if not isinstance(answer, (Sequence, np.ndarray)) or not all(isinstance(id, Integral) for id in answer):
        return "an answer is a sequence of token ids, or None to leave"
    if not len(answer):
        return "even an answer without text has the token that ends it; None leaves"
    if not 0 <= min(answer) <= max(answer) < side.vocab_size:
        return f"its vocabulary has the ids 0 to {side.vocab_size - 1}"
    ids = [int(id) for id in answer]
    ends = (i + 1 for i in range(len(ids)) if side.end_of_turn.is_end(ids[: i + 1]))
    n = min(next(ends, side.max_length), side.max_length)
    if len(ids) != n:
        return f"its utterance ends with its end of turn, or with token {side.max_length}"
    return None
