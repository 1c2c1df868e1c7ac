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
        wanted = "it must return a text, a PartnerReply, or None to leave"
        found = f"{shown(answer)}, of type {type(answer).__name__}"
        raise PartnerError(f"partner {partner!r} returned {found}; {wanted}")
    for name, value, is_valid, wanted in _fields(reply):
        if not is_valid:
            found = f"whose {name} {'are' if name == 'ids' else 'is'} {shown(value)}"
            raise PartnerError(f"partner {partner!r} returned a PartnerReply {found}, not {wanted}")
    text = None if reply.text is None else clean_text(reply.text)
    ids = None if reply.ids is None or text != reply.text else [int(id) for id in reply.ids]
    return replace(reply, text=text, ids=ids, reward=float(reply.reward))


def _fields(reply: PartnerReply) -> Iterator[tuple[str, Any, bool, str]]:
    text, info = reply.text, reply.info
    yield "text", text, text is None or isinstance(text, str), "a string, or None to say nothing"
    has_ids = reply.ids is None or (text is not None and _are_token_ids(reply.ids))
    yield "ids", reply.ids, has_ids, "the token ids of its text, or None"
    yield "reward", reply.reward, _is_finite(reply.reward), "a finite number"
    yield "info", info, isinstance(info, Mapping), "a mapping such as {'references': ['...']}"
    references, labels = info.get("references", []), info.get("labels", {})
    are_texts = isinstance(references, (list, tuple)) and all(isinstance(each, str) for each in references)
    yield "info['references']", references, are_texts, "a list of strings"
    yield "info['labels']", labels, isinstance(labels, Mapping), "a mapping such as {'intent': [2]}"
    yield "leaves", reply.leaves, isinstance(reply.leaves, bool), "True or False"
    yield "spoken", reply.spoken, isinstance(reply.spoken, str), "a string, empty if nothing differs"
    yield "heard", reply.heard, isinstance(reply.heard, str), "a string, empty if nothing differs"
    yield "failed", reply.failed, reply.failed is None or isinstance(reply.failed, str), "a message, or None"


def checked_outcome(outcome: Any, partner: str) -> dict[str, float]:
    """Check what a partner makes of a conversation."""
    if isinstance(outcome, Mapping) and all(
        isinstance(key, str) and (isinstance(value, bool) or _is_finite(value)) for key, value in outcome.items()
    ):
        return {key: float(value) for key, value in outcome.items()}
    wanted = "it must be a mapping of finite numbers such as {'success': 1.0}"
    raise PartnerError(f"partner {partner!r} reported the outcome {shown(outcome)}; {wanted}")


def clean_text(text: str) -> str | None:
    """Remove NUL characters and replace lone surrogates; ``None`` if the rest is blank."""
    cleaned = text.replace("\0", "").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return cleaned if cleaned.strip() else None


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _are_token_ids(value: Any) -> bool:
    try:
        are_ids = all(isinstance(id, Integral) and not isinstance(id, bool) and int(id) >= 0 for id in value)
        return are_ids and len(value) > 0
    except TypeError:
        return False
