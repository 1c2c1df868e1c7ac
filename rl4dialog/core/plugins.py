"""Loads custom components: modules and files listed under ``imports:``, and installed plugins."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

import cloudpickle

from rl4dialog.core.errors import ConfigError, raised
from rl4dialog.core.features import loaded_plugins

# Packages whose users find the names of this one on a page of docs/coming_from.
_PAGES = {name: name for name in ("convlab2", "convogym", "openrl", "rl4lms")} | {"convlab": "convlab2"}


def load_imports(imports: Iterable[str], base_dir: Path) -> None:
    """Import modules, and files in the config's folder or the working directory, which register components."""
    for name in imports:
        try:
            if name.endswith(".py"):
                _import_file(name, base_dir)
            else:
                importlib.import_module(name)
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            missing = error.name or "" if isinstance(error, ImportError) else ""
            page = _PAGES.get(missing.partition(".")[0])
            instead = f"; docs/coming_from/{page}.md says what to import from rl4dialog instead" if page else ""
            raise ConfigError(f"imports: {name!r} failed with {raised(error)}{instead}") from error


def absolute_import(name: str, base_dir: Path) -> str:
    """Make an entry of ``imports`` absolute if it is an existing file, so that the config can be moved."""
    return str(base_dir / name) if name.endswith(".py") and (base_dir / name).is_file() else name


def load_entry_points() -> None:
    """Import installed plugins that are no features, which then register what they have."""
    dict(loaded_plugins(are_features=False))


def _import_file(name: str, base_dir: Path) -> None:
    candidates = [(base_dir / name).resolve(), Path(name).expanduser().resolve()]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise ConfigError(f"imports: file {name!r} does not exist; tried {' and '.join(map(str, candidates))}")
    module_name = path.stem
    loaded = sys.modules.get(module_name)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return
        raise ConfigError(f"imports: {name!r} would hide the module {module_name!r}; rename the file")
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    if str(path.parent) not in sys.path:  # at the end, so that files beside it hide no installed module
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
        _check_neighbours(path)
    except BaseException:
        del sys.modules[module_name]
        raise
    # Env workers cannot import a file by module name, so its classes are pickled by value.
    cloudpickle.register_pickle_by_value(module)


def _check_neighbours(path: Path) -> None:
    """Check that modules that a file imports are those beside it, where there are files of their names."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported = [node.module]
        for name in (each.partition(".")[0] for each in imported):
            loaded = getattr(sys.modules.get(name), "__file__", None)
            for beside in (path.parent / f"{name}.py", path.parent / name / "__init__.py"):
                if loaded and beside.is_file() and not beside.samefile(loaded):
                    raise ConfigError(f"imports: {path} imports {name!r} from {loaded}, not from {beside}; rename it")
