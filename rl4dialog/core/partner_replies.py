"""Checks what a conversation partner returns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

from rl4dialog.core.errors import PartnerError, shown
from rl4dialog.core.types import PartnerReply


def checked_reply(answer: Any, partner: str) -> PartnerReply:
    """Convert what a partner returned to a ``PartnerReply``, check it, and clean its text.

    A text is short for ``PartnerReply(text)``, and ``None`` for ``PartnerReply(leaves=True)``. NUL characters are
    removed, and lone surrogates, which cannot be encoded, are replaced by U+FFFD. A blank text counts as none. If this
    changes the text, its token ids are dropped. Texts of any length are accepted.
    """
    if answer is None:
        return PartnerReply(leaves=True)
    reply = PartnerReply(answer) if isinstance(answer, str) else answer
    if not isinstance(reply, PartnerReply):
        raise PartnerError(
            f"partner {partner!r} returned {shown(answer)}, of type {type(answer).__name__}; it must return a text, a "
            f"PartnerReply, or None to leave"
        )
    for problem in _problems(reply):
        raise PartnerError(f"partner {partner!r} returned a PartnerReply whose {problem}")
    text = None if reply.text is None else clean_text(reply.text)
    ids = None if reply.ids is None or text != reply.text else [int(id) for id in reply.ids]
    return replace(reply, text=text, ids=ids, reward=float(reply.reward))


def checked_outcome(outcome: Any, partner: str) -> dict[str, float]:
    """Check what a partner makes of a conversation."""
    if isinstance(outcome, Mapping) and all(
        isinstance(key, str) and isinstance(value, Real) and math.isfinite(value) for key, value in outcome.items()
    ):
        return {key: float(value) for key, value in outcome.items()}
    raise PartnerError(
        f"partner {partner!r} reported the outcome {shown(outcome)}; it must be a mapping of finite numbers such as "
        f"{{'success': 1.0}}"
    )


def clean_text(text: str) -> str | None:
    """Remove NUL characters and replace lone surrogates; ``None`` if the rest is blank."""
    cleaned = text.replace("\0", "").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return cleaned if cleaned.strip() else None


def _problems(reply: PartnerReply) -> Iterator[str]:
    if not (reply.text is None or isinstance(reply.text, str)):
        yield f"text is {shown(reply.text)}; it must be a string, or None to say nothing"
    if reply.ids is not None and not (reply.text is not None and _are_token_ids(reply.ids)):
        yield f"ids are {shown(reply.ids)}; they must be the token ids of its text, or None"
    if not isinstance(reply.reward, Real) or isinstance(reply.reward, bool) or not math.isfinite(reply.reward):
        yield f"reward is {shown(reply.reward)}; it must be a finite number"
    if not isinstance(reply.info, Mapping):
        yield f"info is {shown(reply.info)}; it must be a mapping such as {{'references': ['...']}}"
    elif not _are_texts(reply.info.get("references", [])):
        yield f"info['references'] is {shown(reply.info['references'])}; it must be a list of strings"
    elif not isinstance(reply.info.get("labels", {}), Mapping):
        yield f"info['labels'] is {shown(reply.info['labels'])}; it must be a mapping such as {{'intent': [2]}}"
    if not isinstance(reply.leaves, bool):
        yield f"leaves is {shown(reply.leaves)}; it must be True or False"
    for name, value in (("spoken", reply.spoken), ("heard", reply.heard)):
        if not isinstance(value, str):
            yield f"{name} is {shown(value)}; it must be a string, empty if nothing differs"
    if not (reply.failed is None or isinstance(reply.failed, str)):
        yield f"failed is {shown(reply.failed)}; it must be a message, or None"


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value)


def _are_token_ids(value: Any) -> bool:
    try:
        are_ids = all(isinstance(id, Integral) and not isinstance(id, bool) and int(id) >= 0 for id in value)
        return are_ids and len(value) > 0
    except TypeError:
        return False
