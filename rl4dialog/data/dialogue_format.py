"""Turns dialogues into samples: formats prompts, and selects the utterances that are replies.

Format ``eou`` is that of RL4LMs' and OpenRL's DailyDialog: the last ``context_size`` utterances joined by ``<EOU>``,
then a space and ``<EOU>``. Format ``chat_template`` renders the same utterances as chat messages with the tokenizer's
template, which is passed in as a function, so that this module does not depend on tokenizers. References do not contain
the marker; it is the pool's ``end_of_turn``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue, Frame, Prompt, PromptTurn, Sample, Turn
from rl4dialog.data.chat_markup import ChatMarkup, Message, RenderChat

EOU_TOKEN = "<EOU>"
# After the utterance that the agent answers, as in RL4LMs.
_ANSWERED = f" {EOU_TOKEN}"
FormatName = Literal["eou", "chat_template"]
SampleUnit = Literal["replies", "dialogues"]

T = TypeVar("T")


@dataclass(frozen=True)
class DialogueFormat:
    """A format of prompts.

    Args:
        name: ``eou`` or ``chat_template``.
        context_size: Number of most recent utterances in a prompt; ``None`` for all.
        render_chat: For ``chat_template``: formats messages with ``role`` and ``content`` as a prompt that ends where
            the assistant's reply starts.
        in_conversation: Whether prompts have the markup of a conversation in progress. In ``eou``, each utterance that
            the agent answered is then followed by a space and the marker; otherwise only the last one is, as in RL4LMs.

    Raises:
        DataError: If ``render_chat`` is missing.
    """

    name: FormatName
    context_size: int | None
    render_chat: RenderChat | None = None
    in_conversation: bool = False

    def __post_init__(self) -> None:
        if self.name == "chat_template" and self.render_chat is None:
            raise DataError(
                "format 'chat_template' needs a tokenizer with a chat template; choose another tokenizer.model_name, "
                "or format 'eou'"
            )

    @property
    def end_of_turn(self) -> str | None:
        """Text marker that ends a reply in this format."""
        return EOU_TOKEN if self.name == "eou" else None

    @property
    def reserved(self) -> tuple[str, ...]:
        """Markup of the format, which texts in a conversation must not contain."""
        if self.name == "eou":
            return (EOU_TOKEN,)
        return tuple(getattr(self.render_chat, "control_tokens", ()))

    def check_said(self, text: str) -> None:
        """Check that a text is valid in a conversation.

        Raises:
            DataError: If it contains markup of the format.
        """
        for reserved in self.reserved:
            if reserved in text:
                why = "which ends a turn" if self.name == "eou" else "which is markup of the chat template"
                raise DataError(f"a text cannot contain {reserved}, {why}")

    def context(self, history: Sequence[T]) -> list[T]:
        """Return the last ``context_size`` utterances."""
        return list(history if self.context_size is None else history[-self.context_size :])

    def prompt(self, context: Sequence[str], persona: str | None = None) -> Prompt:
        """Format a prompt.

        Args:
            context: Previous utterances, oldest first; the reply comes next.
            persona: Persona of the replying side: an additional first utterance in ``eou``, the system message in
                ``chat_template``.

        Returns:
            The prompt.

        Raises:
            DataError: If the chat template rejects the conversation.
        """
        if self.render_chat is not None and self.name == "chat_template":
            return self.chat_prompt(chat_messages(context, persona))
        n_left = range(len(context) - 1, -1, -1)  # utterances after each one
        closings = [_ANSWERED if n == 0 or (self.in_conversation and n % 2 == 0) else EOU_TOKEN for n in n_left]
        alone = ("", persona, _ANSWERED) if persona else ("", "", _ANSWERED)
        opening = ("", persona, EOU_TOKEN) if persona else ()
        turns = [PromptTurn(text, closing) for text, closing in zip(context, closings, strict=True)]
        return Prompt(turns, opening if turns else alone, opening, alone)

    def opening_prompt(self, persona: str | None = None) -> Prompt:
        """Format the prompt of a side that speaks first.

        Raises:
            DataError: If the chat template rejects it.
        """
        prompt = self.prompt(["-"], persona)
        if prompt.agent_opening is None:
            raise DataError("the chat template rejects a conversation that the assistant starts")
        return prompt.restarted(prompt.agent_opening)

    def chat_prompt(self, messages: Sequence[Message], names: Sequence[str] | None = None) -> Prompt:
        """Format chat messages, which have these names in errors, as a prompt; see `ChatMarkup.prompt`."""
        assert self.render_chat is not None
        return ChatMarkup.of(self.render_chat).prompt(messages, names)

    def frame(self, with_system: bool = False) -> Frame:
        """Return the markup around the utterances of a conversation in progress.

        Args:
            with_system: Whether the prompts have a persona or a system message.

        Raises:
            DataError: If the chat template writes earlier messages differently once a conversation continues.
        """
        if self.render_chat is not None and self.name == "chat_template":
            frame = ChatMarkup.of(self.render_chat).frame(with_system)
            return replace(frame, markup=tuple(dict.fromkeys([*self.reserved, *self._plain_markup(frame)])))
        return Frame.plain(EOU_TOKEN)

    def _plain_markup(self, frame: Frame) -> list[str]:
        """Find markup that is ordinary text to the tokenizer, such as ``[INST]`` or ``USER:``, but not plain words."""
        control = "|".join(map(re.escape, self.reserved))
        pieces = re.split(rf"{control}|\s+" if control else r"\s+", f"{frame.to_agent}\n{frame.to_partner}")
        return [piece for piece in pieces if len(piece) > 1 and not piece.isalnum()]


def chat_messages(context: Sequence[str], system: str | None = None) -> list[dict[str, str]]:
    """Convert utterances to chat messages.

    Args:
        context: Utterances, oldest first. The last one is the user's, and roles alternate: with an even number of
            utterances the first message is the assistant's, which some templates reject.
        system: Content of a first message with the role ``system``.

    Returns:
        Messages with ``role`` and ``content``.
    """
    messages = [{"role": "system", "content": system}] if system else []
    for index, text in enumerate(context):
        from_end = len(context) - index
        messages.append({"role": "user" if from_end % 2 else "assistant", "content": text})
    return messages


def dialogue_samples(
    dialogues: Iterable[Dialogue], dialogue_format: DialogueFormat, unit: SampleUnit = "replies"
) -> list[Sample]:
    """Make samples from dialogues.

    Args:
        dialogues: The dialogues, in order.
        dialogue_format: Format of the prompts.
        unit: ``replies``: one sample for each utterance after the first ``context_size`` (if ``None``, after the first)
            of a dialogue. ``dialogues``: one sample for each dialogue, in which the second utterance replies to the
            first.

    Returns:
        Samples with the running number of the utterance as id (as in RL4LMs, all utterances are counted). Their
        ``meta_data`` has the ``history`` and, if labeled, the ``emotion`` and ``intent`` of the reply, each as a list
        of one number; for ``dialogues`` also the ``continuation``: all utterances after the reply, and
        ``continuation_labels``: their labels.
    """
    samples = []
    n_before = 0
    for dialogue in dialogues:
        texts = [turn.text for turn in dialogue.turns]
        replies = range(dialogue_format.context_size or 1, len(texts))
        for index in range(1, len(texts))[:1] if unit == "dialogues" else replies:
            context = dialogue_format.context(texts[:index])
            meta_data = {**turn_labels(dialogue.turns[index]), "history": context}
            if unit == "dialogues":
                meta_data["continuation"] = texts[index + 1 :]
                meta_data["continuation_labels"] = [turn_labels(later) for later in dialogue.turns[index + 1 :]]
            samples.append(Sample(n_before + index, dialogue_format.prompt(context), [texts[index]], meta_data))
        n_before += len(texts)
    return samples


def turn_labels(turn: Turn) -> dict[str, Any]:
    """Return the labels of an utterance under RL4LMs' names: ``emotion`` and ``intent``."""
    labels = {"emotion": turn.emotion, "intent": turn.act}
    return {name: [label] for name, label in labels.items() if label is not None}
