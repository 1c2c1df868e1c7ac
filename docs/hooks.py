"""What MkDocs calls while it builds: the order of search results, and corrections of the HTML of pages."""

from __future__ import annotations

import re
from typing import Any

_INLINE = re.compile(r"(?<!<pre>)(?<!</span>)<code>([^<]*)</code>")
_HYPHENATED = re.compile(r"(?<![^\s>])[^\s<>]*[-\[…=][^\s<>]*(?![^\s<])")
_WHOLE = r'<span class="whole">\g<0></span>'
_CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)

# Guides come before lists of everything, and before pages for contributors.
_SEARCH_BOOST = {"Contributing": 0.2, "Commands, keys and ids": 0.3, "Background": 0.7}


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Weigh the page in the search by its place in the navigation."""
    boosts = [_SEARCH_BOOST[each.title] for each in page.ancestors if each.title in _SEARCH_BOOST]
    if boosts:
        page.meta.setdefault("search", {"boost": min(boosts)})
    return markdown


def on_page_content(html: str, page: Any, **kwargs: Any) -> str:
    """Correct what Markdown cannot express."""
    # Browsers break lines behind hyphens, also those of --options and file names.
    html = _INLINE.sub(lambda match: _HYPHENATED.sub(_WHOLE, match.group()), html)
    # In a table cell, only an escaped | does not end the cell; inside code, the backslash stays.
    html = _CELL.sub(lambda match: match.group().replace(r"\|", "|"), html)
    if page.file.src_uri == "yaml.md":  # style.css stacks the four columns on phones
        html = html.replace("<table>", '<div class="keys"><table>').replace("</table>", "</table></div>")
    return html


def on_post_page(output: str, **kwargs: Any) -> str:
    """Name the search dialog, for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_post_template(output_content: str, **kwargs: Any) -> str:
    """Do the same on the page for addresses that do not exist."""
    return on_post_page(output_content)
