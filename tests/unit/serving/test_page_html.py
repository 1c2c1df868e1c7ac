"""Texts stand on the page as texts."""

from __future__ import annotations

import re

from rl4dialog.serving.page_html import escaped, help_html, note_html, plain, status_html, without_joiners


def test_texts_are_escaped() -> None:
    assert (
        note_html("runs/<x> ${y}") == '<p class="remark">runs/&lt;x&gt; &#36;&#123;y&#125;</p>' and note_html("") == ""
    )
    assert '<p class="hint">1 &lt; 2</p>' in help_html("1 < 2") and "about" not in help_html("1 < 2")
    assert note_html("<x>", is_strong=True) == '<p class="remark"><strong>&lt;x&gt;</strong></p>'
    assert '<p class="about">a &amp; b</p>' in help_html("", "a & b")
    assert "</summary>a &amp; b</details>" in help_html("", goal="a & b") and "details" not in help_html("", "a & b")


def test_chatbot_can_read_no_markup_in_a_text() -> None:
    text = "<b>1 < 2</b> &lt; <!-- x --> a & b"
    shown = plain(text)
    assert not re.search(r"<[a-zA-Z/!]|&\w", shown) and without_joiners(shown) == text
    assert plain("a\x00") == "a\ufffd"


def test_problem_is_told_before_what_was_done() -> None:
    assert status_html("a < b", "done") == '<p class="problem" role="alert">error: a &lt; b</p>'
    assert status_html("", "done") == '<p class="note" role="status">done</p>'
    assert status_html("", "") == ""


def test_control_characters_are_shown_as_such() -> None:
    assert escaped("a\x00b'") == "a\ufffdb&#x27;"
