"""Texts stand on the page as texts."""

from __future__ import annotations

from rl4dialog.serving.page_html import conversation_html, escaped, status_html

MESSAGES = [{"role": "user", "content": "<b>hi</b> ${x}"}, {"role": "assistant", "content": ""}]


def test_conversation_shows_who_said_what() -> None:
    html = conversation_html("runs/<x>", MESSAGES)
    assert '<h2 class="model">runs/&lt;x&gt;</h2>' in html
    assert '<div class="turn user">&lt;b&gt;hi&lt;/b&gt; &#36;&#123;x&#125;</div>' in html
    assert '<div class="turn assistant"><i>(empty reply)</i></div>' in html
    assert '<div class="turn assistant">…</div>' in conversation_html("x", MESSAGES, is_busy=True)
    assert "Type a message below." in conversation_html("x", [])


def test_problem_is_told_before_what_was_done() -> None:
    assert status_html("a < b", "done") == '<p class="problem" role="alert">error: a &lt; b</p>'
    assert status_html("", "done") == '<p class="note" role="status">done</p>'
    assert status_html("", "") == ""


def test_control_characters_are_shown_as_such() -> None:
    assert escaped("a\x00b'") == "a\ufffdb&#x27;"
