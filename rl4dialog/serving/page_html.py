"""Renders texts of users and models as HTML, fully escaped."""

from __future__ import annotations

import html

from rl4dialog.serving.line_chat import visible


def escaped(text: str) -> str:
    """Escape a text for HTML, including braces and dollar signs, which are special in Gradio's templates."""
    found = html.escape(visible(text))
    for character in "{}$":
        found = found.replace(character, f"&#{ord(character)};")
    return found


def help_html(hint: str, persona: str = "") -> str:
    """Render the top of the page."""
    found = f'<h1>rl4dialog</h1><p class="hint">{escaped(hint)}</p>'
    return found + (f'<p class="persona">{escaped(persona)}</p>' if persona else "")


def note_html(text: str) -> str:
    """Render a remark beneath a message."""
    return f'<p class="remark">{escaped(text)}</p>' if text else ""


def status_html(problem: str, note: str) -> str:
    """Render the result of the last action, or why it failed."""
    if problem:
        return f'<p class="problem" role="alert">error: {escaped(problem)}</p>'
    return f'<p class="note" role="status">{escaped(note)}</p>' if note else ""
