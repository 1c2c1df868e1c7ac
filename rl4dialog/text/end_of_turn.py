"""Detects the end of a reply: any end-of-sequence token, or the completed turn marker of the dialogue format.

The environment and the generation loop share one object, so that sampling, stepping, scoring and training all end at
the same token. A marker such as ``<EOU>`` is several tokens in most vocabularies, so it is detected in decoded text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class EndOfTurn:
    """Detects the last token of a reply.

    Either one of the ids that end a sequence (see :func:`end_of_sequence_ids`), or the last one of the marker, the text
    that ends a turn in the dialogue format, if there is one; a marker that is a special token is one of these ids.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Iterable[int], marker: str | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.eos_token_ids = frozenset(int(id) for id in eos_token_ids)
        self.marker = marker or None
        self._text = self.marker  # the marker, if it is text in a decoded reply
        special = {str(token): id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
        if self.marker in special:
            self.eos_token_ids, self._text = self.eos_token_ids | {special[self.marker]}, None
        self._may_complete_marker: frozenset[int] = frozenset()
        self.single_token_ids: frozenset[int] = self.eos_token_ids
        """Ids that end a reply on their own; they are suppressed until the minimum length is reached."""
        if self._text:
            tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
            last = self._text[-1], f"<0x{self._text.encode()[-1]:02X}>"  # the latter where tokens are bytes
            self._may_complete_marker = frozenset(
                id for id, token in enumerate(tokens) if token is not None and any(each in token for each in last)
            )
            whole = {id for id in self._may_complete_marker if self._text in tokens[id]}
            self.single_token_ids = self.eos_token_ids | whole

    def is_end(self, ids: Sequence[int]) -> bool:
        """Whether the last of these tokens ends the reply, given that no earlier one did."""
        if not ids:
            return False
        if ids[-1] in self.eos_token_ids:
            return True
        if self._text is None or ids[-1] not in self._may_complete_marker:
            return False
        # Each token has at least one character of the marker, so this many tokens can contain the whole marker.
        tail = [int(id) for id in ids[-len(self._text) :]]
        return self._text in self.tokenizer.decode(tail, skip_special_tokens=False)

    def until_end(self, ids: list[int]) -> list[int]:
        """The tokens up to the end of a reply, or all of them."""
        return next((ids[:n] for n in range(1, len(ids)) if self.is_end(ids[:n])), ids)

    def reply_text(self, ids: Sequence[int]) -> str:
        """Decode the reply without special tokens, turn marker and surrounding whitespace.

        A beginning of the marker at the end of a truncated reply is removed, too, unless it could begin a word.
        """
        own = [int(id) for id in ids if int(id) not in self.eos_token_ids]
        text = str(self.tokenizer.decode(own, skip_special_tokens=True))
        if self._text:
            text, marker, _ = text.partition(self._text)
            if not marker and not self._text[0].isalnum() and not (ids and ids[-1] in self.eos_token_ids):
                begun = (self._text[:length] for length in range(len(self._text) - 1, 0, -1))
                text = text.removesuffix(next(filter(text.endswith, begun), ""))
        return text.strip()


def end_of_sequence_ids(tokenizer: PreTrainedTokenizerBase, *configs: Any) -> list[int]:
    """Return all end-of-sequence ids of the tokenizer and of any model or generation config.

    A chat model often lists its template's end-of-turn token only in its generation config.
    """
    found: set[int] = set()
    for source in (tokenizer, *configs):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            found.update([ids] if isinstance(ids, int) else ids)
    return sorted(int(id) for id in found)
