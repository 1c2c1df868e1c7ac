"""What MkDocs calls while it builds: the order of search results; cross references of docstrings as plain code."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):<code>~?([\w.]+)</code>")

# Guides come before lists of everything, and before pages for contributors.
_SEARCH_BOOST = {
    "Contributing": 0.2,
    "Reference": 0.3,
    "Explanation": 0.7,
}


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Weigh the page in the search by its place in the navigation."""
    section = page.ancestors[-1].title if page.ancestors else ""
    if section in _SEARCH_BOOST:
        page.meta.setdefault("search", {"boost": _SEARCH_BOOST[section]})
    return markdown


def on_page_content(html: str, **kwargs: Any) -> str:
    """Show the last name of what Sphinx would link: ``:class:`~a.b.C``` as ``C``."""
    return _ROLE.sub(lambda match: f"<code>{match.group(1).rsplit('.', 1)[-1]}</code>", html)
