"""Renders texts of users and models as HTML, fully escaped."""

from __future__ import annotations

import html
import re

from rl4dialog.serving.line_chat import visible

_JOINER = "\u2060"


def escaped(text: str) -> str:
    """Escape a text for HTML, including braces and dollar signs, which are special in Gradio's templates."""
    found = html.escape(visible(text))
    for character in "{}$":
        found = found.replace(character, f"&#{ord(character)};")
    return found


def plain(text: str) -> str:
    """The text for a Chatbot, which reads texts as HTML: an invisible character after ``<`` and ``&`` prevents that.

    Escaped, the text would be wrong in the box in which it is edited.
    """
    return re.sub("([<&])", rf"\1{_JOINER}", visible(text))


def without_joiners(text: str) -> str:
    """A text from a Chatbot as it was before :func:`plain`."""
    return re.sub(f"([<&]){_JOINER}", r"\1", text)


def help_html(hint: str, about: str = "", goal: str = "") -> str:
    """Render the top of the page: what to do, and what the conversation is about; a goal can be folded."""
    found = f'<h1>rl4dialog</h1><p class="hint">{escaped(hint)}</p>'
    found += f'<p class="about">{escaped(about)}</p>' if about else ""
    return found + (f"<details open><summary>Goal</summary>{escaped(goal)}</details>" if goal else "")


def note_html(text: str, is_strong: bool = False) -> str:
    """Render a remark beneath a message."""
    shown = f"<strong>{escaped(text)}</strong>" if is_strong else escaped(text)
    return f'<p class="remark">{shown}</p>' if text else ""


def status_html(problem: str, note: str) -> str:
    """Render the result of the last action, or why it failed."""
    if problem:
        return f'<p class="problem" role="alert">error: {escaped(problem)}</p>'
    return f'<p class="note" role="status">{escaped(note)}</p>' if note else ""
