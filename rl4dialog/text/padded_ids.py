"""RL4LMs' tensors of a prompt and its reply, created from token ids on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PaddedIds:
    """Mixin for a class with token ids. All tensors are int64, left-padded, and have one row."""

    def token_ids(self) -> tuple[Sequence[int], Sequence[int]]:
        """Ids of the prompt, and of the reply so far."""
        raise NotImplementedError

    def padded_sizes(self) -> tuple[int | None, int | None]:
        """P and T: padded lengths of prompts and replies; ``None`` for no padding."""
        return None, None

    def tokenizer_of_ids(self) -> Any:
        """Tokenizer of the ids."""
        raise NotImplementedError

    @property
    def prompt_or_input_encoded_pt(self) -> Any:
        """The prompt. Shape (1, P)."""
        return self._padded()[0][0]

    @property
    def prompt_or_input_attention_mask_pt(self) -> Any:
        """1 at the prompt's own tokens. Shape (1, P)."""
        return self._padded()[0][1]

    @property
    def context_encoded_pt(self) -> Any:
        """The reply so far, without a leading start token. Shape (1, T)."""
        return self._padded()[1][0]

    @property
    def context_attention_mask_pt(self) -> Any:
        """1 at the reply's own tokens. Shape (1, T)."""
        return self._padded()[1][1]

    @property
    def input_encoded_pt(self) -> Any:
        """Prompt and reply so far. Shape (1, P + T)."""
        return self._padded()[2][0]

    @property
    def input_attention_mask_pt(self) -> Any:
        """1 at real tokens of prompt and reply. Shape (1, P + T)."""
        return self._padded()[2][1]

    @property
    def action_history(self) -> list[str]:
        """The reply so far as tokens."""
        return list(self.tokenizer_of_ids().convert_ids_to_tokens(list(self.token_ids()[1])))

    def _padded(self) -> list[tuple[Any, Any]]:
        """Ids and mask of prompt, reply, and both."""
        from transformers import BatchEncoding  # environments do not load torch until a reward needs a tensor

        prompt, reply = map(list, self.token_ids())
        n_prompt, n_reply = (
            len(ids) if size is None else size for ids, size in zip((prompt, reply), self.padded_sizes(), strict=True)
        )
        pad_token_id = int(self.tokenizer_of_ids().pad_token_id)
        found = []
        for ids, size in ((prompt, n_prompt), (reply, n_reply), (prompt + reply, n_prompt + n_reply)):
            n_before = size - len(ids)
            rows = {"ids": [[pad_token_id] * n_before + ids], "mask": [[0] * n_before + [1] * len(ids)]}
            tensors = BatchEncoding(rows, tensor_type="pt")
            found.append((tensors["ids"].long(), tensors["mask"].long()))
        return found
