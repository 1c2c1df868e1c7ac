"""``rl4dialog validate-reward``: compare rewards and metrics with human ratings."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.configs import add_config_arguments, read_config
from rl4dialog.core.errors import ConfigError

HELP = "correlate the reward and the metrics of a config with human ratings"
PAGE = "docs/human_ratings.md"
EXAMPLES = ("rl4dialog validate-reward --config_path config.yml --ratings ratings.jsonl",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument("--ratings", required=True, help="ratings file, or dataset: dstc9, chitchat or small_talk")
    parser.add_argument("--unit", choices=("dialogue", "reply"), help="ratings to read (default: those in the file)")
    parser.add_argument("--rating", nargs="+", default=[], help="names of ratings to compare with (default: all)")
    parser.add_argument(
        "--max_items",
        type=int,
        help="rated dialogues or replies to draw at random, by the seed of the config (default: all)",
    )
    parser.add_argument(
        "--n_resamples", type=int, default=500, help="resamples of the confidence intervals (default: 500)"
    )
    parser.add_argument("--output_path", help="new output folder (default: in validations/ of the current folder)")


def run(args: argparse.Namespace) -> int:
    for name, lowest in (("max_items", 3), ("n_resamples", 0)):
        if (value := getattr(args, name)) is not None and value < lowest:
            raise ConfigError(f"--{name} must be at least {lowest}, not {value}")

    from rl4dialog.core.config import text_config
    from rl4dialog.data.ratings import load_ratings
    from rl4dialog.inference.offline_evaluation import check_is_new, evaluation_folder
    from rl4dialog.inference.reward_validation.output import print_validation, write_validation
    from rl4dialog.inference.reward_validation.validation import drawn, validate

    config = text_config(read_config(args))
    name = Path(args.ratings).stem
    folder = Path(args.output_path or evaluation_folder(Path.cwd() / "validations", name)).expanduser().absolute()
    check_is_new(folder)
    unit, rated = load_ratings(args.ratings, args.unit)
    result = validate(config, drawn(rated, args.max_items, config.seed), args.rating, args.n_resamples)
    write_validation(result, folder, {"config": args.config_path, "ratings": args.ratings, "unit": unit})
    print_validation(result)
    print(f"written to {folder}")
    return 0
