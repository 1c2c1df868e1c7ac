"""Options shared by all commands that read a config file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl4dialog.core.config import RunConfig


def add_config_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the config file and its overrides."""
    parser.add_argument("--config_path", required=required, help="YAML config file of the run")
    add_overrides(parser)
    parser.add_argument("--variant", type=int, default=0, help="index of a combination of the config's 'expand' blocks")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add ``--set``, stored as ``overrides``."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a config key, such as alg.args.n_epochs=3; can be repeated",
    )


def read_config(args: argparse.Namespace) -> RunConfig:
    """Load the config and its imports, and check all components.

    Raises:
        ConfigError: If the config or one of its imports is invalid.
    """
    from rl4dialog.core.config import load_config

    config = load_config(args.config_path, args.overrides, args.variant)

    from rl4dialog.training.building.components import import_and_check

    import_and_check(config, args.config_path)
    return config
