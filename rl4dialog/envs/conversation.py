"""The conversation in an environment: what was said, what each side sees and answers, and when it ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import regex

from rl4dialog.core.errors import DataError, PartnerError, RL4DialogError, raised
from rl4dialog.core.partner_replies import checked_outcome, checked_reply
from rl4dialog.core.protocols import Partner, Toolbox
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.time_limit import matched
from rl4dialog.core.types import (
    AGENT,
    LABELS,
    PARTNER,
    TOOL,
    Dialogue,
    EndedBy,
    Frame,
    PartnerReply,
    Prompt,
    PromptTurn,
    Sample,
    Turn,
    given_turns,
)
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.dialogue_text import persona_in
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import History, PaddedIds, encoder_of, with_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


FirstSpeaker = Literal["sample", "agent", "partner"]


@dataclass(frozen=True)
class ConversationRules:
    """Who speaks first, what is shown, and when a conversation ends."""

    max_turns: int = 1  # maximum number of agent utterances
    # Sample if the agent answers the sample's last utterance; agent or partner begin without the sample's utterances.
    first_speaker: FirstSpeaker = "sample"
    max_partner_length: int | None = None  # maximum number of tokens of a partner's utterance; None for no limit
    context_turns: int | None = None  # maximum number of utterances in a prompt; None for all that fit
    # Regular expressions, by side, in an utterance that ends the conversation; removed from the partner's utterances.
    end_when: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def ends(self, side: Literal["agent", "partner"], text: str) -> bool:
        """Whether the conversation ends after this utterance of one side."""
        return any(_matched(regex.search, pattern, text) for pattern in self.end_when.get(side, ()))

    def heard(
        self, text: str, frame: Frame, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int] | None = None
    ) -> tuple[str, Sequence[int] | None]:
        """The partner's text that the agent reads, without markup and the sign of the end, cut at the length limit.

        Returns its tokens, too, if ``ids`` are given and the text has not changed.
        """
        shown = text
        for pattern in self.end_when.get("partner", ()):
            shown = _matched(regex.sub, pattern, shown, lambda match: " " if match[0] else "")
        shown = frame.bare(shown)
        if shown != text:
            shown, ids = shown.strip(), None
        limit = self.max_partner_length
        if limit is not None:
            all_ids = ids if ids is not None else tokenizer(shown, add_special_tokens=False)["input_ids"]
            if len(all_ids) > limit:
                shown, ids = str(tokenizer.decode(list(all_ids[:limit]), skip_special_tokens=True)).strip(), None
        return shown, ids


def _matched(function: Callable[..., Any], pattern: str, text: str, *others: Any) -> Any:
    try:
        return matched(function, pattern, text, *others)
    except TimeoutError as error:
        raise PartnerError(f"env.args.end_when: {error}") from None


class Conversation:
    """A conversation about a sample, from the agent's side."""

    sample: Sample
    history: History  # what the agent sees
    references: list[str]  # reference replies to the last utterance
    meta_info: dict[str, Any]  # the sample's meta_data, with history and labels of the present turn
    n_turns: int  # number of completed turns
    partner_name: str = ""  # if there are several

    def __init__(
        self,
        rules: ConversationRules,
        end_of_turn: EndOfTurn,
        max_prompt_length: int,
        truncation_side: str = "left",
        frame: Frame | None = None,
        partner: Partner | None = None,
        toolbox: Toolbox | None = None,
    ) -> None:
        self.rules, self.partner, self.toolbox = rules, partner, toolbox
        self.frame = frame or Frame.plain(end_of_turn.marker)
        self._end_of_turn, self._tokenizer = end_of_turn, end_of_turn.tokenizer
        self._max_prompt_length, self._truncation_side = max_prompt_length, truncation_side

    def begin(self, sample: Sample, seed: int) -> None:
        """Start a conversation: :meth:`prepare` and :meth:`start`."""
        self.prepare(sample, seed)
        self.start()

    def prepare(self, sample: Sample, seed: int) -> None:
        """Prepare a conversation, without waiting for the partner's first utterance."""
        self.sample, self.references, self.meta_info = sample, sample.references, sample.meta_data or {}
        self.n_turns, self._n_given = 0, 0
        self._turns: list[Turn] = []
        self._outcome: dict[str, float] = {}
        if self.toolbox is not None:
            self.toolbox.reset(self.meta_info, seed)
        if self.partner is not None:
            self._guarded("failed to begin with", lambda partner: partner.reset(self.meta_info, seed))
            if self.rules.first_speaker == "partner":
                self.partner.expect([])

    def secret_ids(self, max_length: int, persona_key: str | None = None) -> list[int]:
        """Token ids, with the end of an utterance, of what the partner of the prepared conversation knows.

        This is the partner's own :meth:`~rl4dialog.core.protocols.Partner.secret`; for one outside of the environment,
        the persona with this key in the sample's ``meta_data``; without a partner, the sample's references.
        """
        if self.partner is not None:
            told = self._guarded("failed to tell the secret of", lambda partner: partner.secret())
            what = f"the secret of partner {self._partners_name!r}"
            text = checked_reply(told, self._partners_name).text
        elif persona_key is not None:
            what, text = f"the partner's persona, meta_data[{persona_key!r}],", persona_in(self.meta_info, persona_key)
        else:
            what, text = "its references, which are the secret without a partner,", " ".join(self.sample.references)
        if not text:
            advice = "but alg.policy.args.critic_reads: secret needs it; use critic_reads: history"
            raise DataError(f"sample {self.sample.id!r}: {what} has no text, {advice}")
        ids = encoder_of(self._tokenizer).ids(text + Frame.plain(self._end_of_turn.marker).to_agent)
        if len(ids) > max_length:
            advice = f"but env.args.max_secret_length is {max_length}; raise it"
            raise DataError(f"sample {self.sample.id!r}: {what} has {len(ids)} tokens with its end, {advice}")
        return ids

    def start(self) -> None:
        """Start the prepared conversation."""
        first = self.rules.first_speaker
        prompt: str = self.sample.prompt_or_input_text
        if first == "sample":
            given = self.meta_info.get("history", [prompt])
            self._turns = [*given_turns(given)]
            self._n_given = len(given)
            self._see(with_turns(prompt, self._end_of_turn.marker))
        elif first == "agent":
            own = self._own_prompt()
            if own.agent_opening is None:
                raise DataError(
                    "env.args.first_speaker is agent, but the chat template rejects a conversation that the assistant "
                    "starts; use partner or sample"
                )
            self._see(own.restarted(own.agent_opening))
            self._follow(PartnerReply())  # references and labels of the sample are of a reply to its utterances
        elif self.partner is not None:
            self.hear_opening(self._guarded("failed on", lambda partner: partner.open()))

    def expect(self, said: str) -> None:
        """Let the partner prepare its answer to an utterance of the agent, without waiting for it."""
        if self.partner is not None and not (self.toolbox is not None and self.toolbox.takes(said)):
            self.partner.expect(self.for_partner(said))

    def called(self, said: str, is_cut: bool = False) -> PartnerReply | None:
        """Return a tool's answer if an utterance of the agent is a call; the partner is then not asked."""
        if self.toolbox is None or not self.toolbox.takes(said):
            return None
        reply = self.toolbox.answer(said, is_cut)
        return replace(reply, text=(self.toolbox.frame or self.frame).bare(reply.text or ""))

    def ask(self, said: str) -> PartnerReply:
        """Return the partner's answer to an utterance of the agent; an empty one if there is no partner."""
        if self.partner is None:
            return PartnerReply()
        history = self.for_partner(said)
        return self.heard(self._guarded("failed on", lambda partner: partner.reply(history)))

    def heard(self, answer: Any) -> PartnerReply:
        """Check what a partner said, remove markup and the sign of the end, and cut it at the length limit."""
        if isinstance(answer, PartnerReply) and answer.call is not None:
            return answer
        reply = checked_reply(answer, self._partners_name)
        if reply.failed is not None:
            raise PartnerError(f"partner {self._partners_name!r} failed on sample {self.sample.id!r}: {reply.failed}")
        if reply.reward and self.partner is not None and not self.partner.pays:
            raise PartnerError(
                f"partner {self._partners_name!r} returned a reward of {reply.reward:g} for sample {self.sample.id!r}; "
                f"set its attribute pays to True, and use the reward 'partner'"
            )
        if reply.text is None:
            return reply
        if reply.ids is not None and max(reply.ids) >= len(self._tokenizer):
            raise PartnerError(
                f"partner {self._partners_name!r} returned the token id {max(reply.ids)} for {self.sample.id!r}, "
                f"but the agent's tokenizer has {len(self._tokenizer)} tokens; leave out ids of other tokenizers"
            )
        shown, ids = self.rules.heard(reply.text, self.frame, self._tokenizer, reply.ids)
        return replace(reply, text=shown, ids=ids, leaves=reply.leaves or self.rules.ends("partner", reply.text))

    def hear_opening(self, answer: Any) -> None:
        """Start with an utterance of the partner. A sign of the end in it is removed, and ends nothing."""
        reply = self.heard(answer)
        if reply.leaves and reply.text is None:
            raise PartnerError(
                f"partner {self._partners_name!r} left before the agent spoke, on sample {self.sample.id!r}; with "
                f"first_speaker: partner it must return a first utterance"
            )
        text = reply.text or ""
        self._turns = [Turn(text, PARTNER, spoken=reply.spoken)]
        prompt = self._own_prompt()
        self._see(prompt.restarted(prompt.later_opening, PromptTurn(text, self.frame.to_agent)))
        self._follow(reply)

    def settle(self, own_text: str, ended: bool, reply: PartnerReply) -> EndedBy | None:
        """Complete a turn, and return the cause of the conversation's end, if it has ended.

        Without ``ended``, the agent's utterance was cut at the length limit.
        """
        if self.partner is not None:
            outcome = self._guarded("failed to report the outcome of", lambda partner: partner.outcome())
            self._outcome = checked_outcome(outcome, self._partners_name)
        if self.toolbox is not None:
            self._outcome = {**self._outcome, **self.toolbox.outcome()}
        paid, heard, call = reply.reward, reply.heard, reply.call
        self._turns.append(Turn(own_text, AGENT, paid=paid, truncated=not ended, spoken=heard, call=call))
        if reply.text:
            self._turns.append(Turn(reply.text, PARTNER if call is None else TOOL, spoken=reply.spoken))
        self.n_turns += 1
        is_last = self.n_turns >= self.rules.max_turns
        # A partner with nothing more to say does not end a conversation whose turns are over anyway.
        if reply.leaves and not (is_last and reply.text is None):
            return "partner" if call is None else "agent"
        if self.rules.ends("agent", own_text):
            return "agent"
        if not is_last:
            return None
        return "max_turns" if ended else "length"

    def go_on(self, own_ids: Sequence[int], own_text: str, reply: PartnerReply) -> None:
        """Show a completed turn to the agent, for its next utterance."""
        of_tool = self.toolbox.frame if self.toolbox is not None and reply.call is not None else None
        self.history.go_on(own_ids, own_text, reply.text or "", self._end_of_turn, reply.ids, of_tool)
        self._follow(reply)

    def dialogue(self, ended_by: EndedBy | None = None) -> Dialogue:
        """The conversation so far."""
        meta_data, turns = self.sample.meta_data or {}, tuple(self._turns)
        failures = tuple(self.partner.failures()) if ended_by is not None and self.partner is not None else ()
        about = self._outcome, ended_by, failures, self.partner_name
        return Dialogue(self.sample.id, turns, None, meta_data, self._n_given, *about)

    @property
    def texts(self) -> list[str]:
        """All utterances so far."""
        return [turn.text for turn in self._turns]

    @property
    def said_by_partner(self) -> list[str]:
        return [turn.text for turn in self._turns if turn.speaker == PARTNER]

    def for_partner(self, said: str) -> list[str]:
        """All utterances that the partner hears: those so far and the agent's next one, without calls of tools."""
        return [turn.text for turn in self._turns if turn.call is None and turn.speaker != TOOL] + [said]

    def _see(self, prompt: str) -> None:
        side, limit = self._truncation_side, self._max_prompt_length
        self.history = History(self._tokenizer, prompt, limit, side, self.frame, self.rules.context_turns)

    def _follow(self, reply: PartnerReply) -> None:
        """Let references, history and labels follow the turn; those of the sample are of its first reply."""
        info, given = reply.info, self.sample.meta_data or {}
        self.references = list(info.get("references", []))
        kept = {name: value for name, value in given.items() if name not in LABELS}
        self.meta_info = {**kept, **info.get("labels", {}), "history": self.texts}

    def _own_prompt(self) -> Prompt:
        """The sample's prompt, of which a conversation without the sample's utterances keeps the opening."""
        prompt = self.sample.prompt_or_input_text
        if not isinstance(prompt, Prompt):
            raise DataError(
                f"env.args.first_speaker is {self.rules.first_speaker}, but sample {self.sample.id!r} is a plain text "
                f"and no dialogue; use first_speaker: sample"
            )
        return prompt

    @property
    def _partners_name(self) -> str:
        return self.partner_name or ("outside" if self.partner is None else type(self.partner).__name__)

    def _guarded(self, what: str, call: Callable[[Partner], Any]) -> Any:
        assert self.partner is not None
        try:
            return call(self.partner)
        except RL4DialogError:
            raise
        except Exception as error:
            raise PartnerError(
                f"partner {self._partners_name!r} {what} sample {self.sample.id!r}: {raised(error)}"
            ) from error


@dataclass
class Observation(PaddedIds):
    """The state for policies and token-level rewards. Attribute names are those of RL4LMs.

    Padded ids and masks, such as ``prompt_or_input_encoded_pt``, are those of `PaddedIds`; T is that of one utterance.

    Attributes:
        prompt_ids: Token ids of the prompt, unpadded.
        context_ids: Token ids of the reply so far.
        prompt_or_input_text: The sample's prompt; in later turns the history as text.
        target_or_reference_texts: Reference replies.
        meta_info: The sample's meta data.
        end_of_turn: Detects the end of a reply, and has the tokenizer.
        max_prompt_length: P, the length of padded prompts; ``None`` for no padding.
        max_episode_length: T, the length of padded replies; ``None`` for no padding.
    """

    prompt_ids: list[int]
    context_ids: list[int]
    prompt_or_input_text: str
    target_or_reference_texts: list[str]
    meta_info: dict[str, Any]
    end_of_turn: EndOfTurn = field(repr=False)
    max_prompt_length: int | None = field(default=None, repr=False)
    max_episode_length: int | None = field(default=None, repr=False)

    @functools.cached_property
    def context_text(self) -> str:
        """The reply so far, without special tokens and turn marker."""
        return self.end_of_turn.reply_text(self.context_ids)

    def after(self, *actions: int) -> Observation:
        """Return the state after one more token, or several."""
        texts = self.prompt_or_input_text, self.target_or_reference_texts, self.meta_info
        sizes = self.max_prompt_length, self.max_episode_length
        return Observation(self.prompt_ids, [*self.context_ids, *actions], *texts, self.end_of_turn, *sizes)

    def token_ids(self) -> tuple[list[int], list[int]]:
        return self.prompt_ids, self.context_ids

    def padded_sizes(self) -> tuple[int | None, int | None]:
        return self.max_prompt_length, self.max_episode_length

    def tokenizer_of_ids(self) -> Any:
        return self.end_of_turn.tokenizer

    def to_dict(self, max_prompt_length: int, max_episode_length: int, pad_token_id: int) -> dict[str, np.ndarray]:
        """Fixed-size int64 arrays: prompt (P,), padded on the left, context (T,), on the right, and their masks."""
        arrays = {}
        for name, ids, size in (
            ("prompt", self.prompt_ids, max_prompt_length),
            ("context", self.context_ids, max_episode_length),
        ):
            padded = np.full(size, pad_token_id, dtype=np.int64)
            mask = np.zeros(size, dtype=np.int64)
            where = slice(size - len(ids), size) if name == "prompt" else slice(0, len(ids))
            padded[where] = ids
            mask[where] = 1
            arrays[f"{name}_ids"], arrays[f"{name}_mask"] = padded, mask
        return arrays


@dataclass(frozen=True)
class OutsidePartner:
    """What an environment knows of a partner outside: its tokenizer and format, not its model."""

    dialogue_format: DialogueFormat  # format of its prompts
    end_of_turn: EndOfTurn  # detects the end of its utterance, and has its tokenizer
    vocab_size: int  # number of rows of its model's embedding
    max_prompt_length: int  # maximum length of its prompts, in its tokens; at most that of the agent's prompts counts
    max_length: int  # maximum length of its utterances, in its tokens
    persona_key: str = "partner_persona"  # key of its persona in the sample's meta_data; a text, or a list of sentences
    is_seeded: bool = False  # whether observations contain a seed of the conversation, partner_seed
    needs_persona: bool = False  # whether a sample without a persona is an error
    # What it says to end a conversation, as it has learned from conversations that it may also begin.
    ending: str | None = None

    def __deepcopy__(self, memo: object) -> OutsidePartner:
        return self


@dataclass(frozen=True)
class OneOf:
    """Several partners, inside and outside of the environments; each conversation has one of them."""

    names: Sequence[str]
    weights: Sequence[float]
    partners: Sequence[Partner | OutsidePartner]

    def drawn(self, seed: int) -> int:
        """Number of the partner in the conversation with this seed, by weight."""
        bounds = np.cumsum(self.weights)
        number = np.random.default_rng(derive_seed(seed, "partner")).random() * bounds[-1]
        return int(np.searchsorted(bounds[:-1], number, side="right"))


class PartnersSide:
    """A conversation as an outside partner sees it: its own utterances are those of the assistant."""

    def __init__(self, outside: OutsidePartner, max_prompt_length: int | None = None) -> None:
        limit = min(outside.max_prompt_length, max_prompt_length or outside.max_prompt_length)
        self._outside = replace(outside, max_prompt_length=limit)
        self._frame = outside.dialogue_format.frame()
        self._history: History | None = None
        self._last: tuple[Sequence[int], str] | None = None  # its last utterance

    @property
    def is_learned(self) -> bool:
        """Whether the partner has learned from a log how to begin and end conversations."""
        return self._outside.ending is not None

    def begin(self, meta_info: dict[str, Any]) -> None:
        """Start a conversation about a sample."""
        self._history, self._last = None, None
        self._persona = persona_in(meta_info, key := self._outside.persona_key)
        if self._outside.needs_persona and not (self._persona or "").strip():
            cure = "set datapool.args.goal to the column that has it, or choose another partner"
            raise DataError(
                f"the partner has learned with goals, and the sample has none in meta_data[{key!r}]; {cure}"
            )

    def asked(self, texts: Sequence[str]) -> Observation:
        """The state in which the partner starts to answer the last utterance, or opens the conversation if none."""
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
            if texts and len(texts) % 2 == 0 and self.is_learned:  # it spoke first
                spoken = self._outside.dialogue_format.prompt(texts).turns
                return self._outside.dialogue_format.opening_prompt(self._persona).continued(*spoken)
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

    def answer(self, ids: Sequence[int]) -> PartnerReply:
        """The partner's utterance, without what it says to end the conversation."""
        text, end, _ = self.said(ids).partition(self._outside.ending or "\0")
        return PartnerReply((text.strip() if end else text) or None, leaves=bool(end))


def first_prompts(
    outside: OutsidePartner, conversations: Sequence[tuple[Sequence[str], dict[str, Any]]]
) -> dict[str, np.ndarray]:
    """Prompts of conversations (utterances, meta data) in which a partner has not spoken, or with unknown tokens.

    Returns ``prompt_ids`` and ``prompt_mask``, padded on the left. Shape (conversations, L).
    """
    states = []
    for texts, meta_info in conversations:
        side = PartnersSide(outside)
        side.begin(meta_info)
        states.append(side.asked(texts))
    width, pad = max(len(state.prompt_ids) for state in states), int(outside.end_of_turn.tokenizer.pad_token_id)
    found = [state.to_dict(width, 0, pad) for state in states]
    return {name: np.stack([each[name] for each in found]) for name in ("prompt_ids", "prompt_mask")}
