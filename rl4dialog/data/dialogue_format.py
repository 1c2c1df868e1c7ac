"""How a dialogue becomes samples: the prompt texts, and which utterances are replies to learn.

Format ``eou`` is the one of RL4LMs' and OpenRL's DailyDialog: the last ``context_size`` utterances joined by
``<EOU>``, then a blank and ``<EOU>``. Format ``chat_template`` renders the same utterances as chat messages with the
tokenizer's own template, which is handed in as a function: this module knows no tokenizer. References never contain
the marker; it is the pool's ``end_of_turn``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue, Sample, Turn

EOU_TOKEN = "<EOU>"
FormatName = Literal["eou", "chat_template"]

T = TypeVar("T")
RenderChat = Callable[[list[dict[str, str]]], str]


@dataclass(frozen=True)
class DialogueFormat:
    """One way to write prompts.

    Args:
        name: ``eou`` or ``chat_template``.
        context_size: How many of the last utterances a prompt shows; ``None`` for all.
        render_chat: For ``chat_template``: makes the prompt text from messages with ``role`` and ``content``, and
            ends it where the assistant's reply begins.

    Raises:
        DataError: If ``render_chat`` is missing.
    """

    name: FormatName
    context_size: int | None
    render_chat: RenderChat | None = None

    def __post_init__(self) -> None:
        if self.name == "chat_template" and self.render_chat is None:
            raise DataError(
                "format 'chat_template' needs a tokenizer with a chat template (the argument render_chat); "
                "choose such a tokenizer, or format 'eou'"
            )

    @property
    def end_of_turn(self) -> str | None:
        """Text marker that ends a reply in this format."""
        return EOU_TOKEN if self.name == "eou" else None

    def context(self, history: Sequence[T]) -> list[T]:
        """The last ``context_size`` utterances."""
        return list(history if self.context_size is None else history[-self.context_size :])

    def prompt(self, context: Sequence[str], persona: str | None = None) -> str:
        """Write a prompt.

        Args:
            context: What was said, oldest first; the reply to write comes next.
            persona: Who the replying side is. An utterance of its own before the others in ``eou``, the system
                message in ``chat_template``.

        Returns:
            The text that the model reads.
        """
        if self.render_chat is not None and self.name == "chat_template":
            return self.render_chat(chat_messages(context, persona))
        parts = [persona, *context] if persona else context
        return EOU_TOKEN.join(parts) + " " + EOU_TOKEN

    def between_turns(self, reply: str) -> str:
        """What stands between an utterance of the agent's and its next one, around the partner's ``reply``.

        Raises:
            DataError: If the chat template does not show what an assistant said.
        """
        if self.render_chat is None or self.name != "chat_template":
            return f" {EOU_TOKEN}{reply} {EOU_TOKEN}"
        said = "What-the-agent-said"
        messages = chat_messages(["Hello", said, reply])
        _, found, rest = self.render_chat(messages).partition(said)
        if not found:
            raise DataError("the tokenizer's chat template does not show the assistant's earlier messages")
        return rest


def chat_messages(context: Sequence[str], system: str | None = None) -> list[dict[str, str]]:
    """Utterances as chat messages.

    Args:
        context: What was said, oldest first. The last one is the user's, those before it alternate: with an even
            number of utterances the first message is the assistant's, which some templates refuse.
        system: Content of a first message of role ``system``.

    Returns:
        Messages with ``role`` and ``content``.
    """
    messages = [{"role": "system", "content": system}] if system else []
    for index, text in enumerate(context):
        from_end = len(context) - index
        messages.append({"role": "user" if from_end % 2 else "assistant", "content": text})
    return messages


def dialogue_samples(dialogues: Iterable[Dialogue], dialogue_format: DialogueFormat) -> list[Sample]:
    """One sample for every utterance that has at least ``context_size`` utterances before it (without one: at least 1).

    Args:
        dialogues: In order.
        dialogue_format: How prompts are written.

    Returns:
        Samples with the running number of the utterance as id (as in RL4LMs: utterances that are no replies count
        too), and in ``meta_data`` the ``history`` and, where labelled, the ``emotion`` and ``intent`` of the reply,
        each as a list of one number.
    """
    samples = []
    utterance_id = 0
    for dialogue in dialogues:
        texts = [turn.text for turn in dialogue.turns]
        for index, turn in enumerate(dialogue.turns):
            if index >= (dialogue_format.context_size or 1):
                context = dialogue_format.context(texts[:index])
                meta_data = {**turn_labels(turn), "history": context}
                samples.append(Sample(utterance_id, dialogue_format.prompt(context), [turn.text], meta_data))
            utterance_id += 1
    return samples


def turn_labels(turn: Turn) -> dict[str, Any]:
    """Labels of an utterance under the names that RL4LMs gives them: ``emotion`` and ``intent``."""
    labels = {"emotion": turn.emotion, "intent": turn.act}
    return {name: [label] for name, label in labels.items() if label is not None}
