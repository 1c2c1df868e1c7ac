"""The README and the pages of the docs: their code, and the files that they show."""

import re
from pathlib import Path

from rl4dialog.core.yaml_loader import parse_yaml

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page, language):
    """The code of a language, as it stands on the page."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), flags=re.DOTALL)


def yaml_of(page, first_key=""):
    """The YAML of a page; where there are several blocks, the one that begins with a key."""
    (block,) = [block for block in blocks(page, "yaml") if block.startswith(first_key)]
    return parse_yaml(block, page)


def commands_of(page):
    """The commands of a page, each on a line of its own."""
    lines = [line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [line.strip() for line in lines if line.strip()]
