"""``rl4dialog list``: list the components available to configs."""

from __future__ import annotations

import itertools
import textwrap
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from rl4dialog import catalog
from rl4dialog.commands.options import command, option
from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.features import features
from rl4dialog.core.registry import Registry
from rl4dialog.core.yaml_loader import shipped_path

_WIDTH = 100
REGISTRIES = {each.listed: each for each in vars(catalog).values() if isinstance(each, Registry) and each.ids()}
_CONFIGS = "configs"
RECOMMENDED = {
    "small_talk/gpt2_ppo.yml": "one reply to each prompt; a tiny model, no network",
    "table_booking/smollm2_ppo.yml": "a chat model with LoRA, on a GPU or two CPU cores",
    "guess_what/llama_ppo.yml": "conversations with a partner, and a critic",
    **{name: purpose for feature in features().values() for name, purpose in feature.recommended.items()},
}
"""Shipped configs to start from, by what for."""


@command(
    option(
        "name",
        f"kind to list: {', '.join([_CONFIGS, *REGISTRIES])}; or an id to explain, such as ppo (default: the kinds)",
        nargs="?",
        metavar="KIND_OR_ID",
    ),
    option("--imports", "modules or files that register custom components", nargs="*", default=[]),
    name="list",
)
def list_components(args: Namespace) -> None:
    from rl4dialog.core.plugins import load_entry_points, load_imports

    load_entry_points()
    load_imports(args.imports, Path.cwd())
    if args.name == _CONFIGS:
        _print_configs(_shipped_configs())
        return
    if args.name is not None and args.name not in REGISTRIES:
        _explain(args.name)
        return
    if args.name is None:
        found = {_CONFIGS: [f"{path.parent.name}/{path.name}" for path in _shipped_configs()]}
        found |= {kind: registry.ids() for kind, registry in REGISTRIES.items()}
        for kind, ids in found.items():
            examples = ", ".join([*(RECOMMENDED if kind == _CONFIGS else ids)][:3])
            print(f"{kind:<23}{len(ids):>4}  {examples}{', ...' if len(ids) > 3 else ''}")
        print("\nrl4dialog list KIND lists one kind, such as rewards; rl4dialog list ID explains one, such as ppo")
        return
    registry = REGISTRIES[args.name]
    print(f"{args.name}:")
    width = max(map(len, registry.ids()), default=0)
    for id in registry.ids():
        summary, arguments = registry.describe(id)
        print(f"  {id:<{width}}  {summary}")
        indent = " " * (width + 4)
        print(textwrap.fill(f"({arguments})", _WIDTH, initial_indent=indent, subsequent_indent=indent + " "))
    print("\nrl4dialog list ID explains one, such as ppo")


def _shipped_configs() -> list[Path]:
    """Configs and plans that come with the package."""
    folder = shipped_path(Path("task_configs", next(iter(RECOMMENDED)))).parents[1]
    return sorted(path for path in folder.glob("*/*.yml") if path.parent.name != "accelerate")


def _print_configs(paths: Sequence[Path]) -> None:
    print("To start from, as --config_path task_configs/...:")
    for name, purpose in RECOMMENDED.items():
        print(f"  {name:<30}{purpose}")
    print("\nAll, by task:")
    for task, of_task in itertools.groupby(paths, lambda path: path.parent.name):
        names = f"{task}/: {', '.join(path.name for path in of_task)}"
        print(textwrap.fill(names, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False))


def _explain(id: str) -> None:
    found = [registry for registry in REGISTRIES.values() if id in registry]
    if not found:
        known = [_CONFIGS, *REGISTRIES, *(each for registry in REGISTRIES.values() for each in registry.ids())]
        raise ConfigError(f"unknown kind or id {id!r}{nearest_hint(id, known)} (rl4dialog list prints all)")
    for registry in found:
        print(f"{registry.kind} {id}\n")
        for paragraph in registry.explain(id).split("\n\n"):
            print(textwrap.indent(paragraph, "  ") + "\n")
        arguments = registry.arguments(id)
        print("  Arguments:" if arguments else "  No arguments.")
        for text, meaning in arguments.items():
            print(f"    {text}")
            if meaning:
                print(textwrap.fill(meaning, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8))
        print()
