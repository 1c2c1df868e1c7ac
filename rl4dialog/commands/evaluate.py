"""``rl4dialog evaluate``: compute the metrics of a trained model, without training."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_model_arguments, load_chosen

HELP = "evaluate a run's model, or any model, without training"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--split", default="test", choices=("train", "val", "test"), help="dataset split to evaluate (default: test)"
    )
    parser.add_argument(
        "--output_path",
        default=None,
        help="new output folder (default: in evaluations/ of the run folder or the current folder)",
    )
    parser.add_argument(
        "--by_turn",
        action="store_true",
        help="conversations: also compute the metrics of the first, second, ... replies",
    )


def run(args: argparse.Namespace) -> int:
    from rl4dialog.inference.offline_evaluation import evaluate_split, evaluation_folder

    loaded = load_chosen(args)
    parent = Path(args.run_path) if args.run_path else Path.cwd()
    folder = Path(args.output_path or evaluation_folder(parent / "evaluations", args.split, args.checkpoint))
    about = {"run": args.run_path, "checkpoint": args.checkpoint, "model": args.model}
    evaluate_split(loaded, args.split, folder.expanduser().absolute(), about, args.by_turn)
    return 0
