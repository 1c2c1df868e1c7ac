"""What MkDocs calls while it builds: cross references of docstrings become plain code."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):<code>~?([\w.]+)</code>")


def on_page_content(html: str, **kwargs: Any) -> str:
    """Show the last name of what Sphinx would link: ``:class:`~a.b.C``` as ``C``."""
    return _ROLE.sub(lambda match: f"<code>{match.group(1).rsplit('.', 1)[-1]}</code>", html)
