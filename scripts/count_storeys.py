"""Print the size of the core and of the features, of what a run imports, and of tests.

python scripts/count_storeys.py
python scripts/count_storeys.py --config_path task_configs/guess_what/llama_ppo.yml
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

import script
from rich.table import Table

from rl4dialog.core.console import Console
from rl4dialog.core.errors import ConfigError

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rl4dialog"
JUDGES = (
    "core/config_notes.py",
    "training/plan.py",
    *(f"training/building/{n}.py" for n in ("conditions", "settings", "switching")),
)
# A child prints what it has imported when it has checked a config and imported what trains it.
IMPORTED = """
import sys
from pathlib import Path
from rl4dialog.core.config import load_config
from rl4dialog.training.building.components import import_and_check
config = load_config(sys.argv[1])
import_and_check(config, Path.cwd())
from rl4dialog.core.registry import import_object
import_object(config.trainee)
print(*sorted(m.__file__ for n, m in sys.modules.items() if n.startswith("rl4dialog") and getattr(m, "__file__", None)))
"""


def code_lines(file: Path) -> int:
    """Number of lines without blank ones, comments, docstrings and imports."""
    text = file.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines = {n for token in tokens if token.type not in skipped for n in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (is_docstring or isinstance(node, ast.Import | ast.ImportFrom)):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(lines)


def counted(files: Iterable[Path]) -> tuple[int, int, int]:
    """Number of files, of their lines, and of those with code."""
    found = [(len(file.read_text(encoding="utf-8").splitlines()), code_lines(file)) for file in files]
    return len(found), sum(lines for lines, _ in found), sum(code for _, code in found)


def of_storey(file: Path) -> str:
    """Name of the feature of a file of the package, or ``core``."""
    parts = file.relative_to(PACKAGE).parts
    return f"features/{parts[1]}" if parts[0] == "features" and len(parts) > 2 else "core"


def imports_of_features(files: Iterable[Path]) -> int:
    """Number of lines that import a feature."""
    return sum(
        "import" in line and "rl4dialog.features." in line
        for file in files
        for line in file.read_text("utf-8").splitlines()
    )


def cpu_seconds(*arguments: str) -> float:
    """CPU time of a command of the toolkit in a process of its own, without what it prints."""
    command = (
        sys.executable,
        "-c",
        "import sys, time; from rl4dialog.cli import main; main(sys.argv[1:]); "
        "print(time.process_time(), file=sys.stderr)",
        *arguments,
    )
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    return float(ended.stderr.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--config_path", default="task_configs/small_talk/gpt2_ppo.yml", help="config whose imports count"
    )
    args = parser.parse_args()
    files = sorted(PACKAGE.rglob("*.py"))
    rows = {storey: [f for f in files if of_storey(f) == storey] for storey in sorted({of_storey(f) for f in files})}
    rows["package"] = files
    child = subprocess.run([sys.executable, "-c", IMPORTED, args.config_path], cwd=ROOT, capture_output=True, text=True)
    if child.returncode:
        raise ConfigError(f"{args.config_path} cannot be built: {child.stderr.strip().splitlines()[-1]}")
    rows[f"imported by {args.config_path}"] = [Path(path) for path in child.stdout.split()]
    rows["conditions, plan, notes, switching"] = [PACKAGE / name for name in JUDGES]
    rows |= {name: sorted((ROOT / name).rglob("*.py")) for name in ("tests", "scripts", "benchmarks")}
    table = Table("", "files", "lines", "code")
    for name, of_row in rows.items():
        table.add_row(name, *(f"{number:,}" for number in counted(of_row)))
    console = Console()
    console.print(table)
    console.print(f"Imports from the core to features: {imports_of_features(rows['core'])}.")
    console.print(f"CPU seconds of rl4dialog list rewards: {cpu_seconds('list', 'rewards'):.1f}.")


if __name__ == "__main__":
    script.run(main)
