"""Commands that let a model learn from people: ``select``, ``improve``, ``export-feedback`` and ``excerpts``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from rl4dialog.commands.options import (
    SPLITS,
    add_model_arguments,
    add_run_argument,
    add_set,
    add_trust,
    check_at_least,
    load_chosen,
    model_name,
)

_PLURALS = {"pair": "pairs", "reply": "replies", "conversation": "conversations"}


class Select:
    """``rl4dialog select``."""

    HELP = "select replies or conversations for people to judge, at random or by reward models"
    PAGE = "docs/feedback.md"
    EXAMPLES = (
        "rl4dialog select --run runs/my_project/my_run --n 100 --output queue.jsonl",
        "rl4dialog select --run runs/my_project/my_run --unit reply --output queue.jsonl",
        "rl4dialog select --run runs/my_project/my_run --unit conversation --output queue.jsonl",
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_model_arguments(parser)
        parser.add_argument(
            "--output", type=Path, required=True, help="output .jsonl file; an existing one is replaced"
        )
        parser.add_argument("--split", default="train", choices=SPLITS, help="split of the samples (default: train)")
        parser.add_argument("--n", type=int, default=50, help="number of pairs, replies or conversations (default: 50)")
        parser.add_argument(
            "--unit",
            default="pair",
            choices=tuple(_PLURALS),
            help="what people judge: pairs of replies to choose from, single replies to rate, or whole conversations "
            "with the run's partner to rate (default: pair)",
        )
        parser.add_argument(
            "--n_prompts",
            type=int,
            help="number of samples to choose from (default: 4 * n; n for random single replies and conversations)",
        )
        parser.add_argument(
            "--n_replies",
            type=int,
            help="replies to each prompt, or conversations about each sample (default: 2 for pairs, otherwise 1)",
        )
        parser.add_argument(
            "--strategy",
            default="random",
            choices=("random", "uncertain", "disagreement", "gap"),
            help="random (default), or by reward models: the closest pairs, those they disagree about, the clearest "
            "ones",
        )
        parser.add_argument(
            "--reward_model", nargs="+", default=[], metavar="RUN", help="folders of runs with alg.id: reward_model"
        )
        parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.core.feedback import write_queue
        from rl4dialog.inference.queue_selection import check_strategy, generate_candidates, select, size_of
        from rl4dialog.scores.reward_models import load_reward_model

        fewest = size_of(args.unit)
        check_at_least(args, n=1, n_prompts=1, n_replies=fewest)
        check_strategy(args.strategy, args.reward_model, args.unit)
        judged: Literal["reply", "dialogue"] = "dialogue" if args.unit == "conversation" else "reply"
        models = [load_reward_model(name, judged, 64, "rl4dialog select") for name in args.reward_model]
        n_enough = args.n if args.strategy == "random" and fewest == 1 else 4 * args.n
        loaded, n_prompts = load_chosen(args), args.n_prompts or n_enough
        candidates, n_unusable = generate_candidates(
            loaded, args.split, n_prompts, args.n_replies or fewest, args.seed, args.unit
        )
        queue = select(candidates, args.n, model_name(args), args.strategy, models, args.seed, args.unit)
        write_queue(args.output, queue)
        why = "conversations failed" if args.unit == "conversation" else "prompts had equal replies only"
        notes = f"; {n_unusable} {why}" if n_unusable else ""
        fewer = f", fewer than the {args.n} requested" if len(queue) < args.n else ""
        print(f"{len(queue)} of {len(candidates)} {_PLURALS[args.unit]} written to {args.output}{fewer}{notes}")
        return 0


class Improve:
    """``rl4dialog improve``."""

    HELP = "improve a run's model by feedback: reward model, corrections, PPO, and a comparison in one report"
    PAGE = "docs/feedback.md"
    EXAMPLES = (
        "rl4dialog improve --run runs/my_project/my_run --feedback feedback.jsonl --dry_run",
        "rl4dialog improve --run runs/my_project/my_run --feedback feedback.jsonl",
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_run_argument(parser)
        parser.add_argument(
            "--feedback",
            type=Path,
            help="feedback file of rl4dialog chat or rl4dialog ui (default: feedback.jsonl in the run folder)",
        )
        parser.add_argument(
            "--output",
            type=Path,
            help="folder of the stages (default: the run folder's name with _improved); an existing one is continued",
        )
        parser.add_argument(
            "--force", action="store_true", help="run PPO even with few votes, or a reward model no better than a coin"
        )
        parser.add_argument("--dry_run", action="store_true", help="check everything, print the plan, and stop")
        meaning = "override a key of a stage's config, such as policy.train_evaluation.n_iters=10"
        add_set(parser, "STAGE.KEY=VALUE", meaning)
        add_trust(parser)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.core.config import text_config
        from rl4dialog.experiments.improvement.running import improve, make_plan, plan_text
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


class ExportFeedback:
    """``rl4dialog export-feedback``."""

    HELP = "write the preferences and corrections of a feedback file as preference data for TRL's DPO trainer"
    PAGE = "docs/feedback.md"
    EXAMPLES = ("rl4dialog export-feedback --feedback feedback.jsonl --output preferences.jsonl",)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--feedback", type=Path, required=True, help="feedback file of rl4dialog chat or rl4dialog ui"
        )
        parser.add_argument(
            "--output", type=Path, required=True, help="output .jsonl file; an existing one is replaced"
        )

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.data.exports import export_preferences

        n_pairs, n_without = export_preferences(args.feedback, args.output)
        left_out = f"; {n_without} judgements make no pair (ratings, or equal replies)" if n_without else ""
        print(f"{n_pairs} pairs written to {args.output}{left_out}")
        return 0


class Excerpts:
    """``rl4dialog excerpts``."""

    HELP = "write excerpts of rated conversations to files for a reward model, a held-out reward model, and prompts"
    PAGE = "docs/optimizing_ratings.md"
    EXAMPLES = ("rl4dialog excerpts --ratings dstc9 --output_dir excerpts",)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--ratings", required=True, help="prepared dataset (chitchat, dstc9) or ratings file")
        parser.add_argument("--n_utterances", type=int, default=9, help="utterances of an excerpt (default: 9)")
        parser.add_argument(
            "--default_rating",
            type=float,
            help="dialogues whose ratings all have this value count as not rated, and are only used for prompts",
        )
        parser.add_argument("--output_dir", required=True, help="output folder")
        parser.add_argument("--seed", type=int, default=0, help="random seed of the split (default: 0)")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.data.exports import write_excerpts
        from rl4dialog.data.ratings import load_ratings

        check_at_least(args, n_utterances=2)
        _, rated = load_ratings(args.ratings, "dialogue")
        counts = write_excerpts(rated, Path(args.output_dir), args.n_utterances, args.default_rating, args.seed)
        for name, count in counts.items():
            print(f"{args.output_dir}/{name}.jsonl: {count} excerpts")
        return 0
