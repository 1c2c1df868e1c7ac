"""The state of a finished reply for token-level rewards, if only its text is available."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rl4dialog.core.errors import RewardError
from rl4dialog.core.reward_parts import FinishedReplies
from rl4dialog.text.padded_ids import PaddedIds
from rl4dialog.text.prompts import encode_prompt


@dataclass
class TextState(PaddedIds):
    """The state after a finished reply. Its tensors and its ``action_history`` contain the text's tokens, unpadded."""

    prompt_or_input_text: str
    context_text: str
    target_or_reference_texts: list[str]
    meta_info: dict[str, Any]
    tokenizer: Any = None
    prompt_ids: list[int] = field(default_factory=list)
    context_ids: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, replies: FinishedReplies, row: int, tokenizer: Any = None) -> TextState:
        """Return the state after one of the replies."""
        texts = (replies.prompt_texts[row], replies.gen_texts[row], replies.ref_texts[row])
        return cls(*texts, replies.meta_infos[row], tokenizer)

    def token_ids(self) -> tuple[list[int], list[int]]:
        tokenizer = self.tokenizer_of_ids()
        reply: list[int] = tokenizer(self.context_text, add_special_tokens=False)["input_ids"]
        return encode_prompt(tokenizer, self.prompt_or_input_text, None), reply

    def tokenizer_of_ids(self) -> Any:
        if self.tokenizer is None:
            raise RewardError("the reply has no token ids, because only its text is available here")
        return self.tokenizer
