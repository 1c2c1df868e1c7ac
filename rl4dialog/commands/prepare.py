"""``rl4dialog prepare``: fill the cache for a run in advance."""

from __future__ import annotations

import argparse

from rl4dialog.commands.configs import add_config_arguments, read_config

HELP = "build and cache the warm start and the intent classifier of a config"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.config import text_config
    from rl4dialog.training.building.language_model import fill_cache

    fill_cache(text_config(read_config(args)))
    return 0
