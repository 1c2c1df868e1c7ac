"""Conversations that have been said already, as token ids: the prompts that a rollout would show, and rows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rl4dialog.core.types import Frame
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import History, encode_reply


@dataclass(frozen=True)
class Limits:
    """Maximum lengths in tokens; ``None`` for no limit.

    Attributes:
        prompt: Of a prompt.
        reply: Of a reply with its end. A longer one is cut, and has no end.
        total: Of a prompt and its reply together.
    """

    prompt: int | None = None
    reply: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class LearnedTurn:
    """One reply in a conversation: what the model reads, and what it learns to say.

    Attributes:
        prompt: Token ids of the prompt.
        reply: Token ids of the reply with its end; empty after the last answer of the partner.
        is_cut: Whether the reply lost its end.
        n_dropped: Utterances dropped from the prompt so far.
    """

    prompt: list[int]
    reply: list[int]
    is_cut: bool
    n_dropped: int


@dataclass
class Row:
    """A prompt and all that followed it.

    Attributes:
        prompt: Token ids of the first prompt.
        response: Token ids of the replies, and of what is between them.
        is_agents: Whether each token of the response is the agent's.
        turns: Turn number of each of these tokens of the agent, from 0.
    """

    prompt: list[int]
    response: list[int] = field(default_factory=list)
    is_agents: list[bool] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """All token ids."""
        return self.prompt + self.response


def learned_turns(
    prompt: str,
    said: Sequence[str],
    end: EndOfTurn,
    limits: Limits,
    frame: Frame,
    rules: ConversationRules,
    ids: Sequence[Sequence[int] | None] = (),
    in_encoder: bool = False,
) -> list[LearnedTurn]:
    """Encode a conversation.

    Args:
        prompt: Prompt before the first reply.
        said: What was said after it; the agent and its partner alternate.
        end: Detects the end of a reply, and has the tokenizer.
        limits: Maximum lengths.
        frame: Markup around the utterances.
        rules: How much the model reads, and what ends a conversation; ``max_turns`` does not apply.
        ids: Token ids of the utterances, where they are known; those of a reply include its end.
        in_encoder: Whether an encoder reads the prompts and a decoder generates the replies.

    Returns:
        One element per reply of the agent. If the partner has the last word, one more, with an empty reply.
    """
    tokenizer, before = end.tokenizer, "" if in_encoder else prompt
    known = [*ids, *[None] * (len(said) - len(ids))]
    ends = (i for i in range(0, len(said) - 1, 2) if rules.ends("agent", said[i]) or rules.ends("partner", said[i + 1]))
    said = said[: next(ends, len(said)) + 1]
    whole = [
        list(own) if own is not None else encode_reply(tokenizer, text, end.marker, prompt=before)
        for text, own in zip(said[::2], known[::2], strict=False)
    ]
    limit = min((n for n in (limits.reply, limits.total and limits.total - 1) if n is not None), default=None)
    replies = []
    for text, own, all_ids in zip(said[::2], known[::2], whole, strict=False):
        fits = limit is None or len(all_ids) <= limit
        cut = all_ids[:limit] if own is not None else None
        replies.append(all_ids if fits else cut or encode_reply(tokenizer, text, end.marker, limit, before))
    room = limits.total and limits.total - max(map(len, replies))
    limit = min((n for n in (limits.prompt, room) if n is not None), default=None)
    history = History(tokenizer, prompt, limit, frame=frame, max_utterances=rules.context_turns)
    turns = []
    for i, reply in enumerate(replies):
        turns.append(LearnedTurn(history.prompt_ids, reply, len(reply) < len(whole[i]), history.n_dropped))
        if 2 * i + 1 < len(said):
            answer, answer_ids = rules.heard(said[2 * i + 1], frame, tokenizer, known[2 * i + 1])
            history.go_on(reply, said[2 * i], answer, end, answer_ids)
    if len(said) % 2 == 0:
        turns.append(LearnedTurn(history.prompt_ids, [], False, history.n_dropped))
    return turns


def joined_rows(turns: Sequence[LearnedTurn], join: bool = True) -> list[Row]:
    """Join turns to rows; a new row begins where earlier utterances were dropped, or after every turn.

    A row is as long as its last turn's prompt and reply together.

    Args:
        turns: Turns of one conversation.
        join: Whether to join them.
    """
    rows: list[Row] = []
    for number, turn in enumerate(turns):
        ids = rows[-1].ids if rows else []
        if not rows or not join or turn.prompt[: len(ids)] != ids:
            rows.append(Row(turn.prompt))
            ids = turn.prompt
        between = turn.prompt[len(ids) :]
        rows[-1].response += [*between, *turn.reply]
        rows[-1].is_agents += [*[False] * len(between), *[True] * len(turn.reply)]
        rows[-1].turns += [number] * len(turn.reply)
    return rows
