"""The state of one agent utterance in progress: the prompt, and the reply so far."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl4dialog.text.end_of_turn import EndOfTurn


@dataclass
class Observation:
    """What a policy sees and a token-level reward may read. Attribute names are those of RL4LMs.

    Its padded ids and masks are there too, as tensors that are made when they are asked for:
    ``prompt_or_input_encoded_pt`` (1, P), ``context_encoded_pt`` (1, T) and ``input_encoded_pt`` (1, P + T), each with
    its mask (``prompt_or_input_attention_mask_pt``, ...), int64 and padded on the left. What is different:
    ``context_encoded_pt`` has no start token in front, and T counts one utterance.

    Attributes:
        prompt_ids: Token ids of the prompt, not padded.
        context_ids: Token ids of the reply so far.
        prompt_or_input_text: The sample's prompt; in later turns the history as text.
        target_or_reference_texts: Reference replies.
        meta_info: The sample's meta data.
        end_of_turn: Holds the tokenizer.
        max_prompt_length: P, the size that padded prompts have; ``None`` for that of the prompt.
        max_episode_length: T, likewise of replies.
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
            self.max_prompt_length,
            self.max_episode_length,
        )

    @property
    def prompt_or_input_encoded_pt(self) -> Any:
        """The prompt, padded on the left. Shape (1, P)."""
        return self._padded(self.prompt_ids, self._prompt_size)

    @property
    def prompt_or_input_attention_mask_pt(self) -> Any:
        """1 at the prompt's own tokens. Shape (1, P)."""
        return self._mask(self.prompt_ids, self._prompt_size)

    @property
    def context_encoded_pt(self) -> Any:
        """The reply so far, padded on the left. Shape (1, T)."""
        return self._padded(self.context_ids, self._context_size)

    @property
    def context_attention_mask_pt(self) -> Any:
        """1 at the reply's own tokens. Shape (1, T)."""
        return self._mask(self.context_ids, self._context_size)

    @property
    def input_encoded_pt(self) -> Any:
        """Prompt and reply so far, padded on the left. Shape (1, P + T)."""
        return self._padded([*self.prompt_ids, *self.context_ids], self._prompt_size + self._context_size)

    @property
    def input_attention_mask_pt(self) -> Any:
        """1 at real tokens of prompt and reply. Shape (1, P + T)."""
        return self._mask([*self.prompt_ids, *self.context_ids], self._prompt_size + self._context_size)

    @property
    def _prompt_size(self) -> int:
        return len(self.prompt_ids) if self.max_prompt_length is None else self.max_prompt_length

    @property
    def _context_size(self) -> int:
        return len(self.context_ids) if self.max_episode_length is None else self.max_episode_length

    def _padded(self, ids: Sequence[int], size: int) -> Any:
        return _tensor([int(self.end_of_turn.tokenizer.pad_token_id)] * (size - len(ids)) + list(ids))

    @staticmethod
    def _mask(ids: Sequence[int], size: int) -> Any:
        return _tensor([0] * (size - len(ids)) + [1] * len(ids))

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


def _tensor(row: list[int]) -> Any:
    """A torch tensor of one row. An environment does without torch until a reward asks for one."""
    from transformers import BatchEncoding

    return BatchEncoding({"row": [row]}, tensor_type="pt")["row"]
