"""The state of an agent utterance in progress: the prompt, and the reply so far."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import PaddedIds


@dataclass
class Observation(PaddedIds):
    """The state for policies and token-level rewards. Attribute names are those of RL4LMs.

    Padded ids and masks, such as ``prompt_or_input_encoded_pt``, are inherited from `PaddedIds`; T is the length of one
    utterance.

    Attributes:
        prompt_ids: Token ids of the prompt, unpadded.
        context_ids: Token ids of the reply so far.
        prompt_or_input_text: The sample's prompt; in later turns the history as text.
        target_or_reference_texts: Reference replies.
        meta_info: The sample's meta data.
        end_of_turn: Detects the end of a reply, and has the tokenizer.
        max_prompt_length: P, the length of padded prompts; ``None`` for no padding.
        max_episode_length: T, the length of padded replies; ``None`` for no padding.
    """

    prompt_ids: list[int]
    context_ids: list[int]
    prompt_or_input_text: str
    target_or_reference_texts: list[str]
    meta_info: dict[str, Any]
    end_of_turn: EndOfTurn = field(repr=False)
    max_prompt_length: int | None = field(default=None, repr=False)
    max_episode_length: int | None = field(default=None, repr=False)

    @functools.cached_property
    def context_text(self) -> str:
        """The reply so far, without special tokens and turn marker."""
        return self.end_of_turn.reply_text(self.context_ids)

    def after(self, action: int) -> Observation:
        """Return the state after one more token."""
        return Observation(
            self.prompt_ids,
            [*self.context_ids, action],
            self.prompt_or_input_text,
            self.target_or_reference_texts,
            self.meta_info,
            self.end_of_turn,
            self.max_prompt_length,
            self.max_episode_length,
        )

    def token_ids(self) -> tuple[list[int], list[int]]:
        """Ids of the prompt, and of the reply so far."""
        return self.prompt_ids, self.context_ids

    def padded_sizes(self) -> tuple[int | None, int | None]:
        """P and T."""
        return self.max_prompt_length, self.max_episode_length

    def tokenizer_of_ids(self) -> Any:
        """Tokenizer of the ids."""
        return self.end_of_turn.tokenizer

    def to_dict(self, max_prompt_length: int, max_episode_length: int, pad_token_id: int) -> dict[str, np.ndarray]:
        """Convert to fixed-size arrays for gymnasium: the prompt padded on the left, the context on the right.

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
