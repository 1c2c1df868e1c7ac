"""Formats prompts with a tokenizer's chat template."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from rl4dialog.core.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]

_EXAMPLE = ("Hello", "How are you?", "Fine.")


class ChatTemplate:
    """Formats messages as a prompt for the assistant's reply.

    Args:
        tokenizer: A tokenizer with a chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    @property
    def name(self) -> str:
        """Name of the tokenizer, for messages."""
        return repr(self._tokenizer.name_or_path)

    def __call__(self, messages: list[Message]) -> str:
        """Format messages with ``role`` and ``content``.

        Raises:
            DataError: If there is no template, or it rejects these messages or fails.
        """
        if not self._tokenizer.chat_template:
            raise DataError(
                f"format 'chat_template' needs a tokenizer with a chat template, and {self.name} has none; choose "
                "another tokenizer.model_name, or format 'eou'"
            )
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program: TypeError, ZeroDivisionError, RecursionError, ...
            if not messages:
                raise DataError(
                    f"nothing was said before the reply, and the chat template of {self.name} needs a message; give a "
                    f"first message or one of the role system, or use format 'eou'"
                ) from error
            roles = ", ".join(message["role"] for message in messages)
            raise DataError(
                f"the chat template of {self.name} rejects messages of the roles {roles}: {error}"
            ) from error

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """Special tokens that the template adds around messages, such as ``<|im_start|>``."""
        roles = ("user", "assistant", "user")
        written = self([{"role": role, "content": text} for role, text in zip(roles, _EXAMPLE, strict=True)])
        added = [str(token) for token in self._tokenizer.added_tokens_decoder.values() if token.special]
        special = dict.fromkeys([*self._tokenizer.all_special_tokens, *added])
        return tuple(token for token in special if token and token in written)
