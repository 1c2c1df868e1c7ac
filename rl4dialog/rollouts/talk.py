"""The record of a conversation in rollouts, evaluations and simulations: what each side said, and what it earned."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rl4dialog.core.types import AGENT, SYSTEM_KEY, Dialogue, Sample, Turn, reply_dialogue, system_text
from rl4dialog.functional.replies import Replies


@dataclass(eq=False)
class Reply:
    """One utterance of the agent, or of a partner that learns, which has tokens only."""

    prompt: str = ""  # what the agent read
    text: str = ""  # what it said
    references: list[str] = field(default_factory=list)  # reference replies
    meta_info: dict[str, Any] = field(default_factory=dict)  # meta data of the sample, with those of the turn
    batch: Replies | None = None  # batch with its tokens, in main memory; None for a text from elsewhere
    row: int = 0  # its row there
    n_tokens: int = 0  # number of its tokens
    is_cut: bool = False  # whether it was cut at the length limit
    # Task rewards of its tokens, without the KL penalty; None until it is paid. Shape (n,).
    rewards: np.ndarray | None = None
    values: dict[str, float] = field(default_factory=dict)  # raw value of each part of the reward, by name

    @property
    def reward(self) -> float:
        """Sum of its rewards; NaN if there are none, or one failed."""
        return math.nan if self.rewards is None else float(self.rewards.sum())

    def of_tokens(self, name: str) -> np.ndarray | None:
        """A number of each of its tokens, by attribute of the batch; ``None`` if it is not known. Shape (n,)."""
        assert self.batch is not None
        numbers = getattr(self.batch, name)
        if numbers is None:
            return None
        found: np.ndarray = numbers[self.row][self.batch.response_mask[self.row]].numpy()
        return found


def replies_in(batch: Replies) -> list[Reply]:
    """The replies of a batch, one per row."""
    batch = batch.to("cpu")
    return [Reply(batch=batch, row=row, n_tokens=n) for row, n in enumerate(batch.response_mask.sum(dim=1).tolist())]


@dataclass(frozen=True)
class Payment:
    """What the last reply of a conversation earns."""

    # Weighted sum of its rewards, those of whole replies on the last token; NaN for one that failed. Shape (n,),
    # float64.
    per_token: np.ndarray
    earlier: np.ndarray  # payments for all earlier replies of the conversation, oldest first, or none
    values: dict[str, float]  # raw value of each part by name, payments for earlier replies included


@dataclass(eq=False)
class Talk:
    """One conversation."""

    # The conversation, once it is over; each utterance of the agent has its reward, NaN if a reward failed or there is
    # none.
    dialogue: Dialogue = field(default_factory=lambda: Dialogue("", ()))
    replies: list[Reply] = field(default_factory=list)  # the agent's replies whose turn is complete
    spoken: Reply | None = None  # its reply that waits for the partner's answer
    answers: list[Reply] = field(default_factory=list)  # utterances of a partner that learns
    info: dict[str, Any] = field(default_factory=dict)  # what the environment says of the last step
    has_begun: bool = False  # whether anyone spoke
    is_over: bool = False  # whether it has ended
    error: str | None = None  # message of a failed reward or partner; the conversation ended there
    partner_failed: bool = False  # whether it was the partner
    is_single_reply: bool = False  # whether there is no partner
    # Speaker and token ids of each step of the environment, if they are to be repeated.
    steps: list[tuple[int, list[int]]] = field(default_factory=list)

    @property
    def total(self) -> float:
        """Reward of the whole conversation, weighted."""
        return float(sum(turn.reward for turn in self.dialogue.said if turn.speaker == AGENT))

    @property
    def values(self) -> dict[str, list[float]]:
        """Raw values of each part of the reward, by name, turn by turn."""
        found: dict[str, list[float]] = defaultdict(list)
        for reply in self.replies:
            for name, value in reply.values.items():
                found[name].append(value)
        return found

    @property
    def rewards(self) -> dict[str, float]:
        """Sum of each part of the reward, by name, unweighted; NaN if it failed, and empty if the conversation did."""
        return {} if self.error is not None else {name: sum(values) for name, values in self.values.items()}

    def settle(self, is_over: bool) -> None:
        """Complete a turn."""
        reply, info, self.spoken, self.is_over = self.spoken, self.info, None, is_over
        assert reply is not None
        reply.prompt, reply.text, reply.references = info["prompt_text"], info["gen_text"], info["ref_texts"]
        reply.meta_info, reply.is_cut = info["meta_info"], info["utterance_truncated"]
        self.replies.append(reply)

    def earn(self, payment: Payment, number_type: type[np.floating]) -> None:
        """Pay the last reply and perhaps earlier ones; a partner that learns gets the same for each turn."""
        self.replies[-1].rewards = payment.per_token.astype(number_type)
        self.replies[-1].values = payment.values
        _pay(self.answers[-1:], [payment.per_token.sum()])
        _pay(self.replies, payment.earlier)
        # Every reply of the agent is answered, and the partner may have opened the conversation.
        _pay(self.answers[-len(self.replies) :], payment.earlier)

    def fail(self, message: str, partner_failed: bool) -> None:
        """End with a failure; a reply that waits for an answer does not count."""
        self.error, self.partner_failed, self.spoken, self.is_over = message, partner_failed, None, True

    def with_rewards(self, dialogue: Dialogue) -> Dialogue:
        """The conversation with the rewards of the agent's utterances."""
        rewards = iter([] if self.error is not None else [reply.reward for reply in self.replies])
        said = (
            replace(turn, reward=next(rewards, math.nan)) if turn.speaker == AGENT else turn for turn in dialogue.said
        )
        return replace(dialogue, turns=(*dialogue.turns[: dialogue.n_given], *said))


def _pay(replies: Sequence[Reply], payments: Sequence[float] | np.ndarray) -> None:
    """Pay on the last tokens of replies; there are payments for the first ones, or for none."""
    for reply, payment in zip(replies, payments, strict=False):
        assert reply.rewards is not None
        reply.rewards[-1] += payment


def talk_of_one_reply(sample: Sample, reply: str) -> Talk:
    """A single reply to a sample as a conversation of one turn."""
    prompt, info = sample.prompt_or_input_text, sample.meta_data or {}
    dialogue = reply_dialogue(sample.id, prompt, reply, info)
    return Talk(dialogue, [Reply(prompt, reply, sample.references, info)], is_single_reply=True)


def with_tokens(dialogue: Dialogue, replies: Sequence[Reply], tokenizer: str, is_cut: bool = False) -> Dialogue:
    """A conversation with the tokens of the agent's replies in it, and the texts before it from the first prompt.

    A turn whose reward is all on its last token has this as ``reward``; otherwise, its ``token_rewards`` hold all. If
    ``is_cut``, the value after the last turn is to be bootstrapped.
    """
    left = iter(replies)
    said = (_with_tokens(turn, next(left)) if turn.speaker == AGENT else turn for turn in dialogue.said)
    system = system_text(replies[0].prompt) if replies else ""
    return replace(
        dialogue,
        turns=(*dialogue.turns[: dialogue.n_given], *said),
        meta_data={**dialogue.meta_data, SYSTEM_KEY: system} if system else dialogue.meta_data,
        terminated=not is_cut,
        tokenizer=tokenizer,
    )


def _with_tokens(turn: Turn, reply: Reply) -> Turn:
    ids, log_probs, rewards = reply.of_tokens("response_ids"), reply.of_tokens("log_probs"), reply.rewards
    assert ids is not None
    turn = replace(turn, ids=tuple(map(int, ids)))
    if log_probs is not None:
        turn = replace(turn, log_probs=tuple(map(_short, log_probs)))
    if rewards is None:
        return turn
    if any(rewards[:-1]):
        return replace(turn, reward=0.0, token_rewards=tuple(map(_short, rewards)))
    return replace(turn, reward=_short(rewards[-1]))


def _short(number: np.floating) -> float:
    """The shortest number that is this one in its precision, which takes less space in a file."""
    return float(str(number))
