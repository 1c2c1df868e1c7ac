"""Token ids of prompts and of conversations in progress.

All prompts are encoded here: those of samples, of supervised examples, of rollouts, chats and rewards. An utterance is
encoded together with the markup after it, as the continuation of the markup before it, so that the ids of a
conversation are those of its text in one piece.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.core.types import Frame, Prompt, PromptTurn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rl4dialog.text.end_of_turn import EndOfTurn

_CACHE_SIZE = 20_000  # utterances


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    max_length: int | None,
    truncation_side: str = "left",
    end_of_turn: str | None = None,
) -> list[int]:
    """Encode a prompt as 1 to ``max_length`` token ids.

    A long prompt with known turns loses its oldest turns; its opening, such as a persona, stays. Begin- and
    end-of-sequence tokens that the tokenizer adds to every text are kept, too.

    Args:
        tokenizer: The model's tokenizer.
        text: The prompt. The turns of a :class:`~rl4dialog.core.types.Prompt` are known.
        max_length: Maximum number of tokens; ``None`` for no limit.
        truncation_side: Side at which long prompts are truncated; on the right, tokens are cut.
        end_of_turn: Text at the end of every turn of a plain text, if its turns are to be dropped whole.

    Raises:
        DataError: If the opening leaves no room for a turn.
        ModelError: If the prompt is empty and the tokenizer has neither a begin- nor an end-of-sequence token.
    """
    return History(tokenizer, with_turns(text, end_of_turn), max_length, truncation_side).prompt_ids


def with_turns(text: str, end_of_turn: str | None) -> str:
    """Split a plain text into turns at the marker, if there is one."""
    if isinstance(text, Prompt) or not end_of_turn or end_of_turn not in text:
        return text
    *said, rest = text.split(end_of_turn)
    # As markup, in which special tokens are recognized, because a plain text may contain some.
    turns = [PromptTurn("", each + end_of_turn) for each in said]
    if rest.strip():
        turns.append(PromptTurn("", rest))
    else:
        turns[-1] = turns[-1]._replace(closing=turns[-1].closing + rest)
    return Prompt(turns, agent_opening=None)


class Encoder:
    """Encodes parts of a conversation with one tokenizer.

    Attributes:
        opening: Ids that the tokenizer puts before every text, such as the begin-of-sequence token.
        closing: Ids that it puts after every text.
        special_ids: Ids of its special tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        added = sorted(map(str, tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
        self.special_ids = frozenset(tokenizer.added_tokens_decoder)
        self._added = re.compile("|".join(map(re.escape, added)) or "(?!)")
        inner, outer = self.ids("a"), tokenizer("a", verbose=False)["input_ids"]
        start = next((i for i in range(len(outer)) if outer[i : i + len(inner)] == inner), 0)
        self.opening, self.closing = outer[:start], outer[start + len(inner) :]
        self._known_ids = functools.lru_cache(_CACHE_SIZE)(self.ids)
        self.utterance = functools.lru_cache(_CACHE_SIZE)(self._utterance)

    def ids(self, text: str) -> list[int]:
        """Encode a text without the tokens that the tokenizer adds to every text."""
        # Not the tokenizer's own truncation, which is mutable state shared by all its users.
        encoded = self._tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)
        ids: list[int] = encoded["input_ids"]
        return ids

    def continued(self, text: str, before: str) -> list[int]:
        """Encode a text as the continuation of another one, for tokenizers that add a space in front of a text."""
        if not text or not before:
            return self.ids(text)
        first, both = self._known_ids(before), self.ids(before + text)
        is_apart = both[: len(first)] == first and len(both) > len(first)
        # A token across the border, or an unknown word, belongs to both texts.
        return both[len(first) :] if is_apart and self._tokenizer.unk_token_id not in both else self.ids(text)

    def _utterance(self, text: str, markup: str, before: str) -> tuple[int, ...]:
        """Encode an utterance, in which special tokens are ordinary text, and the markup after it.

        Args:
            text: The utterance.
            markup: Text after it.
            before: Markup before it; empty at the start of the prompt.
        """
        ids: list[int] = []
        for piece in self._inert(text + markup, len(text)):
            ids += self.continued(piece, before)
            before = piece[-1]
        return tuple(ids)

    def _inert(self, text: str, n: int) -> Iterator[str]:
        """Split a text within each special token among its first n characters, so that none is recognized there."""
        start = 0
        for match in self._added.finditer(text, 0, n):
            yield text[start : match.start() + 1]
            start = match.start() + 1
        yield text[start:]

    def is_marked(self, text: str) -> bool:
        """Whether a text already starts with the begin-of-sequence token, written by a chat template."""
        bos = self._tokenizer.bos_token
        return bool(bos) and text.startswith(str(bos))


def encoder_of(tokenizer: PreTrainedTokenizerBase) -> Encoder:
    """Return the encoder of a tokenizer, which remembers the utterances that it has encoded."""
    return _encoder(tokenizer, len(tokenizer))


@functools.lru_cache(maxsize=8)
def _encoder(tokenizer: PreTrainedTokenizerBase, n_tokens: int) -> Encoder:
    del n_tokens  # another encoder is needed after tokens were added
    return Encoder(tokenizer)


class _Utterance(NamedTuple):
    ids: Sequence[int]
    turn: PromptTurn


class History:
    """The agent's view of a conversation: its opening, and the last utterances that fit.

    Whole utterances are dropped, oldest first; only a last one that is too long alone loses its beginning. The ids of
    an utterance are computed once, and those that the agent generated are kept as they are.

    Args:
        tokenizer: The model's tokenizer.
        prompt: The conversation so far; a plain text counts as one utterance.
        max_length: P, the maximum number of tokens; ``None`` for no limit.
        truncation_side: Side at which a long prompt is truncated; on the right, tokens are cut.
        frame: Markup of the utterances to come; required to continue.
        max_utterances: Maximum number of utterances shown; ``None`` for all that fit.

    Raises:
        DataError: If the opening leaves no room for an utterance.
        ModelError: If the prompt is empty, and the tokenizer has no token to start from.

    Attributes:
        prompt: The whole conversation, with the utterances that were dropped.
        n_dropped: Number of utterances dropped so far.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: str,
        max_length: int | None,
        truncation_side: str = "left",
        frame: Frame | None = None,
        max_utterances: int | None = None,
    ) -> None:
        self._tokenizer, self._encoder = tokenizer, encoder_of(tokenizer)
        self._max_length, self._frame, self._max_utterances = max_length, frame, max_utterances
        self.prompt, self.n_dropped = prompt, 0
        is_marked = self._encoder.is_marked(prompt)
        self._first_ids: list[int] = [] if is_marked else self._encoder.opening
        self._last_ids: list[int] = [] if is_marked else self._encoder.closing
        self._utterances: list[_Utterance] = []
        if isinstance(prompt, Prompt):
            self._set_opening(prompt.opening)
            before = prompt.opening[-1] if prompt.opening else ""
            for turn in prompt.turns:
                self._add(self._encoder.utterance(turn.text, turn.closing, before), turn)
                before = turn.closing
        else:
            self._opening = self._first_ids
            self._add(self._encoder.ids(prompt), PromptTurn(prompt, ""))
        if not self.prompt_ids:
            self._opening = [self._start_id()]
        if truncation_side == "left":
            self._drop()
        elif max_length is not None and len(self.prompt_ids) > max_length:
            n = max(max_length - len(self._last_ids), 0)
            self._opening = self.prompt_ids[:n] if n else self.prompt_ids[:max_length]
            self._utterances, self._last_ids = [], self._last_ids if n else []

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt, at most P."""
        return [*self._opening, *(id for said in self._utterances for id in said.ids), *self._last_ids]

    def go_on(
        self,
        own_ids: Sequence[int],
        own_text: str,
        answer: str,
        end_of_turn: EndOfTurn,
        answer_ids: Sequence[int] | None = None,
    ) -> None:
        """Append an utterance of the agent and the partner's answer.

        Args:
            own_ids: The agent's tokens, with the end if there is one.
            own_text: The agent's utterance, without markup.
            answer: The partner's utterance.
            end_of_turn: Detects the end among the agent's tokens.
            answer_ids: Tokens of the answer, if they are known; used unless a special one is among them.
        """
        assert self._frame is not None
        frame = self._frame
        own = PromptTurn(own_text, frame.to_partner, not frame.in_pairs)
        other = PromptTurn(answer, frame.to_agent)
        self._add(self._closed(own_ids, end_of_turn), own)
        if answer_ids is None or self._encoder.special_ids.intersection(answer_ids):
            self._add(self._encoder.utterance(answer, other.closing, frame.to_partner), other)
        else:
            self._add([*answer_ids, *self._encoder.continued(other.closing, answer[-1:])], other)
        if isinstance(self.prompt, Prompt):
            past = self.prompt
            openings = (past.opening, past.later_opening, past.agent_opening)
            self.prompt = Prompt((*past.turns, own, other), *openings)
        else:
            self.prompt += own_text + own.closing + answer + other.closing
        self._drop()

    def _closed(self, ids: Sequence[int], end_of_turn: EndOfTurn) -> list[int]:
        """Complete the markup after the agent's utterance, of which its end is the beginning."""
        assert self._frame is not None
        markup = self._frame.to_partner
        if not end_of_turn.is_end(ids):
            return [*ids, *self._encoder.continued(markup, "a")]
        if ids[-1] not in end_of_turn.eos_token_ids:
            _, _, rest = markup.partition(str(end_of_turn.marker))
            return [*ids, *self._encoder.continued(rest, str(end_of_turn.marker))]
        closing = self._encoder.continued(markup, "a")
        # An end-of-sequence token that the format does not write is not part of the conversation.
        return [*ids[:-1], *closing] if closing[:1] != [ids[-1]] else [*ids, *closing[1:]]

    def _add(self, ids: Sequence[int], turn: PromptTurn) -> None:
        self._utterances.append(_Utterance(ids, turn))

    def _set_opening(self, pieces: Sequence[str]) -> None:
        """Encode an opening, in which markup and texts alternate."""
        self._opening = [*self._first_ids]
        for i, piece in enumerate(pieces):
            before = pieces[i - 1] if i else ""
            is_markup = i % 2 == 0
            self._opening.extend(
                self._encoder.continued(piece, before) if is_markup else self._encoder.utterance(piece, "", before)
            )

    def _drop(self) -> None:
        """Drop the oldest utterances until the others fit."""
        while self._is_too_long():
            later = (i for i, said in enumerate(self._utterances) if i and said.turn.can_be_first)
            n = next(later, None)
            if n is None:
                break
            self._utterances = self._utterances[n:]
            if not self.n_dropped and isinstance(self.prompt, Prompt):
                self._set_opening(self.prompt.later_opening)
            self.n_dropped += n
        if self._max_length is not None and len(self.prompt_ids) > self._max_length:
            self._cut(self._max_length)

    def _is_too_long(self) -> bool:
        if self._max_utterances is not None and len(self._utterances) > self._max_utterances:
            return True
        return self._max_length is not None and len(self.prompt_ids) > self._max_length

    def _cut(self, max_length: int) -> None:
        """Cut the beginning of the first utterance, which has no place whole."""
        ids, turn = self._utterances[0]
        if self._opening == self._first_ids and len(self._first_ids) + len(self._last_ids) >= max_length:
            self._opening, self._last_ids = [], []
        n_excess = len(self.prompt_ids) - max_length
        n_closing = len(self._encoder.continued(turn.closing, turn.text[-1])) if turn.text else 0
        if n_excess > 0 and len(ids) - n_excess <= n_closing:
            raise DataError(
                f"a prompt's beginning, such as a persona or system message, has {len(self._opening)} tokens, which "
                f"leaves no room for a turn in max_prompt_length: {max_length}; raise it, or shorten the beginning"
            )
        self._utterances[0] = _Utterance(ids[max(n_excess, 0) :], turn)

    def _start_id(self) -> int:
        tokenizer = self._tokenizer
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if start is None:
            raise ModelError("a prompt is empty, and the tokenizer has no token to start from")
        return int(start)
