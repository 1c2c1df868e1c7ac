"""Texts of users and models as HTML of the page, in which they are texts and nothing else."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from rl4dialog.serving.terminal import visible


def escaped(text: str) -> str:
    """A text that stands in HTML as what it is; braces and dollars too, which mean something in Gradio's templates."""
    found = html.escape(visible(text))
    for character in "{}$":
        found = found.replace(character, f"&#{ord(character)};")
    return found


def conversation_html(name: str, messages: Sequence[Mapping[str, str]], is_busy: bool = False) -> str:
    """A conversation with a model.

    Args:
        name: Of the model.
        messages: With role, content and, if the model itself did not say it, origin; the oldest first.
        is_busy: Whether the last one is still to be written.
    """
    turns = []
    for i, message in enumerate(messages):
        text = escaped(message["content"])
        if not text:
            text = "…" if is_busy and i == len(messages) - 1 else "<i>(an empty reply)</i>"
        turns.append(f'<div class="turn {message["role"]}">{text}</div>')
        if origin := message.get("origin"):
            turns.append(f'<p class="origin">{escaped(origin)}</p>')
    content = "".join(turns) or '<p class="hint">Say something below.</p>'
    # The outer box holds on to its lower end while the inner one grows.
    box = f'<div class="conversation" role="log" tabindex="0" aria-label="{escaped(name)}"><div>{content}</div></div>'
    return f'<h2 class="model">{escaped(name)}</h2>{box}'


def status_html(problem: str, note: str) -> str:
    """What the last click has done, or why it has done nothing."""
    if problem:
        return f'<p class="problem" role="alert">error: {escaped(problem)}</p>'
    return f'<p class="note" role="status">{escaped(note)}</p>' if note else ""
