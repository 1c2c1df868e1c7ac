"""Renders a report template to a single HTML file."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.files import replaced
from rl4dialog.runs.report.figures import COLORS
from rl4dialog.runs.report.statistics import MIN_SAMPLES
from rl4dialog.runs.run_folder import to_plain
from rl4dialog.runs.summary import format_number


@dataclass(frozen=True)
class Picture:
    """One plot of the page, with a remark beside its title; ``labels`` are its legend, in the order of the colors."""

    title: str
    remark: str
    chart: Markup
    labels: list[str] = field(default_factory=list)


def write_page(template: str, output: Path, **content: Any) -> Path:
    """Render a template and write the page atomically.

    Args:
        template: File in ``templates/``.
        output: The output file.
        content: Variables of the template. Everything but `Markup` is escaped.
    """
    page = _environment().get_template(template).render(colors=COLORS, min_samples=MIN_SAMPLES, **content)
    try:
        with replaced(output) as temporary:
            # Models can generate lone surrogates, which UTF-8 cannot encode.
            temporary.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunFolderError(
            f"{output} cannot be written: {error.strerror or error}; choose another --output"
        ) from error
    return output


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rl4dialog.runs.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": format_number, "yaml": _yaml}
    return environment


def _yaml(obj: Any) -> str:
    return yaml.safe_dump(to_plain(obj), sort_keys=False, allow_unicode=True, width=100)
