"""Data types shared by all layers: samples, turns, dialogues and answers of partners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeGuard

PARTNER, AGENT, TOOL = 0, 1, 2
SPEAKERS = {PARTNER: "partner", AGENT: "agent", TOOL: "tool"}
"""Names of the speakers in files and reports."""
# Labels of a reply in the meta data of its sample, under RL4LMs' names.
LABELS = ("intent", "emotion")
SYSTEM_KEY = "system_message"
"""Key of the meta data of a dialogue: the text before its first utterance, such as a persona."""
MIN_SAMPLES = 50
"""Fewer samples get no interval and no verdict: scores of samples can be skewed, and Student's t then covers less."""
EndedBy = Literal["agent", "partner", "max_turns", "length"]


class PromptTurn(NamedTuple):
    """One utterance in a prompt."""

    text: str  # what was said
    closing: str  # markup between it and the next utterance, or the reply
    can_be_first: bool = True  # whether a prompt can start with it if all earlier ones are dropped


class ReplyMarkup(NamedTuple):
    """What a format writes around a reply, which is generated and learned with it."""

    opening: str = ""  # text between the prompt and a reply
    closing: str = ""  # text between a reply and its end
    begun: str = ""  # the tag at the end of a prompt that opens a thought, which a reply must not repeat
    strips: tuple[bool, bool] = (False, False)  # whether whitespace before and after a reply is left out

    @property
    def space(self) -> str:
        """The opening if it is whitespace, which is no part of a reply's text."""
        return self.opening if self.opening.isspace() else ""

    def around(self, reply: str) -> str:
        """Write a reply as the format does, up to its end."""
        reply = reply.lstrip() if self.strips[0] else reply
        reply = reply.rstrip() if self.strips[1] else reply
        tag = self.begun.rstrip()
        if tag and reply.startswith(tag):
            return reply.removeprefix(tag).removeprefix(self.begun[len(tag) :]) + self.closing
        # A thought of the reply replaces an empty one of the format.
        has_own = any(tag in reply for tag in self.opening.split() if tag[0] in "<[")
        return ("" if has_own else self.opening) + reply + self.closing


_BARE = ReplyMarkup()


class Prompt(str):
    """A prompt that knows its parts, so that a long one can lose whole turns and keep its persona.

    An opening is a tuple in which markup and texts such as the persona alternate, starting with markup. ``str`` of a
    prompt is the prompt, so that it does not lose its parts by mistake.
    """

    turns: tuple[PromptTurn, ...]  # the utterances, oldest first
    opening: tuple[str, ...]  # text before the first utterance
    later_opening: tuple[str, ...]  # the same if utterances were dropped
    agent_opening: tuple[str, ...] | None  # the whole prompt if the agent speaks first, if the format allows this
    reply: ReplyMarkup  # what the format writes around a reply

    def __new__(
        cls,
        turns: Sequence[PromptTurn],
        opening: tuple[str, ...] = (),
        later_opening: tuple[str, ...] | None = None,
        agent_opening: tuple[str, ...] | None = (),
        reply: ReplyMarkup = _BARE,
        text: str | None = None,
    ) -> Prompt:
        """Join the parts; ``text`` is the result, if it is known."""
        if text is None:
            text = "".join(opening) + "".join(turn.text + turn.closing for turn in turns)
        self = super().__new__(cls, text)
        self.turns, self.opening = tuple(turns), opening
        self.later_opening = opening if later_opening is None else later_opening
        self.agent_opening, self.reply = agent_opening, reply
        return self

    def __str__(self) -> str:
        return self

    @property
    def last_markup(self) -> str:
        """Markup after which the reply starts."""
        if self.turns:
            return self.turns[-1].closing
        return self.opening[-1] if self.opening else ""

    def continued(self, *turns: PromptTurn) -> Prompt:
        """Return the prompt with further utterances."""
        text = self + "".join(turn.text + turn.closing for turn in turns)  # not joined anew from all turns
        markup = (self.opening, self.later_opening, self.agent_opening, self.reply)
        return Prompt((*self.turns, *turns), *markup, text)

    def restarted(self, opening: tuple[str, ...], *turns: PromptTurn) -> Prompt:
        """Return the prompt of another conversation in the same format: with this opening and these utterances."""
        return Prompt(turns, opening, self.later_opening, self.agent_opening, self.reply)

    def __reduce__(self) -> tuple[Any, ...]:
        return Prompt, (self.turns, self.opening, self.later_opening, self.agent_opening, self.reply)

    def __deepcopy__(self, memo: object) -> Prompt:
        return self  # cannot change; stable-baselines3 copies the infos of every step


@dataclass(frozen=True)
class Frame:
    """Markup around the utterances of a conversation in progress."""

    to_agent: str  # text after the partner's utterance, at whose end the agent's reply starts
    to_partner: str  # text after the agent's utterance, at whose end the partner's starts
    markup: tuple[str, ...] = ()  # what a partner must not say, because it would end turns or open new ones
    in_pairs: bool = False  # whether a prompt cannot start with the agent's utterance

    @classmethod
    def plain(cls, marker: str | None) -> Frame:
        """Markup without a chat template: each utterance before a turn marker or, if there is none, on its own line."""
        return cls(f" {marker}", marker, (marker,)) if marker else cls("\n", "\n")

    def bare(self, text: str) -> str:
        """A text without the markup that ends turns."""
        for markup in self.markup:
            text = text.replace(markup, " ")
        return text


@dataclass
class Sample:
    """One prompt with its reference replies.

    The meta data are labels and other data for rewards and metrics. Dialogue pools store the plain utterances of the
    prompt under ``history`` (oldest first).
    """

    id: str | int  # unique within the split
    prompt_or_input_text: str  # the prompt, a :class:`Prompt` if its turns are known
    references: list[str]  # human replies, without any end-of-turn marker
    meta_data: dict[str, Any] | None = None


@dataclass(frozen=True)
class Call:
    """A call of a tool by the agent, and its answer."""

    name: str  # of the tool, as the agent wrote it; empty if the utterance cannot be read as a call
    arguments: Mapping[str, Any] = field(default_factory=dict)  # by slot, checked ones in their types
    answer: str = ""
    problem: str = ""  # kind of the error that the answer reports, such as ``unknown slot``; empty for a good call


@dataclass(frozen=True)
class Turn:
    """One utterance of a dialogue."""

    text: str  # the utterance, without markup
    speaker: int  # number of the speaker; in conversations with the agent, ``PARTNER``, ``AGENT`` or ``TOOL``
    act: int | None = None  # label of the dialogue act, if the dataset has one
    emotion: int | None = None  # label of the emotion, if the dataset has one
    reward: float = 0.0  # if the agent said it in a conversation
    paid: float = 0.0  # what the partner paid the agent for it
    truncated: bool = False  # whether it was cut at the length limit
    spoken: str = ""  # what was really said, if the agent reads or writes another text, such as one with placeholders
    ids: tuple[int, ...] | None = None  # its tokens, with its end, if they are known; see ``Dialogue.tokenizer``
    token_rewards: tuple[float, ...] | None = None  # of these tokens, besides ``reward``, which the last one is paid
    log_probs: tuple[float, ...] | None = None  # of these tokens under the policy that sampled them
    call: Call | None = None  # if the agent called a tool, which the next turn is of

    @property
    def for_people(self) -> str:
        """The utterance as people read it."""
        return self.spoken or self.text

    def __deepcopy__(self, memo: object) -> Turn:
        return self  # as a prompt


@dataclass(frozen=True)
class Dialogue:
    """A conversation: its turns in order, and properties of the whole conversation."""

    id: str | int  # unique; for a conversation with the agent, that of its sample
    turns: tuple[Turn, ...]  # all utterances, including those of the sample's history
    topic: str | None = None  # label, if the dataset has one
    meta_data: dict[str, Any] = field(default_factory=dict)  # for a conversation with the agent, the sample's
    n_given: int = 0  # turns at the beginning that were given by the sample, and not said in the conversation
    outcome: Mapping[str, float] = field(default_factory=dict)  # in the partner's view, such as ``{"success": 1.0}``
    # The ``agent`` or its ``partner`` ended it, ``max_turns`` were reached, or the last utterance was cut at the
    # ``length`` limit. ``None`` if it is still going on, or comes from a dataset.
    ended_by: EndedBy | None = None
    failures: tuple[str, ...] = ()  # why the partner did not reach its goal, in words
    partner: str = ""  # name of the partner, if there are several
    terminated: bool = True  # whether nothing can be earned after the last turn; false if it was cut at a limit
    tokenizer: str | None = None  # hash of the tokenizer that the ``ids`` of turns belong to
    prompt: str | None = None  # the given turns in the format of the datapool, as the prompt before what was said
    has_reward: bool = True  # whether any reward is known; false for a line of a log without one, whose rewards are 0

    @property
    def said(self) -> tuple[Turn, ...]:
        """The turns of the conversation itself, without those of the sample."""
        return self.turns[self.n_given :]

    @property
    def calls(self) -> list[Call]:
        """The agent's calls of tools in the conversation itself."""
        return [turn.call for turn in self.said if turn.call is not None]

    @property
    def agent_turns(self) -> list[int]:
        """Positions of the agent's utterances in the conversation itself."""
        return [i for i in range(self.n_given, len(self.turns)) if self.turns[i].speaker == AGENT]

    @property
    def turn_bounds(self) -> list[int]:
        """Number of utterances before the first turn, and at the end of each turn.

        A turn ends where the next utterance of the agent starts, or with the conversation.
        """
        return [*self.agent_turns, len(self.turns)]

    def texts(self, speaker: int) -> list[str]:
        """What a speaker said in the conversation itself."""
        return [turn.text for turn in self.said if turn.speaker == speaker]


@dataclass(frozen=True)
class RatedDialogue:
    """A dialogue, or a single reply, with human ratings."""

    dialogue: Dialogue  # for a rated reply it ends with this reply, which is the only turn that is not given
    ratings: Mapping[str, float]  # by name; names can be missing in some dialogues
    conversation: str | int  # id of the conversation, equal for all rated replies of one conversation
    system: str | None = None  # name of the chatbot that the agent is, if the data compares several


@dataclass(frozen=True)
class PartnerReply:
    """A partner's answer to an utterance of the agent.

    Attributes:
        text: What the partner says; ``None`` if it says nothing.
        ids: Token ids of the text in the agent's vocabulary, if the partner has the same tokenizer.
        reward: Reward of the agent for the utterance that is answered, for the reward ``partner``.
        info: Further data. ``references`` are reference replies to this text, and ``labels`` replace those of the
            sample, for rewards and metrics that need them.
        leaves: Whether the partner ends the conversation after this text.
        failed: Message of a failure. The conversation then counts as failed, like one whose reward fails.
        spoken: What the partner really says, if the agent reads another text; only shown to people.
        heard: The agent's utterance as the partner hears it, if that is another text; only shown to people.
        call: The call that a tool answers, if this is the answer of a tool and not of the partner.
    """

    text: str | None = None
    ids: Sequence[int] | None = None
    reward: float = 0.0
    info: Mapping[str, Any] = field(default_factory=dict)
    leaves: bool = False
    failed: str | None = None
    spoken: str = ""
    heard: str = ""
    call: Call | None = None


def system_text(prompt: str) -> str:
    """Return the texts at the beginning of a prompt, such as a persona; empty if there are none or it is plain text."""
    return " ".join(filter(None, prompt.opening[1::2])) if isinstance(prompt, Prompt) else ""


def given_turns(history: Sequence[str]) -> tuple[Turn, ...]:
    """Return the utterances before the agent's reply as turns; the last one is the partner's."""
    n = len(history)
    return tuple(Turn(text, AGENT if (n - i) % 2 == 0 else PARTNER) for i, text in enumerate(history))


def reply_dialogue(id: str | int, prompt: str, reply: str, meta_data: Mapping[str, Any] | None) -> Dialogue:
    """Return a single reply as a conversation of one turn, after the history in the sample's meta data."""
    info = dict(meta_data or {})
    given = given_turns(info.get("history", [prompt]))
    return Dialogue(id, (*given, Turn(reply, AGENT)), meta_data=info, n_given=len(given), ended_by="max_turns")


def is_number(value: Any) -> bool:
    """Whether a value is a number, and not a ``bool``, which Python treats as an ``int``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole_number(value: Any, at_least: int) -> TypeGuard[int]:
    """Whether a value is an ``int`` of at least ``at_least``, and not a ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
