"""Fill the generated parts of pages: the code of examples, and the reference of Python objects from their source.

A page names them in comments, ``<!-- from examples/my_reward.py:6:9 -->`` before a code block, and ``<!-- api
rl4dialog.core.types.Sample -->`` or ``<!-- features -->``, whose text ends at the next comment. GitHub shows such a
page as the site does.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

from rl4dialog.core.features import features
from rl4dialog.core.registry import as_markdown, explanation

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_CODE = re.compile(r"^(<!-- from (\S+?)(?::(\d+):(\d*))? -->\n+```\w+\n)(.*?)^```$", re.DOTALL | re.MULTILINE)
_API = re.compile(r"^(<!-- api (\S+) -->\n)(.*?)(?=^<!-- )", re.DOTALL | re.MULTILINE)
_FEATURES = re.compile(r"^(<!-- features -->\n)(.*?)(?=^<!-- )", re.DOTALL | re.MULTILINE)
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):\n((?:(?: {4}.*)?(?:\n|\Z))+)", re.MULTILINE)
_ENTRY = re.compile(r"^    ([\w*.]+): ", re.MULTILINE)
_TITLES = {"Args": "Arguments", "Attributes": "Attributes", "Raises": "Raises"}
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Documented = ast.ClassDef | _Function | ast.Module


def filled(page: Path) -> str:
    """Text of a page with its generated parts as they should be."""
    return _FEATURES.sub(_features, _API.sub(_reference, _CODE.sub(_example, page.read_text(encoding="utf-8"))))


def pages_with_parts() -> dict[str, Callable[[], str]]:
    """Pages that have generated parts, by path in ``docs/``, with what writes their text."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md"))}
    found = [path for path, text in pages.items() if any(part.search(text) for part in (_CODE, _API, _FEATURES))]
    return {str(path.relative_to(DOCS)): lambda path=path: filled(path) for path in found}  # type: ignore[misc]


def _example(match: re.Match[str]) -> str:
    head, name, first, last, _ = match.groups()
    if not (DOCS / name).is_file():  # it went with the feature that it is about
        return match.group()
    lines = (DOCS / name).read_text(encoding="utf-8").splitlines(keepends=True)
    return head + "".join(lines[int(first or 1) - 1 : int(last) if last else None]) + "```"


def _features(match: re.Match[str]) -> str:
    """The two storeys as a drawing, and a table of the features."""
    named = [" → ".join(filter(None, (name, ", ".join(each.needs)))) for name, each in features().items()]
    upper = textwrap.wrap("    ".join(named), 100, break_on_hyphens=False)
    packages = sorted(file.parent.name for file in (ROOT / "rl4dialog").glob("*/__init__.py"))
    lower = [f"{name}/" for name in packages if name != "features"]
    rule = "─" * 110
    drawn = [
        "features/   " + "\n            ".join(upper),
        rule,
        "core        " + "\n            ".join(textwrap.wrap("   ".join(lower), 96)),
    ]
    rows = ["| feature | what it adds | commands | kinds of runs | page |", "|---|---|---|---|---|"]
    for name, each in features().items():
        commands = ", ".join(f"`{command}`" for group in each.command_texts.values() for command in group)
        kinds = ", ".join(f"`{kind}`" for kind in each.ids.get("kind of run", {}))
        page = f"[{each.pages[0].removesuffix('.md')}]({each.pages[0]})" if each.pages else ""
        rows.append(f"| `{name}` | {each.about} | {commands} | {kinds} | {page} |")
    return "\n".join([match[1], "```text", *drawn, "```", "", *rows, "", ""])


def _reference(match: re.Match[str]) -> str:
    file, names = _file_of(match[2])
    source = file.read_text(encoding="utf-8")
    node: ast.Module | ast.stmt = ast.parse(source)
    for name in names:
        assert isinstance(node, ast.Module | ast.ClassDef)
        (node,) = [each for each in node.body if getattr(each, "name", None) == name]
    lines = _Reference(source).lines(node, match[2].rpartition(".")[2])
    return match[1] + "\n" + "\n".join(lines).strip() + "\n\n"


def _file_of(dotted: str) -> tuple[Path, list[str]]:
    """The file of a module, and the names inside it."""
    parts = dotted.split(".")
    for n in range(len(parts), 0, -1):
        module = ROOT.joinpath(*parts[:n])
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if file.is_file():
                return file, parts[n:]
    raise FileNotFoundError(f"{dotted}: no such module")


class _Reference:
    """Markdown of what is documented in a file."""

    def __init__(self, source: str) -> None:
        self.source = source

    def lines(self, node: ast.AST, name: str, level: int = 2) -> Iterator[str]:
        """A heading, the signature, the docstring, and public members that have a docstring."""
        assert isinstance(node, _Documented)
        yield f"{'#' * level} `{name}`\n"
        if signature := self._signature(node, name):
            yield f"```python\n{signature}\n```\n"
        bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
        if bases := [base for base in bases if base.partition("[")[0] not in ("ABC", "Protocol", "NamedTuple")]:
            yield f"Subclass of {', '.join(f'`{base}`' for base in bases)}.\n"
        attributes = self._attributes(node) if isinstance(node, ast.ClassDef) else {}
        yield from _docstring(ast.get_docstring(node) or "", attributes)
        if not isinstance(node, _Function):
            for member in node.body:
                if isinstance(member, ast.ClassDef | _Function) and _is_shown(member):
                    yield from self.lines(member, member.name, level + 1)

    def _signature(self, node: _Documented, name: str) -> str:
        if isinstance(node, _Function):
            returned = f" -> {self._text(node.returns)}" if node.returns else ""
            return _call(name, list(self._arguments(node)), returned)
        if isinstance(node, ast.Module):
            return ""
        if _is_record(node):
            return _call(name, [self._text(each) for each in node.body if isinstance(each, ast.AnnAssign)])
        made = {each.name: each for each in node.body if isinstance(each, _Function)}
        method = made.get("__init__") or made.get("__new__")
        return _call(name, list(self._arguments(method))) if method else ""

    def _arguments(self, function: _Function) -> Iterator[str]:
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
        for argument, default in zip(positional, defaults, strict=True):
            if argument.arg not in ("self", "cls"):
                yield self._argument(argument, default)
        if arguments.vararg:
            yield f"*{self._argument(arguments.vararg, None)}"
        elif arguments.kwonlyargs:
            yield "*"
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            yield self._argument(argument, default)
        if arguments.kwarg:
            yield f"**{self._argument(arguments.kwarg, None)}"

    def _argument(self, argument: ast.arg, default: ast.expr | None) -> str:
        typed = f"{argument.arg}: {self._text(argument.annotation)}" if argument.annotation else argument.arg
        return f"{typed} = {self._text(default)}" if default else typed

    def _attributes(self, node: ast.ClassDef) -> dict[str, str]:
        """Meaning of properties, and of fields with a docstring or a comment, by name or declaration."""
        found = {}
        for each, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(each, ast.AnnAssign | ast.Assign):
                target = each.target if isinstance(each, ast.AnnAssign) else each.targets[0]
                text = (
                    after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
                )
                if not ast.unparse(target).startswith("_"):
                    declared = target if _is_record(node) else each
                    found[self._text(declared)] = inspect.cleandoc(str(text)) or self._comment(each)
            elif isinstance(each, _Function) and _is_property(each) and _is_public(each):
                found[f"{each.name}: {self._text(each.returns)}"] = ast.get_docstring(each) or ""
        return {declared: meaning for declared, meaning in found.items() if meaning}

    def _comment(self, node: ast.stmt) -> str:
        line = self.source.splitlines()[(node.end_lineno or 1) - 1].encode()[node.end_col_offset or 0 :].decode()
        text = line.strip().removeprefix("# ")
        return f"{text[:1].upper()}{text[1:]}." if text and not text.startswith("noqa") else ""

    def _text(self, node: ast.AST | None) -> str:
        """Source of a node on one line."""
        text = ast.get_source_segment(self.source, node) if node else None
        return re.sub(r"([\[(]) | (?=[\])])", r"\1", " ".join((text or "").split())).replace(",]", "]")


def _call(name: str, arguments: list[str], returned: str = "") -> str:
    line = f"{name}({', '.join(arguments)}){returned}"
    if len(line) <= 88:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in arguments), f"){returned}"])


def _docstring(text: str, attributes: dict[str, str]) -> Iterator[str]:
    """Its text as Markdown, and its sections as lists."""
    if body := explanation(SimpleNamespace(__doc__=text)):
        yield body + "\n"
    sections = {title: inspect.cleandoc("\n" + content) for title, content in _SECTION.findall(text)}
    listed = {title: _entries(content) for title, content in sections.items() if title in _TITLES}
    listed["Attributes"] = listed.get("Attributes", {}) | attributes
    for title, label in _TITLES.items():
        if entries := listed.get(title):
            yield f"{label}:\n"
            yield from (f"- `{name}`: {as_markdown(' '.join(meaning.split()))}" for name, meaning in entries.items())
            yield ""
    for title in ("Returns", "Yields"):
        if title in sections:
            yield f"{title}: {as_markdown(sections[title])}\n"


def _entries(content: str) -> dict[str, str]:
    _, *parts = _ENTRY.split("\n" + "\n".join(f"    {line}" for line in content.splitlines()))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _is_record(node: ast.ClassDef) -> bool:
    marks = " ".join(map(ast.unparse, [*node.decorator_list, *node.bases]))
    return "dataclass" in marks or "NamedTuple" in marks


def _is_property(node: ast.ClassDef | _Function) -> bool:
    return any("property" in ast.unparse(each) for each in node.decorator_list)


def _is_public(node: ast.ClassDef | _Function) -> bool:
    return not node.name.startswith("_") or node.name == "__call__"


def _is_shown(node: ast.ClassDef | _Function) -> bool:
    return _is_public(node) and bool(ast.get_docstring(node)) and not _is_property(node)
