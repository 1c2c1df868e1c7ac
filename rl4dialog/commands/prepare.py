"""``rl4dialog prepare``: fill the cache of a run in advance."""

from __future__ import annotations

import argparse

from rl4dialog.commands.configs import add_config_arguments, read_config

HELP = "do in advance what a run keeps in the cache: classifier, warm start"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from rl4dialog.training.building.language_model import fill_cache

    fill_cache(read_config(args))
    return 0
