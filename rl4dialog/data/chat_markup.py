"""The markup that a chat template writes around messages, found by rendering placeholders.

With it, a prompt knows its parts, and a conversation continues without writing its past again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Frame, Prompt, PromptTurn

Message = dict[str, str]
RenderChat = Callable[[list[Message]], str]

# Roles of messages that precede the conversation and are not part of it.
INSTRUCTIONS = ("system", "developer")
_CONVERSATION = ("user", "assistant", "user", "assistant", "user")


class ChatMarkup:
    """Markup of one chat template.

    Args:
        render: Formats messages as a prompt for the assistant's reply.
    """

    def __init__(self, render: RenderChat) -> None:
        self._render = render
        self._known: dict[tuple[str, ...], tuple[str, ...] | None] = {}

    @staticmethod
    def of(render: RenderChat) -> ChatMarkup:
        """Return the markup of a template, which is found only once if the template can hold attributes."""
        found = getattr(render, "markup", None)
        if not isinstance(found, ChatMarkup):
            found = ChatMarkup(render)
            with contextlib.suppress(AttributeError):
                render.markup = found  # type: ignore[attr-defined]
        return found

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Format messages as a prompt for the assistant's reply.

        A template that does not keep each message as it is, apart from space around it, gives a prompt of one part.

        Raises:
            DataError: If the template rejects the messages.
        """
        written = self._render(list(messages))
        roles, texts = tuple(message["role"] for message in messages), [message["content"] for message in messages]
        n = next((i for i, role in enumerate(roles) if role not in INSTRUCTIONS), len(roles))
        markup, later = self._around(roles), self._opening((*roles[:n], "user"), texts[:n])
        if markup is not None and later is not None:
            for said in (texts, [text.strip() for text in texts]):  # many templates strip
                turns = [
                    PromptTurn(text, closing, role == "user")
                    for role, text, closing in zip(roles[n:], said[n:], markup[n + 1 :], strict=True)
                ]
                opening = _alternating(markup[: n + 1], said[:n])
                prompt = Prompt(turns, opening, later, self._opening((*roles[:n], "assistant"), said[:n]))
                if prompt == written:
                    return prompt
        return Prompt([PromptTurn(written, "")], agent_opening=None)

    def frame(self) -> Frame:
        """Return the markup around the utterances of a conversation in progress.

        Raises:
            DataError: If the template writes earlier messages differently once a conversation continues.
        """
        whole, beginning = self._around(_CONVERSATION), self._around(_CONVERSATION[:3])
        name = getattr(self._render, "name", "the tokenizer")
        if whole is None or beginning is None:
            raise DataError(
                f"the chat template of {name} omits or changes earlier messages of a conversation, so it cannot be "
                f"used with several turns; choose another tokenizer.model_name, or format: eou"
            )
        opening, to_agent, to_partner = whole[:3]
        if (opening, to_agent, to_partner, to_agent) != beginning or whole[3:] != (to_agent, to_partner, to_agent):
            raise DataError(
                f"the chat template of {name} rewrites the past: it writes earlier messages differently once the "
                f"conversation continues. Several turns need a template that only appends, so that the tokens of a "
                f"reply stay those that were generated; choose another tokenizer.model_name, or format: eou"
            )
        return Frame(to_agent, to_partner, in_pairs=True)

    def _around(self, roles: tuple[str, ...]) -> tuple[str, ...] | None:
        """Markup before, between and after messages of these roles; ``None`` if the template does not keep each one.

        Raises:
            DataError: If the template rejects these roles.
        """
        if roles not in self._known:
            said = [f"Placeholder{i}of{len(roles)}" for i in range(len(roles))]
            rest = self._render([{"role": role, "content": text} for role, text in zip(roles, said, strict=True)])
            pieces = []
            for text in said:
                before, _, rest = rest.partition(text)
                pieces.append(before)
            pieces.append(rest)
            joined = _alternating(pieces, said)
            is_kept = all(joined.count(text) == 1 and "Placeholder" not in "".join(pieces) for text in said)
            self._known[roles] = tuple(pieces) if is_kept and (rest or not said) else None
        return self._known[roles]

    def _opening(self, roles: tuple[str, ...], instructions: Sequence[str]) -> tuple[str, ...] | None:
        """Text before a first message; ``None`` if the template rejects the roles or changes the instructions."""
        try:
            markup = self._around(roles)
        except DataError:
            return None
        return None if markup is None else _alternating(markup[: len(instructions) + 1], instructions)


def _alternating(markup: Sequence[str], texts: Sequence[str]) -> tuple[str, ...]:
    """Markup and texts in turn, with one more piece of markup than texts."""
    return (markup[0], *(piece for pair in zip(texts, markup[1:], strict=True) for piece in pair))
