"""The partner's side of a conversation, if it answers from outside of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Prompt
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.dialogue_text import persona_in
from rl4dialog.envs.observation import Observation
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import History


@dataclass(frozen=True)
class OutsidePartner:
    """What an environment knows of a partner outside: its tokenizer and format, not its model.

    Attributes:
        dialogue_format: Format of its prompts.
        end_of_turn: Detects the end of its utterance, and has its tokenizer.
        vocab_size: Number of rows of its model's embedding.
        max_prompt_length: Maximum length of its prompts, in its tokens; at most that of the agent's prompts counts.
        max_length: Maximum length of its utterances, in its tokens.
        persona_key: Key of its persona in the sample's ``meta_data``; a text, or a list of sentences.
        is_seeded: Whether observations contain a seed of the conversation, ``partner_seed``.
    """

    dialogue_format: DialogueFormat
    end_of_turn: EndOfTurn
    vocab_size: int
    max_prompt_length: int
    max_length: int
    persona_key: str = "partner_persona"
    is_seeded: bool = False


class PartnersSide:
    """A conversation as an outside partner sees it: its own utterances are those of the assistant.

    Args:
        outside: What is known of the partner.
    """

    def __init__(self, outside: OutsidePartner) -> None:
        self._outside = outside
        self._frame = outside.dialogue_format.frame()
        self._history: History | None = None
        self._last: tuple[Sequence[int], str] | None = None  # its last utterance

    def begin(self, meta_info: dict[str, Any]) -> None:
        """Start a conversation about a sample."""
        self._history, self._last = None, None
        self._persona = persona_in(meta_info, self._outside.persona_key)

    def asked(self, texts: Sequence[str]) -> Observation:
        """Return the state in which the partner starts to answer.

        Args:
            texts: All utterances so far, of which the last is the agent's; empty if the partner opens.
        """
        outside = self._outside
        if self._history is None:
            prompt, tokenizer = self._first_prompt(texts), outside.end_of_turn.tokenizer
            try:
                self._history = History(tokenizer, prompt, outside.max_prompt_length, "left", self._frame)
            except DataError as error:
                raise DataError(f"in the prompt of the partner, {error}") from error
        elif self._last is not None:
            self._history.go_on(*self._last, texts[-1], outside.end_of_turn)
        sizes = (outside.max_prompt_length, outside.max_length)
        history = self._history
        return Observation(history.prompt_ids, [], history.prompt, [], {}, outside.end_of_turn, *sizes)

    def _first_prompt(self, texts: Sequence[str]) -> Prompt:
        try:
            if texts:
                return self._outside.dialogue_format.prompt(texts, self._persona)
            return self._outside.dialogue_format.opening_prompt(self._persona)
        except DataError as error:
            raise DataError(
                f"in the prompt of the partner, whose own utterances are those of the assistant, {error}; if its chat "
                f"template needs a first message of the user, use env.args.first_speaker: agent"
            ) from error

    def said(self, ids: Sequence[int]) -> str:
        """Return the text of the partner's utterance, and remember its tokens."""
        text = self._outside.end_of_turn.reply_text(ids)
        self._last = ids, text
        return text


def first_prompts(
    outside: OutsidePartner, conversations: Sequence[tuple[Sequence[str], dict[str, Any]]]
) -> dict[str, np.ndarray]:
    """Encode conversations for a partner that has not spoken in them, or whose tokens are not known.

    Args:
        outside: What is known of the partner.
        conversations: Utterances and meta data of each.

    Returns:
        ``prompt_ids`` and ``prompt_mask``, padded on the left to the longest one. Shape (conversations, L).
    """
    rows = []
    for texts, meta_info in conversations:
        side = PartnersSide(outside)
        side.begin(meta_info)
        rows.append(side.asked(texts).prompt_ids)
    width, pad = max(map(len, rows)), outside.end_of_turn.tokenizer.pad_token_id
    ids, mask = np.full((len(rows), width), pad, np.int64), np.zeros((len(rows), width), np.int64)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :], mask[i, width - len(row) :] = row, 1
    return {"prompt_ids": ids, "prompt_mask": mask}
