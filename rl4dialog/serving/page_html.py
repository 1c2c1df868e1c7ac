"""Renders texts of users and models as HTML, fully escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from rl4dialog.serving.line_chat import visible


def escaped(text: str) -> str:
    """Escape a text for HTML, including braces and dollar signs, which are special in Gradio's templates."""
    found = html.escape(visible(text))
    for character in "{}$":
        found = found.replace(character, f"&#{ord(character)};")
    return found


def conversation_html(name: str, messages: Sequence[Mapping[str, str]], is_busy: bool = False) -> str:
    """Render a conversation with a model.

    Args:
        name: Name of the model.
        messages: Messages with role, content and, for text that the model did not write, origin; oldest first.
        is_busy: Whether the last message is still being generated.
    """
    turns = []
    for i, message in enumerate(messages):
        text = escaped(message["content"])
        if not text:
            text = "…" if is_busy and i == len(messages) - 1 else "<i>(empty reply)</i>"
        turns.append(f'<div class="turn {message["role"]}">{text}</div>')
        if origin := message.get("origin"):
            turns.append(f'<p class="origin">{escaped(origin)}</p>')
    content = "".join(turns) or '<p class="hint">Type a message below.</p>'
    # The outer box stays scrolled to the bottom while the inner one grows.
    box = f'<div class="conversation" role="log" tabindex="0" aria-label="{escaped(name)}"><div>{content}</div></div>'
    return f'<h2 class="model">{escaped(name)}</h2>{box}'


def status_html(problem: str, note: str) -> str:
    """Render the result of the last action, or why it failed."""
    if problem:
        return f'<p class="problem" role="alert">error: {escaped(problem)}</p>'
    return f'<p class="note" role="status">{escaped(note)}</p>' if note else ""
