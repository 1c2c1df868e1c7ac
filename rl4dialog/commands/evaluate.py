"""``rl4dialog evaluate``: compute the metrics of a trained model, without training."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_model_arguments, add_policy, load_chosen, load_turn_level
from rl4dialog.core.errors import ConfigError

HELP = "evaluate a run's model, or any model, without training"
PAGE = "docs/after_a_run.md"
EXAMPLES = (
    "rl4dialog evaluate --run runs/my_project/my_run --split test",
    "rl4dialog evaluate --run runs/my_project/my_run --set env.args.partner.args.error_rate=0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_policy(parser)
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

    agent = load_turn_level(args)
    loaded = load_chosen(args) if agent is None else None
    parent = Path(args.run_path) if args.run_path else Path.cwd()
    folder = Path(args.output_path or evaluation_folder(parent / "evaluations", args.split, args.checkpoint))
    folder = folder.expanduser().absolute()
    about = {"run": args.run_path, "checkpoint": args.checkpoint, "model": args.model}
    if loaded is not None:
        evaluate_split(loaded, args.split, folder, about, args.by_turn)
    if agent is not None:
        from rl4dialog.inference.turn_level.evaluation import evaluate_agent

        if args.by_turn:
            raise ConfigError("--by_turn compares replies of language models; this run has none")
        evaluate_agent(agent, args.split, folder, {**about, "policy": agent.name})
    return 0
