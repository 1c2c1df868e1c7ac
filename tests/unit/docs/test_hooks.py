import runpy
from types import SimpleNamespace

import pytest
from pages import ROOT

on_page_content = runpy.run_path(str(ROOT / "docs" / "hooks.py"))["on_page_content"]


def shown(html, page="rewards.md"):
    return on_page_content(html, page=SimpleNamespace(file=SimpleNamespace(src_uri=page)))


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        (r"<td><code>kl_in: reward\|loss</code></td>", "<td><code>kl_in: reward|loss</code></td>"),
        (r"<p><code>grep 'a\|b'</code></p>", r"<p><code>grep 'a\|b'</code></p>"),
        ("<code>a --b_c d</code>", '<code>a <span class="whole">--b_c</span> d</code>'),
        ("<pre><span></span><code>a --b</code></pre>", "<pre><span></span><code>a --b</code></pre>"),
    ],
)
def test_code_is_shown_as_it_is_typed(html, expected):
    assert shown(html) == expected


def test_tables_of_the_yaml_reference_can_be_stacked():
    table = "<table><tr></tr></table>"
    assert shown(table, "yaml.md") == f'<div class="keys">{table}</div>'
    assert shown(table) == table
