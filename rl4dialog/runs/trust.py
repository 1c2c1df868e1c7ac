"""Checks a run folder of unknown origin for code that its config would execute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError

# Component arguments that name a program or script to execute.
_PROGRAMS = {"hf_evaluate": ("name",), "spice": ("java", "spice_path"), "spider": ("java", "spice_path")}


def refuse_code(config: Mapping[str, Any], run: Path) -> None:
    """Refuse a run's config that would execute custom code.

    Raises:
        ConfigError: If it does; the message lists the code.
    """
    named = [f"imports: {name}" for name in config.get("imports") or ()] + list(_programs(config))
    module, is_imported, _ = str((config.get("env") or {}).get("id")).rpartition(":")
    if is_imported:  # gymnasium's form for an environment that its module registers
        named.append(f"env.id: {module}")
    if named:
        raise ConfigError(
            f"the config of the run {run} would execute code on this machine ({', '.join(named)}). Review it and pass "
            f"--trust (trust=True in Python) if you trust it, or override it with --set"
        )


def _programs(node: Any) -> Iterator[str]:
    """Programs named by components anywhere in a config."""
    if isinstance(node, Mapping):
        args = node.get("args")
        for name in _PROGRAMS.get(str(node.get("id")), ()):
            if isinstance(args, Mapping) and args.get(name) is not None:
                yield f"{node['id']}.{name}: {args[name]}"
    for inner in node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ():
        yield from _programs(inner)
