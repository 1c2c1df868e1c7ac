"""The layers hold: imports go only downward, packages of one layer do not know each other, and there is no cycle.

The core imports no feature, and a feature only those that it declares.
"""

from __future__ import annotations

import ast
from pathlib import Path

from rl4dialog.core.features import features

PACKAGE = Path(__file__).parents[1] / "rl4dialog"
LAYERS = {
    "core": 0, "catalog": 0.5, "data": 1, "text": 1, "functional": 1, "tasks": 1.5, "policies": 2, "envs": 2,
    "scores": 2.5, "rollouts": 3, "partners": 3, "algorithms": 4, "runs": 4.5, "training": 5,
    "inference": 6, "commands": 7, "features": 7.5, "cli": 8,
}  # fmt: skip


def imports(path: Path, top_level_only: bool = False) -> set[str]:
    """Modules that a file imports, those inside functions and for type checking too."""
    found: set[str] = set()

    def visit(node: ast.AST, at_import_time: bool) -> None:
        if top_level_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, (ast.Import, ast.ImportFrom)) and (at_import_time or not top_level_only):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif node.module:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child, at_import_time and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))

    visit(ast.parse(path.read_text(encoding="utf-8")), True)
    return found


def part_of(module: str) -> str | None:
    pieces = module.split(".")
    return pieces[1] if pieces[0] == "rl4dialog" and len(pieces) > 1 and pieces[1] in LAYERS else None


def is_declared(path: Path, module: str) -> bool:
    """Whether a module of a feature may be imported by a file of one: it is of the same feature, or of one it needs."""
    own, other = path.parts[path.parts.index("features") + 1], [*module.split(".")[2:], ""][0]
    return other in ("", own, *features()[own].needs)


def breaches(root: Path) -> list[str]:
    """Everything in a package that the plan does not allow."""
    found = []
    for path in sorted(root.rglob("*.py")):
        here = path.relative_to(root).parts[0].removesuffix(".py")
        if here not in LAYERS:
            continue
        for module in sorted(imports(path)):
            there = part_of(module)
            is_feature = here != "features" and there == "features"
            if there is not None and there != here and (is_feature or LAYERS[there] >= LAYERS[here]):
                found.append(f"{path.relative_to(root)} imports {module}")
            if here == there == "features" and not is_declared(path, module):
                found.append(f"{path.relative_to(root)} imports {module}, which its FEATURE does not need")
            parts = {here, *path.parent.relative_to(root).parts}
            is_in_workers = parts & {"core", "envs", "partners", "tasks"} and path.name != "language_model.py"
            if is_in_workers and module.split(".")[0] == "torch":
                found.append(f"{path.relative_to(root)} imports torch")
    return found


def cycles(root: Path) -> list[str]:
    """Modules that import themselves through others while they are being imported."""
    graph: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        name = ".".join(["rl4dialog", *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        graph[name] = imports(path, top_level_only=True)
    found, done = [], set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if name in trail:
            found.append(" -> ".join([*trail[trail.index(name) :], name]))
        elif name in graph and name not in done:
            # "from package import module" needs the module; the package is on its way in any case.
            for module in (
                m for m in graph[name] if not any(other.startswith(f"{m}.") for other in graph[name] & graph.keys())
            ):
                visit(module, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    return found


def test_imports_go_only_downward() -> None:
    assert breaches(PACKAGE) == []


def test_there_is_no_import_cycle() -> None:
    assert cycles(PACKAGE) == []


def test_every_package_has_a_layer() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix in ("", ".py") and path.stem[:2] != "__"}
    assert parts <= LAYERS.keys()


def test_a_breach_and_a_cycle_would_be_found(tmp_path: Path) -> None:
    for part in ("core", "envs", "policies"):
        (tmp_path / part).mkdir()
    (tmp_path / "core" / "a.py").write_text("def f():\n    from rl4dialog.envs.b import x\n")
    (tmp_path / "core" / "b.py").write_text("if TYPE_CHECKING:\n    from rl4dialog.envs.b import x\n")
    (tmp_path / "envs" / "b.py").write_text("import torch\nfrom rl4dialog.policies import c\n")
    (tmp_path / "policies" / "c.py").write_text("from rl4dialog.envs import b\n")
    found = breaches(tmp_path)
    assert len(found) >= 6 and any(breach.startswith("core/b.py") for breach in found)
    assert cycles(tmp_path)
