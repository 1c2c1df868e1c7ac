"""What a run folder, which may be somebody else's, would have this machine run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError

# Arguments of components that name a program, or a script that is run as one.
_PROGRAMS = {"hf_evaluate": ("name",), "spice": ("java", "spice_path"), "spider": ("java", "spice_path")}


def refuse_code(config: Mapping[str, Any], run: Path) -> None:
    """Refuse a run's config that names code, which could do anything.

    Raises:
        ConfigError: If it does; the message lists what it names.
    """
    named = [f"imports: {name}" for name in config.get("imports") or ()] + list(_programs(config))
    if named:
        raise ConfigError(
            f"the config of the run {run} names code that would be run on this machine ({', '.join(named)}). Read it, "
            f"and give --trust (trust=True in Python) if you trust it; or go without it by --set"
        )


def _programs(node: Any) -> Iterator[str]:
    """What components anywhere in a config name as a program."""
    if isinstance(node, Mapping):
        args = node.get("args")
        for name in _PROGRAMS.get(str(node.get("id")), ()):
            if isinstance(args, Mapping) and args.get(name) is not None:
                yield f"{node['id']}.{name}: {args[name]}"
    for inner in node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ():
        yield from _programs(inner)
