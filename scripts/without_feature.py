"""Copy the checkout without a feature: its package, tests, configs and page, and those of features that need it.

python scripts/without_feature.py corpora --output_path /tmp/rl4dialog
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import script

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.features import features

ROOT = Path(__file__).parents[1]


def all_that_need(name: str) -> set[str]:
    """The feature, and all that need it, directly or not."""
    needing, known = {name}, features()
    while more := {other for other in known.keys() - needing if needing & {*known[other].needs}}:
        needing |= more
    return needing


def is_of(file: str, names: Collection[str]) -> bool:
    """Whether a script, benchmark or example imports one of these features, itself or in a benchmark."""
    if not file.endswith(".py") or not file.startswith(("scripts/", "benchmarks/", "docs/")):
        return False
    text = (ROOT / file).read_text(encoding="utf-8")
    of_benchmarks = re.findall(r"from benchmarks\.(\w+) import", text)
    found = any(f"rl4dialog.features.{name}" in text for name in names)
    return found or any(is_of(f"benchmarks/{each}.py", names) for each in of_benchmarks)


def rest_of(page: Path, folder: str, removed: Collection[str], commands: Collection[str]) -> str:
    """Text of a page without what is shown of removed files and lines that name them; the texts of links stay.

    Calls of removed commands go, too, and rows of tables whose second cell begins with a file of a removed package.
    """

    def unlinked(link: re.Match[str]) -> str:
        return link[1] if os.path.normpath(f"{folder}/{link[2]}") in removed else link[0]

    def unshown(block: re.Match[str]) -> str:
        return "" if f"docs/examples/{block[1]}" in removed else block[0]

    text = re.sub(r"\[([^\]]*)\]\(([^)#\s]+)[^)]*\)", unlinked, page.read_text(encoding="utf-8"))
    shown = r"^<!-- from examples/([\w.]+)\S* -->\n+```.*?^```\n"
    text = re.sub(shown, unshown, text, flags=re.MULTILINE | re.DOTALL)
    if commands:
        called = rf"^rl4dialog (?:{'|'.join(commands)})(?=\s)(?:.*\\\n)*.*\n"
        text = re.sub(called, "", text, flags=re.MULTILINE)
    named = [*removed, *(f"| `{each.removeprefix('rl4dialog/')}/" for each in removed if "/features/" in each)]
    return "".join(line for line in text.splitlines(keepends=True) if not any(each in line for each in named))


def copy_without(name: str, output: Path) -> None:
    """Copy what is tracked, and what is new, to an empty folder, with generated pages of what is left.

    Raises:
        ConfigError: If there is no such feature, or the folder is not empty.
    """
    if name not in features():
        raise ConfigError(f"{name!r} is no feature; features are {', '.join(features())}")
    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty")
    removed, pages, commands, needing = set[str](), set[str](), list[str](), all_that_need(name)
    for each in needing:
        feature = features()[each]
        removed |= {f"rl4dialog/features/{each}", f"tests/features/{each}"}
        removed |= {f"task_configs/{config}" for config in feature.configs}
        pages |= {*feature.pages}
        commands += [command for group in feature.command_texts.values() for command in group]
    removed |= {f"docs/{page}" for page in pages}
    for text in [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages]:
        removed |= {f"docs/examples/{shown}" for shown in re.findall(r"<!-- from examples/(\w+\.py)", text)}
    listing = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    files = [file for file in listed if file and (ROOT / file).is_file()]
    removed |= {file for file in files if is_of(file, needing)}
    for file in files:
        if not any(file == each or file.startswith(f"{each}/") for each in removed):
            (output / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, output / file)
    for page in [output / "README.md", *(output / "docs").rglob("*.md")]:
        rest = rest_of(page, str(page.parent.relative_to(output)), removed, commands)
        page.write_text(rest, encoding="utf-8")
    folders, modules = ({f"features{sep}{each}{sep}" for each in needing} for sep in "/.")
    for name, words in (("mkdocs.yml", pages), ("pyproject.toml", folders), ("setup.py", modules)):
        lines = (output / name).read_text(encoding="utf-8").splitlines(keepends=True)
        rest = "".join(line for line in lines if not any(word in line for word in words))
        (output / name).write_text(rest, encoding="utf-8")
    expected = output / "task_configs" / "expected.yml"
    rows = re.split(r"^(?=\S)", expected.read_text(encoding="utf-8"), flags=re.MULTILINE)
    gone = tuple(each.removeprefix("task_configs/") for each in removed if each.startswith("task_configs/"))
    expected.write_text("".join(row for row in rows if not row.startswith(gone)), encoding="utf-8")
    places = {"PYTHONPATH": os.pathsep.join([str(output), str(output / "scripts")])}
    subprocess.run([sys.executable, "scripts/reference_pages.py"], cwd=output, env={**os.environ, **places}, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("name", help="name of the feature")
    parser.add_argument("--output_path", type=Path, required=True, help="new folder")
    args = parser.parse_args()
    copy_without(args.name, args.output_path)


if __name__ == "__main__":
    script.run(main)
