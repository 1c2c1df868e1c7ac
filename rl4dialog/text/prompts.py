"""Token ids of prompts and of conversations in progress.

All prompts are encoded here: those of samples, of supervised examples, of rollouts, chats and rewards. An utterance is
encoded together with the markup after it, as the continuation of the markup before it. The ids of a conversation are
therefore those of its text in one piece, unless a token of that piece spans two utterances, or an utterance contains a
special token, which is encoded as ordinary text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.core.types import Frame, Prompt, PromptTurn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rl4dialog.core.protocols import Toolbox
    from rl4dialog.text.end_of_turn import EndOfTurn


_CACHE_SIZE = 20_000  # utterances
# Texts whose last token does not depend on the text after them.
_ANCHORS = ("\n", ".")


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    max_length: int | None,
    truncation_side: str = "left",
    end_of_turn: str | None = None,
) -> list[int]:
    """Encode a prompt as 1 to ``max_length`` token ids, or with ``None`` as any number.

    A long prompt with known turns, a :class:`~rl4dialog.core.types.Prompt` or a plain text whose turns end with the
    text ``end_of_turn``, loses its oldest turns; its opening, such as a persona, stays. On the right, tokens are cut.
    Begin- and end-of-sequence tokens that the tokenizer adds to every text are kept, too. An opening that leaves no
    room for a turn, and an empty prompt without such a token, are errors.
    """
    return History(tokenizer, with_turns(text, end_of_turn), max_length, truncation_side).prompt_ids


def encode_reply(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    end_of_turn: str | None,
    max_length: int | None = None,
    prompt: str = "",
) -> list[int]:
    """Encode a reply with its end, the text ``end_of_turn`` or else the tokenizer's end-of-sequence token.

    A reply of more tokens than ``max_length`` is cut and has no end. The prompt is the one that the reply continues if
    it is a dialogue, and empty if a decoder generates the reply alone.
    """
    prompt, before = with_turns(prompt, end_of_turn), ""
    if isinstance(prompt, Prompt):
        text, before = prompt.reply.around(text), prompt.last_markup
    encode = encoder_of(tokenizer).continued
    whole = encode(text + (end_of_turn or ""), before)
    if end_of_turn is None:
        whole = [*whole, tokenizer.eos_token_id]
    if max_length is None or len(whole) <= max_length:
        return whole
    # Truncate without the end, to avoid keeping a part of it.
    return encode(text, before)[:max_length]


def with_turns(text: str, end_of_turn: str | None) -> str:
    """Split a plain text into turns at the marker, if there is one."""
    if isinstance(text, Prompt) or not end_of_turn or end_of_turn not in text:
        return text
    marker = re.escape(end_of_turn)
    turns = re.findall(rf"(?s:.*?){marker}(?:\s*\Z|\n*)|(?s:.+)", text)
    # As markup, in which special tokens are recognized, because a plain text may contain some.
    return Prompt([PromptTurn("", turn) for turn in turns], agent_opening=None)


def written_calls(toolbox: Toolbox, text: str) -> str:
    """Write calls of tools among the agent's utterances in a prompt, and the markup around their answers."""
    if not isinstance(text, Prompt) or toolbox.frame is None:
        return text
    turns, frame = [*text.turns], toolbox.frame
    for i in range(len(turns) - 2, 0, -2):  # the agent's, as the partner or a tool has the last word
        said = turns[i].text.removeprefix(text.reply.space)
        if toolbox.takes(said):
            before, call, after = toolbox.written(said)
            turns[i - 1] = turns[i - 1]._replace(closing=turns[i - 1].closing + before)  # markup may be special tokens
            turns[i] = PromptTurn(call, after + frame.to_partner, False)
            turns[i + 1] = PromptTurn(turns[i + 1].text, frame.to_agent, False)
    return Prompt(turns, text.opening, text.later_opening, text.agent_opening, text.reply)


class Encoder:
    """Encodes parts of a conversation with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._backend = _checked_backend(tokenizer)
        added = {id: str(token) for id, token in tokenizer.added_tokens_decoder.items()}
        self._unknown_id = tokenizer.unk_token_id
        if self._unknown_id not in (tokenizer.bos_token_id, tokenizer.eos_token_id):
            added.pop(self._unknown_id, None)
        added = {id: token for id, token in added.items() if not token.isspace()}
        self.special_ids = frozenset(added)  # of special and added tokens, except unknown words and whitespace
        longest_first = sorted(added.values(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        inner, outer = self.ids("a"), tokenizer("a", verbose=False)["input_ids"]
        start = next((i for i in range(len(outer)) if outer[i : i + len(inner)] == inner), 0)
        # What the tokenizer puts before and after every text, such as the begin-of-sequence token.
        self.opening, self.closing = outer[:start], outer[start + len(inner) :]
        self._known_ids = functools.lru_cache(_CACHE_SIZE)(self.ids)
        self.utterance = functools.lru_cache(_CACHE_SIZE)(self._utterance)

    def ids(self, text: str) -> list[int]:
        """Encode a text without the tokens that the tokenizer adds to every text."""
        backend = self._backend
        if backend is not None and backend.truncation is None and backend.padding is None:
            return backend.encode(text, add_special_tokens=False).ids
        # Not the tokenizer's own truncation, which is mutable state shared by all its users.
        return self._tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]

    def continued(self, text: str, before: str) -> list[int]:
        """Encode a text as the continuation of another one, for tokenizers that add a space in front of a text."""
        if not text or not before:
            return self.ids(text)
        # If a token spans the border of the two, the text only continues some other text.
        for anchor in (before, *_ANCHORS):
            first, both = self._known_ids(anchor), self.ids(anchor + text)
            if first and first[-1] != self._unknown_id and both[: len(first)] == first:
                return both[len(first) :]
        return self.ids(text)

    def _utterance(self, text: str, markup: str, before: str) -> tuple[int, ...]:
        """Encode an utterance, in which special tokens are ordinary text, and the markup after it."""
        ids: list[int] = []
        for piece in self._inert(text + markup, len(text)):
            ids += self.continued(piece, before)
            before = piece[-1:]
        n_special, expected = (sum(map(self.special_ids.__contains__, each)) for each in (ids, self._known_ids(markup)))
        if text and n_special != expected:
            # The tokenizer recognizes a special token in another spelling, such as lower case.
            inert = [id for letter in text for id in self.continued(letter, ".") if id not in self.special_ids]
            ids = inert + self.continued(markup, ".")
        return tuple(ids)

    def _inert(self, text: str, n: int) -> Iterator[str]:
        """Split a text within each special token among its first n characters, so that none is recognized there."""
        start = 0
        for match in self._special.finditer(text, 0, n):
            yield text[start : match.start() + 1]
            start = match.start() + 1
        yield text[start:]

    def is_marked(self, markup: str) -> bool:
        """Whether a prompt's first markup is the begin-of-sequence token, written by a chat template."""
        bos = self._tokenizer.bos_token
        return bool(bos) and markup.startswith(str(bos))


def _checked_backend(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return the Rust tokenizer behind a tokenizer, which is several times faster, if it gives the same ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = f"A text , with 1 added token{next(map(str, tokenizer.added_tokens_decoder.values()), '')}\n "
    expected = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    if backend is None or backend.encode(text, add_special_tokens=False).ids != expected:
        return None
    return backend


def encoder_of(tokenizer: PreTrainedTokenizerBase) -> Encoder:
    """Return the encoder of a tokenizer, which remembers the utterances that it has encoded."""
    return _encoder(tokenizer, len(tokenizer))


@functools.lru_cache(maxsize=8)
def _encoder(tokenizer: PreTrainedTokenizerBase, n_tokens: int) -> Encoder:
    del n_tokens  # another encoder is needed after tokens were added
    return Encoder(tokenizer)


class _Utterance(NamedTuple):
    """An utterance in a prompt."""

    ids: Sequence[int]  # its tokens and those of the markup after it
    turn: PromptTurn  # the utterance as text
    closing: str = ""  # the markup after it, as far as it is in ``ids``
    space: str = ""  # whitespace of the markup before it, as far as it is in ``ids``


class History:
    """The agent's view of a conversation: its opening, and the last utterances that fit.

    Whole utterances are dropped, oldest first; only a last one that is too long alone loses its beginning. The ids of
    an utterance are computed once, and those that the agent generated are kept as they are.
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
        self.prompt = prompt if isinstance(prompt, Prompt) else Prompt([PromptTurn("", prompt)], agent_opening=None)
        self.n_dropped = self.n_cut = 0  # utterances without a place, and tokens of one that had none whole
        self._utterances: list[_Utterance] = []
        self._set_opening(self.prompt.opening, self.prompt.turns[0] if self.prompt.turns else None)
        for i, turn in enumerate(self.prompt.turns):
            later = self.prompt.turns[i + 1 : i + 2]
            # Whitespace before an utterance is encoded with it; before replies, it is the end of a prompt.
            self._add(turn, leaves_space=bool(later) and later[0].can_be_first)
        if not self.prompt_ids:
            start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
            if start is None:
                raise ModelError("a prompt is empty, and the tokenizer has no token to start from")
            self._opening = [int(start)]
        if truncation_side == "left":
            self._drop()
        elif max_length is not None and len(self.prompt_ids) > max_length:
            self._cut_end(max_length)

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt, at most P."""
        return [*self._opening, *(id for said in self._utterances for id in said.ids), *self._last_ids]

    @property
    def lacks_room(self) -> bool:
        """Whether the length limit dropped utterances that ``max_utterances`` would show."""
        turns = self.prompt.turns
        n_hidden = 0 if self._max_utterances is None else max(len(turns) - self._max_utterances, 0)
        first = next((i for i in range(n_hidden, len(turns)) if turns[i].can_be_first), n_hidden) if n_hidden else 0
        return self.n_dropped > first

    def go_on(
        self,
        own_ids: Sequence[int],
        own_text: str,
        answer: str,
        end_of_turn: EndOfTurn,
        answer_ids: Sequence[int] | None = None,
        of_answer: Frame | None = None,
    ) -> None:
        """Append an utterance of the agent and the partner's answer, or another one with its own markup."""
        assert self._frame is not None
        frame = of_answer or self._frame
        own = PromptTurn(self.prompt.reply.space + own_text, frame.to_partner, not frame.in_pairs)
        other = PromptTurn(answer, frame.to_agent, of_answer is None or not frame.in_pairs)
        closing, self._space = _without_space(own.closing)
        self._utterances.append(_Utterance(self._closed(own_ids, closing, end_of_turn), own, closing))
        self._before = closing
        self._add(other, ids=None if self._encoder.special_ids.intersection(answer_ids or ()) else answer_ids)
        self.prompt = self.prompt.continued(own, other)
        self._drop()

    def _closed(self, ids: Sequence[int], markup: str, end_of_turn: EndOfTurn) -> list[int]:
        """Complete the markup after the agent's utterance, of which its end is the beginning."""
        end = ""
        if end_of_turn.is_end(ids):
            is_token = ids[-1] in end_of_turn.eos_token_ids
            end = str(self._tokenizer.convert_ids_to_tokens(int(ids[-1])) if is_token else end_of_turn.marker)
            before, found, rest = markup.partition(end)
            if found and not before.strip():
                return [*ids, *self._encoder.continued(rest, end)]
            if is_token:  # not part of the conversation, because the format does not end a turn with it
                ids = ids[:-1]
        return [*ids, *self._encoder.continued(markup, "a")]

    def _add(self, turn: PromptTurn, leaves_space: bool = False, ids: Sequence[int] | None = None) -> None:
        closing, space = _without_space(turn.closing) if leaves_space else (turn.closing, "")
        if ids is not None:
            start = self._encoder.continued(self._space, self._before)
            ids = (*start, *ids, *self._encoder.continued(closing, turn.text[-1:]))
        self._utterances.append(self._encoded(turn, closing) if ids is None else _Utterance(ids, turn, closing))
        self._before, self._space = closing or turn.text or self._before, space

    def _encoded(self, turn: PromptTurn, closing: str) -> _Utterance:
        if not turn.text and not self._before:  # plain texts are not worth remembering
            return _Utterance(self._encoder.ids(self._space + closing), turn, closing, self._space)
        ids = self._encoder.utterance(self._space + turn.text, closing, self._before)
        return _Utterance(ids, turn, closing, self._space)

    def _set_opening(self, pieces: Sequence[str], first: PromptTurn | None) -> None:
        """Encode an opening, in which markup and texts alternate."""
        markup = pieces[0] if pieces else first.closing if first is not None and not first.text else ""
        is_marked = self._encoder.is_marked(markup)
        self._first_ids: list[int] = [] if is_marked else self._encoder.opening
        self._last_ids: list[int] = [] if is_marked else self._encoder.closing
        self._opening, self._before, self._space = [*self._first_ids], "", ""
        for i in range(0, len(pieces), 2):
            text, markup = self._space + (pieces[i - 1] if i else ""), pieces[i]
            if i + 2 < len(pieces) or (first is not None and first.can_be_first):
                markup, self._space = _without_space(markup)
            else:
                self._space = ""
            self._opening += self._encoder.utterance(text, markup, self._before)
            self._before = markup or text

    def _drop(self) -> None:
        said, first, before, space = self._utterances, 0, self._before, self._space
        n_ids = sum(len(utterance.ids) for utterance in said)
        while self._is_too_long(n_ids, len(said) - first):
            later = next((i for i in range(first + 1, len(said)) if said[i].turn.can_be_first), None)
            if later is None:
                break
            self._set_opening(self.prompt.later_opening, said[later].turn)
            n_ids -= sum(len(utterance.ids) for utterance in said[first:later])
            if said[later].space != self._space:
                n_ids -= len(said[later].ids)
                said[later] = self._encoded(said[later].turn, said[later].closing)
                n_ids += len(said[later].ids)
            first = later
        self.n_dropped += first
        self._utterances = said[first:]
        if self._max_length is not None and len(self._opening) + n_ids + len(self._last_ids) > self._max_length:
            self._cut_beginning(self._max_length)
        self._before, self._space = before, space  # the end of the prompt is the same

    def _is_too_long(self, n_ids: int, n_utterances: int) -> bool:
        if self._max_utterances is not None and n_utterances > self._max_utterances:
            return True
        n_ids += len(self._opening) + len(self._last_ids)
        return self._max_length is not None and n_ids > self._max_length

    def _cut_beginning(self, max_length: int) -> None:
        """Cut the beginning of the first utterance, which has no place whole."""
        if self._utterances and self._utterances[0].space:  # which is markup, and stays
            self._set_opening(self.prompt.later_opening if self.n_dropped else self.prompt.opening, None)
            self._utterances[0] = self._encoded(self._utterances[0].turn, self._utterances[0].closing)
        has_opening = len(self._opening) > len(self._first_ids)
        if not has_opening and max_length <= len(self._first_ids) + len(self._last_ids):
            self._last_ids = []
            if max_length <= len(self._first_ids):
                self._first_ids = self._opening = []
        n_excess = len(self.prompt_ids) - max_length
        if not self._utterances or (has_opening and n_excess > self._n_loose(self._utterances[0])):
            raise DataError(
                f"a prompt's beginning, such as a persona or system message, has {len(self._opening)} tokens, which "
                f"leaves no room for a turn in max_prompt_length: {max_length}; raise it, or shorten the beginning"
            )
        self.n_cut += max(n_excess, 0)
        ids = [id for said in self._utterances for id in said.ids]
        self._utterances = [_Utterance(ids[max(n_excess, 0) :], self._utterances[0].turn, self._utterances[0].closing)]

    def _n_loose(self, said: _Utterance) -> int:
        """Number of tokens that an utterance can lose without losing all its text, or the markup after it."""
        n_closing = len(self._encoder.continued(said.closing, said.turn.text[-1:]))
        return max(len(said.ids) - n_closing - 1, 0) if said.turn.text else 0

    def _cut_end(self, max_length: int) -> None:
        """Cut the end of the prompt, except what the tokenizer adds to every text."""
        if len(self._last_ids) >= max_length:
            self._last_ids = []
        whole = self.prompt_ids
        ids = whole[: max_length - len(self._last_ids)]
        self.n_cut += len(whole) - len(ids)
        n = len(self._opening)
        self._opening, self._utterances = ids[:n], [_Utterance(ids[n:], PromptTurn("", ""))]


def _without_space(markup: str) -> tuple[str, str]:
    """Split whitespace off the end of markup, if anything else is in it."""
    kept = markup.rstrip()
    return (kept, markup[len(kept) :]) if kept else (markup, "")


def _tensor(part: int, is_mask: int, doc: str) -> Any:
    """An attribute of `PaddedIds`: ids or mask of the prompt, the reply, or both."""
    return property(lambda self: self._padded()[part][is_mask], doc=doc)


class PaddedIds:
    """Mixin for a class with token ids. All tensors are int64, left-padded, and have one row."""

    prompt_or_input_encoded_pt = _tensor(0, 0, "The prompt. Shape (1, P).")
    prompt_or_input_attention_mask_pt = _tensor(0, 1, "1 at the prompt's own tokens. Shape (1, P).")
    context_encoded_pt = _tensor(1, 0, "The reply so far, without a leading start token. Shape (1, T).")
    context_attention_mask_pt = _tensor(1, 1, "1 at the reply's own tokens. Shape (1, T).")
    input_encoded_pt = _tensor(2, 0, "Prompt and reply so far. Shape (1, P + T).")
    input_attention_mask_pt = _tensor(2, 1, "1 at real tokens of prompt and reply. Shape (1, P + T).")

    def token_ids(self) -> tuple[Sequence[int], Sequence[int]]:
        """Ids of the prompt, and of the reply so far."""
        raise NotImplementedError

    def padded_sizes(self) -> tuple[int | None, int | None]:
        """P and T: padded lengths of prompts and replies; ``None`` for no padding."""
        return None, None

    def tokenizer_of_ids(self) -> Any:
        raise NotImplementedError

    @property
    def action_history(self) -> list[str]:
        """The reply so far as tokens."""
        return list(self.tokenizer_of_ids().convert_ids_to_tokens(list(self.token_ids()[1])))

    def _padded(self) -> list[tuple[Any, Any]]:
        from transformers import BatchEncoding  # environments do not load torch until a reward needs a tensor

        parts = [list(ids) for ids in self.token_ids()]
        sizes = [len(ids) if size is None else size for ids, size in zip(parts, self.padded_sizes(), strict=True)]
        pad_token_id = int(self.tokenizer_of_ids().pad_token_id)
        found = []
        for ids, size in zip((*parts, [*parts[0], *parts[1]]), (*sizes, sum(sizes)), strict=True):
            n_before = size - len(ids)
            rows = {"ids": [[pad_token_id] * n_before + ids], "mask": [[0] * n_before + [1] * len(ids)]}
            tensors = BatchEncoding(rows, tensor_type="pt")
            found.append((tensors["ids"].long(), tensors["mask"].long()))
        return found
