"""``rl4dialog prepare``: fill the cache for a run in advance."""

from __future__ import annotations

import argparse

from rl4dialog.commands.configs import add_config_arguments, read_config

HELP = "build and cache the warm start and the intent classifier of a config"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.config import TextConfig
    from rl4dialog.training.building.language_model import fill_cache

    config = read_config(args)
    if isinstance(config, TextConfig):
        fill_cache(config)
    else:
        print("nothing to prepare: this run has no language model")
    return 0
