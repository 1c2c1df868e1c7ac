"""``rl4dialog improve``: let a model learn from feedback, and compare it with the model before."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_run_argument, add_trust

HELP = "improve a run's model by feedback: reward model, corrections, PPO, and a comparison in one report"
PAGE = "docs/feedback.md"
EXAMPLES = (
    "rl4dialog improve --run runs/my_project/my_run --feedback feedback.jsonl --dry_run",
    "rl4dialog improve --run runs/my_project/my_run --feedback feedback.jsonl",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument(
        "--feedback",
        type=Path,
        default=None,
        help="feedback file of rl4dialog chat or rl4dialog ui (default: feedback.jsonl in the run folder)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=None,
        help="folder of the stages (default: the run folder's name with _improved); an existing one is continued",
    )
    parser.add_argument(
        "--force", action="store_true", help="run PPO even with few votes, or a reward model no better than a coin"
    )
    parser.add_argument("--dry_run", action="store_true", help="check everything, print the plan, and stop")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="STAGE.KEY=VALUE",
        dest="overrides",
        help="override a key of a stage's config, such as policy.train_evaluation.n_iters=10",
    )
    add_trust(parser)


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.config import text_config
    from rl4dialog.experiments.improvement.plan import make_plan, plan_text
    from rl4dialog.experiments.improvement.running import improve
    from rl4dialog.inference.model_comparison import compare_models
    from rl4dialog.inference.saved_run import read_run_config

    folder = Path(args.run_path).expanduser().absolute()
    feedback = (args.feedback or folder / "feedback.jsonl").expanduser()
    output = (args.output or folder.with_name(f"{folder.name}_improved")).expanduser()
    config = text_config(read_run_config(folder, trust=args.trust, trains=True))
    plan = make_plan(folder, config, feedback, output, args.force, args.overrides)
    print(plan_text(plan), flush=True)
    if not args.dry_run:
        print(f"\nReport: {improve(plan, compare_models)}")
    return 0
