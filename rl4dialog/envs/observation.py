"""The state of one agent utterance in progress: the prompt, and the reply so far."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl4dialog.text.end_of_turn import EndOfTurn


@dataclass
class Observation:
    """What a policy sees and a token-level reward may read. Attribute names are those of RL4LMs.

    Attributes:
        prompt_ids: Token ids of the prompt, not padded.
        context_ids: Token ids of the reply so far.
        prompt_or_input_text: The sample's prompt; in later turns the history as text.
        target_or_reference_texts: Reference replies.
        meta_info: The sample's meta data.
    """

    prompt_ids: list[int]
    context_ids: list[int]
    prompt_or_input_text: str
    target_or_reference_texts: list[str]
    meta_info: dict[str, Any]
    end_of_turn: EndOfTurn = field(repr=False)

    @functools.cached_property
    def context_text(self) -> str:
        """The reply so far, without special tokens and turn marker."""
        return self.end_of_turn.reply_text(self.context_ids)

    @property
    def action_history(self) -> list[str]:
        """The reply so far as tokens."""
        return list(self.end_of_turn.tokenizer.convert_ids_to_tokens(self.context_ids))

    def after(self, action: int) -> Observation:
        """The state after one more token."""
        return Observation(
            self.prompt_ids,
            [*self.context_ids, action],
            self.prompt_or_input_text,
            self.target_or_reference_texts,
            self.meta_info,
            self.end_of_turn,
        )

    def to_dict(self, max_prompt_length: int, max_episode_length: int, pad_token_id: int) -> dict[str, np.ndarray]:
        """Fixed-size arrays for gymnasium: the prompt padded on the left, the context on the right.

        Returns:
            ``prompt_ids`` (P,), ``prompt_mask`` (P,), ``context_ids`` (T,), ``context_mask`` (T,), all int64.
        """
        arrays = {}
        for name, ids, size in (
            ("prompt", self.prompt_ids, max_prompt_length),
            ("context", self.context_ids, max_episode_length),
        ):
            padded = np.full(size, pad_token_id, dtype=np.int64)
            mask = np.zeros(size, dtype=np.int64)
            where = slice(size - len(ids), size) if name == "prompt" else slice(0, len(ids))
            padded[where] = ids
            mask[where] = 1
            arrays[f"{name}_ids"], arrays[f"{name}_mask"] = padded, mask
        return arrays
