"""Data types shared by all layers: samples, turns, dialogues and answers of partners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeGuard

PARTNER, AGENT = 0, 1
SPEAKERS = {PARTNER: "partner", AGENT: "agent"}
"""Names of the speakers in files and reports."""
# Labels of a reply in the meta data of its sample, under RL4LMs' names.
LABELS = ("intent", "emotion")
SYSTEM_KEY = "system_message"
"""Key of the meta data of a dialogue: the text before its first utterance, such as a persona."""
EndedBy = Literal["agent", "partner", "max_turns", "length"]


class PromptTurn(NamedTuple):
    """One utterance in a prompt.

    Attributes:
        text: What was said.
        closing: Markup between it and the next utterance, or the reply.
        can_be_first: Whether a prompt can start with this utterance if all earlier ones are dropped.
    """

    text: str
    closing: str
    can_be_first: bool = True


class Prompt(str):
    """A prompt that knows its parts, so that a long one can lose whole turns and keep its persona.

    An opening is a tuple in which markup and texts such as the persona alternate, starting with markup.

    Attributes:
        turns: The utterances, oldest first.
        opening: Text before the first utterance.
        later_opening: The same if utterances were dropped.
        agent_opening: The whole prompt if the agent speaks first; ``None`` if the format does not allow this.
        reply_opening: Whitespace between the prompt and a reply, which is generated with the reply.
    """

    turns: tuple[PromptTurn, ...]
    opening: tuple[str, ...]
    later_opening: tuple[str, ...]
    agent_opening: tuple[str, ...] | None
    reply_opening: str

    def __new__(
        cls,
        turns: Sequence[PromptTurn],
        opening: tuple[str, ...] = (),
        later_opening: tuple[str, ...] | None = None,
        agent_opening: tuple[str, ...] | None = (),
        reply_opening: str = "",
    ) -> Prompt:
        text = "".join(opening) + "".join(turn.text + turn.closing for turn in turns)
        return cls._of(text, tuple(turns), opening, later_opening, agent_opening, reply_opening)

    @classmethod
    def _of(
        cls,
        text: str,
        turns: tuple[PromptTurn, ...],
        opening: tuple[str, ...],
        later_opening: tuple[str, ...] | None,
        agent_opening: tuple[str, ...] | None,
        reply_opening: str,
    ) -> Prompt:
        self = super().__new__(cls, text)
        self.turns, self.opening, self.agent_opening, self.reply_opening = turns, opening, agent_opening, reply_opening
        self.later_opening = opening if later_opening is None else later_opening
        return self

    @property
    def last_markup(self) -> str:
        """Markup after which the reply starts."""
        if self.turns:
            return self.turns[-1].closing
        return self.opening[-1] if self.opening else ""

    def continued(self, *turns: PromptTurn) -> Prompt:
        """Return the prompt with further utterances."""
        text = str(self) + "".join(turn.text + turn.closing for turn in turns)  # not joined anew from all turns
        openings = (self.opening, self.later_opening, self.agent_opening, self.reply_opening)
        return Prompt._of(text, (*self.turns, *turns), *openings)

    def restarted(self, opening: tuple[str, ...], *turns: PromptTurn) -> Prompt:
        """Return the prompt of another conversation in the same format: with this opening and these utterances."""
        return Prompt(turns, opening, self.later_opening, self.agent_opening, self.reply_opening)

    def __reduce__(self) -> tuple[Any, ...]:
        return Prompt, (self.turns, self.opening, self.later_opening, self.agent_opening, self.reply_opening)

    def __deepcopy__(self, memo: object) -> Prompt:
        return self  # cannot change; stable-baselines3 copies the infos of every step


@dataclass(frozen=True)
class Frame:
    """Markup around the utterances of a conversation in progress.

    Attributes:
        to_agent: Text after the partner's utterance, at whose end the agent's reply starts.
        to_partner: Text after the agent's utterance, at whose end the partner's starts.
        markup: Texts that a partner's utterance must not contain, because they would end turns or open new ones.
        in_pairs: Whether a prompt cannot start with the agent's utterance.
    """

    to_agent: str
    to_partner: str
    markup: tuple[str, ...] = ()
    in_pairs: bool = False

    @classmethod
    def plain(cls, marker: str | None) -> Frame:
        """Markup without a chat template: each utterance before a turn marker or, if there is none, on its own line."""
        return cls(f" {marker}", marker, (marker,)) if marker else cls("\n", "\n")


@dataclass
class Sample:
    """One prompt with its reference replies.

    Attributes:
        id: Unique id within the split.
        prompt_or_input_text: The prompt, a :class:`Prompt` if its turns are known.
        references: Human replies, without any end-of-turn marker.
        meta_data: Labels and other data for rewards and metrics. Dialogue pools store the plain utterances of the
            prompt under ``history`` (oldest first).
    """

    id: str | int
    prompt_or_input_text: str
    references: list[str]
    meta_data: dict[str, Any] | None = None


@dataclass(frozen=True)
class Turn:
    """One utterance of a dialogue.

    Attributes:
        text: The utterance, without markup.
        speaker: Number of the speaker; in conversations with the agent, ``PARTNER`` or ``AGENT``.
        act: Label of the dialogue act, if the dataset has one.
        emotion: Label of the emotion, if the dataset has one.
        reward: Reward of the utterance, if the agent said it in a conversation.
        paid: What the partner paid the agent for the utterance.
        truncated: Whether the utterance was cut at the length limit.
        spoken: What was really said, if the agent reads or writes another text, such as one with placeholders.
        ids: Token ids of the utterance, its end included, if they are known; see ``Dialogue.tokenizer``.
        token_rewards: Rewards of these tokens, which come in addition to ``reward``, paid on the last one.
        log_probs: Log-probabilities of these tokens under the policy that sampled them.
    """

    text: str
    speaker: int
    act: int | None = None
    emotion: int | None = None
    reward: float = 0.0
    paid: float = 0.0
    truncated: bool = False
    spoken: str = ""
    ids: tuple[int, ...] | None = None
    token_rewards: tuple[float, ...] | None = None
    log_probs: tuple[float, ...] | None = None

    @property
    def for_people(self) -> str:
        """The utterance as people read it."""
        return self.spoken or self.text

    def __deepcopy__(self, memo: object) -> Turn:
        return self  # as a prompt


@dataclass(frozen=True)
class Dialogue:
    """A conversation: its turns in order, and properties of the whole conversation.

    Attributes:
        id: Unique id; for a conversation with the agent, that of its sample.
        turns: All utterances, including those of the sample's history.
        topic: Topic label, if the dataset has one.
        meta_data: Other data; for a conversation with the agent, the sample's.
        n_given: Number of turns at the beginning that were given by the sample, and not said in the conversation.
        outcome: The partner's account of the conversation, such as ``{"success": 1.0}``.
        ended_by: Cause of the end: the ``agent`` or its ``partner`` ended it, ``max_turns`` were reached, or the last
            utterance was cut at the ``length`` limit. ``None`` if it is still going on, or comes from a dataset.
        failures: Why the partner did not reach its goal, in words.
        terminated: Whether nothing can be earned after the last turn; false if the conversation was cut, for example at
            a limit of turns.
        tokenizer: Hash of the tokenizer that the ``ids`` of turns belong to.
        prompt: The given turns in the format of the datapool, as the prompt before what was said.
        has_reward: Whether any reward is known; false for a line of a log without one, whose rewards are 0.
    """

    id: str | int
    turns: tuple[Turn, ...]
    topic: str | None = None
    meta_data: dict[str, Any] = field(default_factory=dict)
    n_given: int = 0
    outcome: Mapping[str, float] = field(default_factory=dict)
    ended_by: EndedBy | None = None
    failures: tuple[str, ...] = ()
    terminated: bool = True
    tokenizer: str | None = None
    prompt: str | None = None
    has_reward: bool = True

    @property
    def said(self) -> tuple[Turn, ...]:
        """The turns of the conversation itself, without those of the sample."""
        return self.turns[self.n_given :]

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
    """A dialogue, or a single reply, with human ratings.

    Attributes:
        dialogue: The dialogue. For a rated reply it ends with this reply, which is the only turn that is not given.
        ratings: Ratings by name. Names can be missing in some dialogues.
        conversation: Id of the conversation, equal for all rated replies of one conversation.
        system: Name of the chatbot that the agent is, if the data compares several.
    """

    dialogue: Dialogue
    ratings: Mapping[str, float]
    conversation: str | int
    system: str | None = None


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
    """

    text: str | None = None
    ids: Sequence[int] | None = None
    reward: float = 0.0
    info: Mapping[str, Any] = field(default_factory=dict)
    leaves: bool = False
    failed: str | None = None
    spoken: str = ""
    heard: str = ""


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
