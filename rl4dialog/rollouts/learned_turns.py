"""What is learned of conversations that were held before: prompts and replies as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rl4dialog.core.protocols import Toolbox
from rl4dialog.core.types import Frame, Turn
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import History, encode_reply


@dataclass(frozen=True)
class Limits:
    """Maximum lengths in tokens; ``None`` for no limit."""

    prompt: int | None = None  # of a prompt
    reply: int | None = None  # of a reply with its end. A longer one is cut, and has no end
    total: int | None = None  # of a prompt and its reply together


@dataclass(frozen=True)
class LearnedTurn:
    """One reply in a conversation: what the model reads, and what it learns to say."""

    prompt: list[int]  # token ids of the prompt
    reply: list[int]  # token ids of the reply with its end; empty after the last answer of the partner
    is_cut: bool  # whether the reply lost its end
    n_dropped: int  # utterances dropped from the prompt so far


def learned_turns(
    prompt: str,
    said: Sequence[Turn],
    end: EndOfTurn,
    limits: Limits,
    frame: Frame,
    rules: ConversationRules,
    in_encoder: bool = False,
    toolbox: Toolbox | None = None,
) -> list[LearnedTurn]:
    """Encode what the agent and its partner said in turn after a prompt, with the token ids of turns that have some.

    Returns one element per reply of the agent and, if the partner has the last word, one more with an empty reply. The
    rules say how much the model reads, and what ends a conversation; ``max_turns`` does not apply. ``in_encoder``: an
    encoder reads the prompts, and a decoder generates the replies. Calls for the toolbox have tools' answers.
    """
    calls = [toolbox is not None and toolbox.takes(turn.text) for turn in said[::2]]
    if toolbox is not None:
        own = [replace(turn, text="".join(toolbox.written(turn.text))) for turn in said[::2]]
        said = [own[i // 2] if i % 2 == 0 else turn for i, turn in enumerate(said)]
    tokenizer, before = end.tokenizer, "" if in_encoder else prompt
    own, answers = [*said[::2]], [*said[1::2]]
    for n, (mine, theirs) in enumerate(zip(own, answers, strict=False)):
        if rules.ends("agent", mine.text) or rules.ends("partner", theirs.text):
            own, answers = own[: n + 1], answers[:n]
            break
    limit = min((n for n in (limits.reply, limits.total and limits.total - 1) if n is not None), default=None)
    whole, replies = [], []
    for turn in own:
        ids = encode_reply(tokenizer, turn.text, end.marker, prompt=before) if turn.ids is None else [*turn.ids]
        whole.append(ids)
        if limit is not None and len(ids) > limit:
            known = turn.ids is not None
            ids = ids[:limit] if known else encode_reply(tokenizer, turn.text, end.marker, limit, before)
        replies.append(ids)
    room = limits.total and limits.total - max(map(len, replies))
    limit = min((n for n in (limits.prompt, room) if n is not None), default=None)
    history = History(tokenizer, prompt, limit, frame=frame, max_utterances=rules.context_turns)
    turns = []
    for i, reply in enumerate(replies):
        turns.append(LearnedTurn(history.prompt_ids, reply, len(reply) < len(whole[i]), history.n_dropped))
        if i < len(answers):
            of_tool = toolbox.frame if toolbox is not None and calls[i] else None
            heard, heard_ids = rules.heard(answers[i].text, frame, tokenizer, answers[i].ids)
            if calls[i]:
                heard, heard_ids = (of_tool or frame).bare(answers[i].text), None
            history.go_on(reply, own[i].text, heard, end, heard_ids, of_tool)
    if len(answers) == len(own):
        turns.append(LearnedTurn(history.prompt_ids, [], False, history.n_dropped))
    return turns
