"""States of finished replies, and a reward's value of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

REFERENCES = ["the cat sat on the mat"]


def state(reply: str, references: list[str] | None = None, prompt: str = "hello") -> Any:
    """The state after a reply's tokens; here every word is one."""
    return SimpleNamespace(
        prompt_or_input_text=prompt,
        context_text=reply,
        context_ids=list(range(len(reply.split()))),
        target_or_reference_texts=references if references is not None else REFERENCES,
        meta_info={},
    )


def pay(reward: Any, reply: str, done: bool = True, meta_info: dict[str, Any] | None = None, **of_state: Any) -> float:
    """What a token-level reward pays on the last word of a reply."""
    before = state(" ".join(reply.split()[:-1]), **of_state)
    return float(reward(before, 1, state(reply, **of_state), done, meta_info or {}))
