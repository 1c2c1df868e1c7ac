"""Turns dialogues into samples: formats prompts, and selects the utterances that are replies.

Format ``eou`` is that of RL4LMs' and OpenRL's DailyDialog: the last ``context_size`` utterances joined by ``<EOU>``,
then a space and ``<EOU>``. Format ``chat_template`` renders the same utterances as chat messages with the tokenizer's
template, which is passed in as a function, so that this module does not depend on tokenizers. The markup that a
template writes is found by rendering placeholders, so that a prompt knows its parts, and a conversation continues
without writing its past again. References do not contain the marker; it is the pool's ``end_of_turn``.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue, Frame, Prompt, PromptTurn, ReplyMarkup, Sample, Turn

Message = dict[str, str]
RenderChat = Callable[[list[Message]], str]

# Roles of messages that precede the conversation and are not part of it.
INSTRUCTIONS = ("system", "developer")
_SIDES = ("user", "assistant")
_CONVERSATION = ("user", "assistant", "user", "assistant", "user")
# The end of a prompt that opens a thought, such as <think> or [THINK].
_THOUGHT = re.compile(r"[<\[◁]\|?[\w:]*(?:think|thought|reason)[\w:]*\|?[>\]▷]\s*\Z", re.IGNORECASE)
_N_COMPARED = 8  # conversations of each length
_N_READ = 1000  # samples of a pool that writes them when they are read

_logger = logging.getLogger(__name__)


def n_instructions(messages: Sequence[Message]) -> int:
    """Number of messages before the conversation."""
    return next((i for i, each in enumerate(messages) if each["role"] not in INSTRUCTIONS), len(messages))


class ChatMarkup:
    """Markup of one chat template."""

    def __init__(self, render: RenderChat) -> None:
        self._render = render
        self._template: Any = render if hasattr(render, "end_in") else None  # not if it writes prompts only
        self._known: dict[tuple[str, ...], tuple[str, ...] | None] = {}
        self._known_places: dict[tuple[str, ...], int | None] = {}
        self._known_replies: dict[tuple[str, ...], tuple[ReplyMarkup, str | None]] = {}
        self._asked: dict[str, list[Message]] = {}  # messages of prompts that `check` compares
        self.faults: dict[str, str] = {}  # what labels have that the template does not write, by kind

    @staticmethod
    def of(render: RenderChat) -> ChatMarkup:
        """Return the markup of a template, which is found only once if the template can hold attributes."""
        found = getattr(render, "markup", None)
        if not isinstance(found, ChatMarkup):
            found = ChatMarkup(render)
            with contextlib.suppress(AttributeError):
                render.markup = found  # type: ignore[attr-defined]
        return found

    def prompt(self, messages: Sequence[Message], names: Sequence[str] | None = None) -> Prompt:
        """Format messages as a prompt for the assistant's reply.

        A template that does not keep each message as it is, apart from space around it, gives a prompt of one part.
        """
        prompt = self._prompt(messages, names)
        if sum(len(each) == len(messages) for each in self._asked.values()) < _N_COMPARED:
            self._asked[prompt] = list(messages)
        return prompt

    def _prompt(self, messages: Sequence[Message], names: Sequence[str] | None) -> Prompt:
        roles, texts = tuple(message["role"] for message in messages), [message["content"] for message in messages]
        n = n_instructions(messages)
        if (number := self._misplaced(roles)) is not None:
            name = f"message {number}" if names is None else names[number]
            move = "move it to the beginning, " if number >= n and roles[number] in INSTRUCTIONS else ""
            raise DataError(
                f"{name} has the role {roles[number]}, for which the chat template has no place there: {move}leave it "
                "out, or choose another tokenizer.model_name"
            )
        written = self._render(list(messages))
        markup, later = self._around(roles), self._opening((*roles[:n], "user"), texts[:n])
        reply, _ = self._reply(roles)
        if markup is not None and later is not None:
            for said in (texts, [text.strip() for text in texts]):  # many templates strip
                opening = _alternating(markup[: n + 1], said[:n])
                turns = _turns(roles[n:], said[n:], markup[n + 1 :], reply.space)
                alone = self._opening((*roles[:n], "assistant"), said[:n])
                prompt = Prompt(turns, opening, later, alone, reply)
                if prompt == written:
                    return prompt
        return Prompt([PromptTurn("", written)], agent_opening=None, reply=reply)

    @property
    def reply(self) -> ReplyMarkup:
        """What is written around the reply to a first message."""
        return self._reply(_CONVERSATION[:1])[0]

    @property
    def end(self) -> str | None:
        """Text that ends a reply; ``None`` if it is the tokenizer's end of sequence, or if the template writes none."""
        end = self._reply(_CONVERSATION[:1])[1]
        return None if end is None or end == self._template.eos_token else end

    def check(self, samples: Iterable[Sample]) -> None:
        """Compare prompts and labels with whole conversations, as the template itself writes them.

        A template whose prompts lack the beginning of a reply is an error; other differences are logged.
        """
        if self._template is None:
            return
        asked = _placeholders(_CONVERSATION[:1])
        reply, end = self._reply(_CONVERSATION[:1])
        if reply.opening.strip() and self._written(asked, is_whole=True) == self._written(asked):
            raise DataError(
                f"the chat template of {self._name} writes {reply.opening!r} before a reply, but not at the end of a "
                f"prompt: add {{% if add_generation_prompt %}}{{{{ {reply.opening!r} }}}}{{% endif %}} to its end, or "
                "choose another tokenizer.model_name, or format: eou"
            )
        if reply.opening.strip():
            self._note("opening", f"writes {reply.opening!r} before a reply, which is learned as its beginning")
        if end is None:
            self._note("end", "writes no end after a reply, so that the tokenizer's end of sequence is learned")
        for sample, text in ((each, text) for each in samples for text in each.references if text.strip()):
            prompt = sample.prompt_or_input_text
            assert isinstance(prompt, Prompt)
            self._compare(prompt, text, self._asked.get(prompt), repr(sample.id))
        self._asked.clear()

    def _compare(self, prompt: Prompt, reply: str, messages: list[Message] | None, id: str) -> None:
        label, tag, end = prompt.reply.around(reply), prompt.reply.begun.strip(), self._reply(_CONVERSATION[:1])[1]
        if end is not None and end in reply:
            self._note("ended", f"ends replies with {end}, which the reply of sample {id} contains: remove it there")
        elif tag and (closing := f"{tag[0]}/{tag[1:]}") not in label:
            why = f"opens a thought with {tag} in every prompt, and the reply of sample {id} does not close it with "
            cure = f"{closing}, so that a whole reply is learned as a thought: write {closing} before the answer"
            self._note("thought", f"{why}{cure}, or use a template that opens none")
        elif messages is not None:
            whole = self._written([*messages, {"role": "assistant", "content": reply}], is_whole=True) or ""
            learned = prompt + label + (end or "")
            if not whole.startswith(learned):
                n = next((i for i, (a, b) in enumerate(zip(whole, learned, strict=False)) if a != b), len(whole))
                there, here = whole[max(n - 20, 0) : n + 40], learned[max(n - 20, 0) : n + 40]
                what = f"does not write the reply of sample {id} as it is learned"
                self._note("label", f"{what}: it has {there!r} where prompt and label have {here!r}")

    def _note(self, kind: str, fault: str) -> None:
        if kind not in self.faults:
            self.faults[kind] = f"the chat template of {self._name} {fault}"
            _logger.warning(self.faults[kind])

    @property
    def _name(self) -> str:
        return getattr(self._render, "name", "the tokenizer")

    def frame(self, with_system: bool = False) -> Frame:
        """Return the markup around the utterances of a conversation in progress."""
        for roles in (_CONVERSATION, _CONVERSATION[:3]):
            self._render(_placeholders(roles))  # an error if the template rejects them
        whole, beginning = self._around(_CONVERSATION), self._around(_CONVERSATION[:3])
        problem = f"the chat template of {self._name} rewrites the past: it"
        cure = "choose another tokenizer.model_name, or format: eou"
        if whole is None or beginning is None or not self._keeps_thoughts():
            lost = "omits or changes earlier messages of a conversation, so it cannot be used with several turns"
            raise DataError(f"{problem} {lost}; {cure}")
        if not _appends(whole, beginning) or (with_system and not self._keeps_system()):
            raise DataError(
                f"{problem} writes earlier messages differently once the conversation continues. Several turns need a "
                f"template that only appends, so that the tokens of a reply stay those that were generated; {cure}"
            )
        return Frame(to_agent=whole[-1], to_partner=whole[2], in_pairs=True)

    def _keeps_system(self) -> bool:
        """Whether a system message stays in its place as the conversation continues."""
        both = [("system", *_CONVERSATION[:n]) for n in (5, 3)]
        if None in [self._written(_placeholders(roles)) for roles in both]:  # prompts with one are errors anyway
            return True
        whole, beginning = map(self._around, both)
        return whole is not None and beginning is not None and _appends(whole[1:], beginning[1:])

    def _keeps_thoughts(self) -> bool:
        """Whether an earlier message keeps its beginning, which some templates drop as a thought."""
        thought = "<think>\nPlaceholder\n</think>\n\n"
        contents = ("Question", f"{thought}Answer", "Question")
        messages = [{"role": role, "content": text} for role, text in zip(_CONVERSATION, contents, strict=False)]
        return f"{thought}Answer" in self._render(messages)

    def _around(self, roles: tuple[str, ...]) -> tuple[str, ...] | None:
        """Markup before, between and after messages of these roles; ``None`` if the template does not keep each one."""
        if roles not in self._known:
            messages = _placeholders(roles)
            rest, pieces, is_kept = self._written(messages) or "", list[str](), True
            for message in messages:
                before, found, rest = rest.partition(message["content"])
                is_kept = is_kept and bool(found)
                pieces.append(before)
            pieces.append(rest)
            is_kept = is_kept and not any("Placeholder" in piece for piece in pieces)
            self._known[roles] = tuple(pieces) if is_kept else None
        return self._known[roles]

    def _misplaced(self, roles: tuple[str, ...]) -> int | None:
        """Number of a message of neither side that the template rejects, omits, moves or writes as one of a side.

        Instructions before the conversation can be moved. A template that rejects a system message says so itself.
        """
        if roles not in self._known_places:
            messages, begin = _placeholders(roles), n_instructions(_placeholders(roles))
            written = self._written(messages)
            places = [-1 if written is None else written.find(message["content"]) for message in messages]
            is_moved = places[begin:] != sorted(places[begin:])
            found = None
            for i, role in enumerate(roles):
                is_first_system = i < begin and role == "system"
                if role in _SIDES or found is not None or (is_first_system and written is None):
                    continue
                others = [[*messages[:i], {**messages[i], "role": side}, *messages[i + 1 :]] for side in _SIDES]
                is_renamed = not is_first_system and written in map(self._written, others)
                if places[i] < 0 or is_renamed or (i >= begin and is_moved):
                    found = i
            if written is None and self._written([each for each in messages if each["role"] in _SIDES]) is None:
                found = None  # it is not this message that is rejected
            self._known_places[roles] = found
        return self._known_places[roles]

    def _written(self, messages: list[Message], is_whole: bool = False) -> str | None:
        """Messages as a prompt or, if the template can tell them apart, as a whole conversation."""
        try:
            if is_whole and self._template:
                return str(self._template(messages, reply_comes=False))
            return self._render(messages)
        except DataError:
            return None

    def _opening(self, roles: tuple[str, ...], instructions: Sequence[str]) -> tuple[str, ...] | None:
        """Text before a first message; ``None`` if the template rejects the roles or changes the instructions."""
        markup = self._around(roles)
        return None if markup is None else _alternating(markup[: len(instructions) + 1], instructions)

    def _reply(self, roles: tuple[str, ...]) -> tuple[ReplyMarkup, str | None]:
        """What the template writes around a reply to messages of these roles, and the text that ends it."""
        if roles not in self._known_replies:
            asked, text = _placeholders(roles), "Placeholder of a reply"
            prompt, found, end = self._written(asked) or "", ReplyMarkup(), None
            whole, spaced = (
                (self._written([*asked, {"role": "assistant", "content": said}], is_whole=True) or "").partition(text)
                for said in (text, f" \n{text}\n ")
            )
            if whole[1]:
                closing, end = self._template.end_in(whole[2]) if self._template else ("", None)
                if end is not None and prompt.endswith(end):  # the beginning of another reply
                    closing, end = "", None
                opening = whole[0].removeprefix(prompt) if whole[0].startswith(prompt) else ""
                thought = _THOUGHT.search(prompt)
                strips = spaced[0] == whole[0], spaced[2] == whole[2]
                found = ReplyMarkup(opening, closing, thought[0] if thought else "", strips)
            self._known_replies[roles] = found, end
        return self._known_replies[roles]


def _placeholders(roles: Sequence[str]) -> list[Message]:
    return [{"role": role, "content": f"Placeholder{i}of{len(roles)}"} for i, role in enumerate(roles)]


def _turns(roles: Sequence[str], texts: Sequence[str], closings: Sequence[str], reply_opening: str) -> list[PromptTurn]:
    """Utterances of a prompt. The whitespace before an earlier reply belongs to the reply, as when it was generated."""
    turns: list[PromptTurn] = []
    for role, text, closing in zip(roles, texts, closings, strict=True):
        if role == "assistant" and turns and reply_opening and turns[-1].closing.endswith(reply_opening):
            turns[-1] = turns[-1]._replace(closing=turns[-1].closing.removesuffix(reply_opening))
            text = reply_opening + text
        turns.append(PromptTurn(text, closing, role == "user"))
    return turns


def _appends(whole: Sequence[str], beginning: Sequence[str]) -> bool:
    """Whether the markup of five messages continues that of the first three, with the same markup for each pair."""
    _, to_agent, to_partner, *later, end = whole
    if [*whole[:3], *later, end] != [*beginning[:3], to_agent, to_partner, beginning[3]]:
        return False
    # Whitespace before a reply may be left to the reply.
    return to_agent.startswith(end) and not to_agent[len(end) :].strip()


def _alternating(markup: Sequence[str], texts: Sequence[str]) -> tuple[str, ...]:
    """Markup and texts in turn, with one more piece of markup than texts."""
    return (markup[0], *(piece for pair in zip(texts, markup[1:], strict=True) for piece in pair))


EOU_TOKEN = "<EOU>"
# After the utterance that the agent answers, as in RL4LMs.
_ANSWERED = f" {EOU_TOKEN}"
FormatName = Literal["eou", "chat_template"]
SampleUnit = Literal["replies", "dialogues"]

T = TypeVar("T")


@dataclass(frozen=True)
class DialogueFormat:
    """A format of prompts."""

    name: FormatName
    context_size: int | None  # number of most recent utterances in a prompt; ``None`` for all
    render_chat: RenderChat | None = None  # for ``chat_template``: writes a prompt, at whose end the reply starts
    # Whether prompts have the markup of a conversation in progress. In ``eou``, each utterance that the agent answered
    # is then followed by a space and the marker; otherwise only the last one is, as in RL4LMs.
    in_conversation: bool = False

    def __post_init__(self) -> None:
        if self.name == "chat_template" and self.render_chat is None:
            cure = "choose another tokenizer.model_name, or format 'eou'"
            raise DataError(f"format 'chat_template' needs a tokenizer with a chat template; {cure}")

    @property
    def _chat(self) -> ChatMarkup | None:
        """Markup of the chat template, if this is the format."""
        return None if self.render_chat is None or self.name == "eou" else ChatMarkup.of(self.render_chat)

    @property
    def end_of_turn(self) -> str | None:
        """Text that ends a reply in this format; ``None`` if it is the tokenizer's end of sequence."""
        return EOU_TOKEN if self._chat is None else self._chat.end

    def check(self, samples: Iterable[Sample]) -> None:
        """Check that the samples have prompts of this format, and what a chat template makes of their replies."""
        samples = samples if isinstance(samples, list) else list(itertools.islice(samples, _N_READ))
        if plain := next((each for each in samples if not isinstance(each.prompt_or_input_text, Prompt)), None):
            raise DataError(
                f"the prompt of sample {plain.id!r} is a plain text, whose turns are not known: the datapool must pass "
                "on what DialogueFormat.prompt returns"
            )
        if self._chat is not None:
            self._chat.check(samples)

    @property
    def key(self) -> dict[str, Any]:
        """What labels depend on besides the texts and their end, for cache keys."""
        return {} if self._chat is None else {"reply": [*self._chat.reply]}

    @property
    def faults(self) -> list[str]:
        """What `check` found that a chat template does not write as it is learned."""
        return [] if self._chat is None else list(self._chat.faults.values())

    @property
    def reserved(self) -> tuple[str, ...]:
        """Markup of the format, which texts in a conversation must not contain."""
        if self.name == "eou":
            return (EOU_TOKEN,)
        return tuple(getattr(self.render_chat, "control_tokens", ()))

    def check_said(self, text: str) -> None:
        """Check that a text in a conversation contains no markup of the format."""
        for reserved in self.reserved:
            if reserved in text:
                why = "which ends a turn" if self.name == "eou" else "which is markup of the chat template"
                raise DataError(f"a text cannot contain {reserved}, {why}")

    def context(self, history: Sequence[T]) -> list[T]:
        """Return the last ``context_size`` utterances."""
        return list(history if self.context_size is None else history[-self.context_size :])

    def prompt(self, context: Sequence[str], persona: str | None = None) -> Prompt:
        """Format a prompt from previous utterances, oldest first, which the reply follows.

        The replying side's persona is a further first utterance in ``eou``, the system message in ``chat_template``.
        """
        if self._chat is not None:
            return self._chat.prompt(chat_messages(context, persona))
        n_left = range(len(context) - 1, -1, -1)  # utterances after each one
        closings = [_ANSWERED if n == 0 or (self.in_conversation and n % 2 == 0) else EOU_TOKEN for n in n_left]
        turns = [PromptTurn(text, closing) for text, closing in zip(context, closings, strict=True)]
        alone, opening = ("", persona or "", _ANSWERED), ("", persona, EOU_TOKEN) if persona else ()
        return Prompt(turns, opening if turns else alone, opening, alone)

    def opening_prompt(self, persona: str | None = None) -> Prompt:
        """Format the prompt of a side that speaks first."""
        prompt = self.prompt(["-"], persona)
        if prompt.agent_opening is None:
            raise DataError("the chat template rejects a conversation that the assistant starts")
        return prompt.restarted(prompt.agent_opening)

    def chat_prompt(self, messages: Sequence[Message], names: Sequence[str] | None = None) -> Prompt:
        """Format chat messages, which have these names in errors, as a prompt; see `ChatMarkup.prompt`."""
        assert self._chat is not None
        return self._chat.prompt(messages, names)

    def frame(self, with_system: bool = False) -> Frame:
        """Return the markup around the utterances of a conversation in progress, whose prompts have a system message.

        A template that writes earlier messages differently once a conversation continues is an error.
        """
        if self._chat is None:
            return Frame.plain(EOU_TOKEN)
        frame = self._chat.frame(with_system)
        # Also markup that is ordinary text to the tokenizer, such as [INST] or USER:, but not plain words.
        control = "|".join(map(re.escape, self.reserved))
        pieces = re.split(rf"{control}|\s+" if control else r"\s+", f"{frame.to_agent}\n{frame.to_partner}")
        plain = [piece for piece in pieces if len(piece) > 1 and not piece.isalnum()]
        return replace(frame, markup=tuple(dict.fromkeys([*self.reserved, *plain])))


def chat_messages(context: Sequence[str], system: str | None = None) -> list[dict[str, str]]:
    """Utterances as chat messages of alternating roles, of which the last one is the user's.

    With an even number of utterances the first message is the assistant's, which some templates reject.
    """
    messages = [{"role": "system", "content": system}] if system else []
    for index, text in enumerate(context):
        from_end = len(context) - index
        messages.append({"role": "user" if from_end % 2 else "assistant", "content": text})
    return messages


def dialogue_samples(
    dialogues: Iterable[Dialogue], dialogue_format: DialogueFormat, unit: SampleUnit = "replies"
) -> list[Sample]:
    """Make samples from dialogues."""
    samples = []
    n_before = 0
    for dialogue in dialogues:
        texts = [turn.text for turn in dialogue.turns]
        replies = range(dialogue_format.context_size or 1, len(texts))
        for index in range(1, len(texts))[:1] if unit == "dialogues" else replies:
            context = dialogue_format.context(texts[:index])
            meta_data = {**_turn_labels(dialogue.turns[index]), "history": context}
            if unit == "dialogues":
                meta_data["continuation"] = texts[index + 1 :]
                meta_data["continuation_labels"] = [_turn_labels(later) for later in dialogue.turns[index + 1 :]]
            samples.append(Sample(n_before + index, dialogue_format.prompt(context), [texts[index]], meta_data))
        n_before += len(texts)
    return samples


def _turn_labels(turn: Turn) -> dict[str, Any]:
    """Return the labels of an utterance under RL4LMs' names: ``emotion`` and ``intent``."""
    labels = {"emotion": turn.emotion, "intent": turn.act}
    return {name: [label] for name, label in labels.items() if label is not None}
