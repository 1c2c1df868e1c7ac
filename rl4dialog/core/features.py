"""What a feature or an installed plugin adds to the core, and how it is found.

The toolkit's features are the packages in ``rl4dialog/features/``, each with a ``FEATURE``. An installed plugin names
its own under the entry-point group ``rl4dialog.plugins``, as ``my_package:FEATURE``. If it names a module alone, it is
imported when a config is read, and registers what it has. Finding a feature should import nothing that is heavy.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from rl4dialog.core.yaml_loader import packaged_yaml

_logger = logging.getLogger(__name__)
_OURS = "rl4dialog.features"
ENTRY_POINT_GROUP = "rl4dialog.plugins"
_ATTRIBUTE = "FEATURE"
"""Name of a feature in its package; other plugins are imported when a config is read."""


@dataclass(frozen=True)
class Feature:
    """What is added to the core. Objects are named as ``"module:Name"``, and imported on first use.

    Args:
        about: What it is, as a phrase.
        ids: Components by kind and id, as in ``catalog.yaml``.
        needs: Names of the features that it imports.
        commands: Module of its commands, whose texts are in a file of the same name with ``.yaml``.
        callbacks: What makes a :class:`~rl4dialog.training.callbacks.base.FeatureCallback` for every run that trains a
            policy, called with its trainee and its run folder.
        moved: New names of its modules, by earlier ones that can still be imported.
        configs: Its folders and files in ``task_configs/``.
        recommended: Of its configs, those to start from, by what for.
        page: Its page in ``docs/``, or several, the first of which has its components.
    """

    about: str
    ids: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needs: Sequence[str] = ()
    commands: str | None = None
    callbacks: Sequence[str] = ()
    moved: Mapping[str, str] = field(default_factory=dict)
    configs: Sequence[str] = ()
    recommended: Mapping[str, str] = field(default_factory=dict)
    page: str | Sequence[str] = ()

    @property
    def pages(self) -> list[str]:
        """Its pages in ``docs/``."""
        return [self.page] if isinstance(self.page, str) else [*self.page]

    @property
    def command_texts(self) -> dict[str, dict[str, Any]]:
        """Texts of its commands, by group and name."""
        spec = importlib.util.find_spec(self.commands) if self.commands else None
        return packaged_yaml(Path(spec.origin).with_suffix(".yaml")) if spec and spec.origin else {}


@functools.cache
def features() -> dict[str, Feature]:
    """Features of the toolkit and those of installed plugins, by name; one that cannot be loaded is only a warning."""
    paths = importlib.import_module(_OURS).__path__
    names = sorted(each.name for each in pkgutil.iter_modules(paths))
    ours = {name: getattr(importlib.import_module(f"{_OURS}.{name}"), _ATTRIBUTE) for name in names}
    return {**ours, **dict(loaded_plugins(are_features=True))}


def loaded_plugins(are_features: bool) -> Iterator[tuple[str, Any]]:
    """Names and objects of installed plugins that are features, or of the others, which are imported by this.

    A failure is only a warning, because the run may not need the plugin.
    """
    for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            if (entry_point.attr == _ATTRIBUTE) == are_features:
                yield entry_point.name, entry_point.load()
        except Exception as error:
            _logger.warning("plugin %s could not be loaded: %s: %s", entry_point.name, type(error).__name__, error)


def merged(*tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """One table of tables with two levels, such as components by kind and id; the last one wins."""
    found: dict[str, dict[str, Any]] = {}
    for table in tables:
        for name, rows in table.items():
            found.setdefault(name, {}).update(rows)
    return found


@functools.cache
def all_ids() -> dict[str, dict[str, Any]]:
    """The core's components and those of the features, by kind and id."""
    of_core = packaged_yaml(Path(__file__).parents[1] / "catalog.yaml")
    return merged(of_core, *(each.ids for each in features().values()))


class _Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules of features by their earlier names: the same module, which is not executed again."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_ours = name.startswith("rl4dialog.") and not name.startswith(_OURS)
        moved = [old for feature in features().values() for old in feature.moved] if is_ours else []
        if name not in moved and any(old.startswith(f"{name}.") for old in moved):
            return importlib.machinery.ModuleSpec(name, None, is_package=True)  # nothing else is left of it
        return importlib.machinery.ModuleSpec(name, self) if name in moved else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        (new,) = {feature.moved[spec.name] for feature in features().values() if spec.name in feature.moved}
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = module.__spec__.loader_state if module.__spec__ else None


def find_moved() -> None:
    """Let modules be imported by earlier names, after all other finders."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
