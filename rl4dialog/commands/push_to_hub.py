"""``rl4dialog push_to_hub``: publish a run's model with a model card."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_run_argument, add_trust

HELP = "publish a run's model on the Hugging Face Hub, with a model card"
PAGE = "docs/after_a_run.md"
EXAMPLES = ("rl4dialog push_to_hub --run runs/my_project/my_run --repo_id me/my_model --private",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("--repo_id", required=True, help="repository on the hub, as user/name")
    parser.add_argument("--private", action="store_true", help="make the repository private if it is new")
    parser.add_argument(
        "--prior_only",
        action="store_true",
        help="publish the language model of a guided policy, without the values that guide it",
    )
    add_trust(parser)
    parser.add_argument("--dry_run", action="store_true", help="write the card and list the files, without uploading")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.inference.publishing import push_to_hub

    push_to_hub(
        Path(args.run_path),
        args.repo_id,
        args.private,
        args.dry_run,
        prior_only=args.prior_only,
        trust=args.trust,
    )
    return 0
