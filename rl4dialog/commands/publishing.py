"""Commands that publish a model: ``export`` and ``push_to_hub``."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.options import add_checkpoint, add_run_argument, add_trust
from rl4dialog.core.pretrained import DTYPES


class Export:
    """``rl4dialog export``."""

    HELP = "write a run's model as a GGUF file, for llama.cpp and programs based on it"
    PAGE = "docs/exporting.md"
    EXAMPLES = (
        "rl4dialog export --run runs/my_project/my_run --output model.gguf",
        "rl4dialog export --run runs/my_project/my_run --output small.gguf --dtype q8_0",
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser)
        parser.add_argument("--output", type=Path, required=True, help="output .gguf file")
        parser.add_argument(
            "--dtype", choices=DTYPES, help="number format of the weights (default: that of the saved model)"
        )
        add_checkpoint(parser)
        parser.add_argument(
            "--prior_only",
            action="store_true",
            help="export the language model of a guided policy, without the values that guide it",
        )
        add_trust(parser)
        parser.add_argument("--overwrite", action="store_true", help="replace an existing output file")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.inference.gguf.export import export_gguf

        export_gguf(
            Path(args.run_path),
            args.output,
            args.dtype,
            args.checkpoint,
            prior_only=args.prior_only,
            overwrite=args.overwrite,
            trust=args.trust,
        )
        return 0


class PushToHub:
    """``rl4dialog push_to_hub``."""

    HELP = "publish a run's model on the Hugging Face Hub, with a model card"
    PAGE = "docs/after_a_run.md"
    EXAMPLES = ("rl4dialog push_to_hub --run runs/my_project/my_run --repo_id me/my_model --private",)

    @staticmethod
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
        parser.add_argument(
            "--dry_run", action="store_true", help="write the card and list the files, without uploading"
        )

    @staticmethod
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
