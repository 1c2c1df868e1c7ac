"""Commands that show or compute results: ``runs``, ``report``, ``evaluate``, ``generate`` and ``simulate``."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.options import (
    SPLITS,
    add_model_arguments,
    add_policy,
    add_sampling,
    check_at_least,
    load_chosen,
    load_turn_level,
    model_name,
)
from rl4dialog.core.errors import ConfigError


class Runs:
    """``rl4dialog runs``."""

    HELP = "list the runs in a folder with their state and results"
    PAGE = "docs/runs.md"
    EXAMPLES = ("rl4dialog runs", "rl4dialog runs runs/my_project")

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="folder to search (default: this one)")
        parser.add_argument(
            "--metrics",
            nargs="+",
            default=[],
            metavar="KEY",
            help="metrics to show (default: the first ones of each run)",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.runs.listing import list_runs, print_runs

        print_runs(list_runs(args.folder.expanduser()), args.metrics)
        return 0


class Report:
    """``rl4dialog report``."""

    HELP = "write the report of a run, or a comparison of several, as one HTML file"
    PAGE = "docs/runs.md"
    EXAMPLES = (
        "rl4dialog report runs/my_project/my_run",
        "rl4dialog report runs/my_project/my_run runs/my_project/other_run --output comparison.html",
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("runs", nargs="+", metavar="RUN", help="run folder; several are compared with each other")
        parser.add_argument(
            "--output",
            metavar="FILE",
            help="output file (default: report.html in the run folder; for several runs, comparison.html)",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.runs.report.comparison import write_comparison
        from rl4dialog.runs.report.pages import write_report

        if len(args.runs) == 1:
            print(write_report(args.runs[0], args.output))
        else:
            print(write_comparison(args.runs, args.output or "comparison.html"))
        return 0


class Evaluate:
    """``rl4dialog evaluate``."""

    HELP = "evaluate a run's model, or any model, without training"
    PAGE = "docs/after_a_run.md"
    EXAMPLES = (
        "rl4dialog evaluate --run runs/my_project/my_run --split test",
        "rl4dialog evaluate --run runs/my_project/my_run --set env.args.partner.args.error_rate=0",
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_model_arguments(parser)
        add_policy(parser)
        parser.add_argument("--split", default="test", choices=SPLITS, help="dataset split to evaluate (default: test)")
        parser.add_argument(
            "--output_path",
            help="new output folder (default: in evaluations/ of the run folder or the current folder)",
        )
        parser.add_argument(
            "--by_turn",
            action="store_true",
            help="conversations: also compute the metrics of the first, second, ... replies",
        )

    @staticmethod
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
            from rl4dialog.inference.turn_level_agent import evaluate_agent

            if args.by_turn:
                raise ConfigError("--by_turn compares replies of language models; this run has none")
            evaluate_agent(agent, args.split, folder, {**about, "policy": agent.name})
        return 0


class Generate:
    """``rl4dialog generate``."""

    HELP = "generate a reply to each prompt of a file"
    PAGE = "docs/after_a_run.md"
    EXAMPLES = ("rl4dialog generate --run runs/my_project/my_run --input prompts.jsonl --output replies.jsonl",)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_model_arguments(parser)
        parser.add_argument(
            "--input",
            type=Path,
            required=True,
            help=".txt file with one prompt per line, or .jsonl file with prompt, messages or history",
        )
        _add_output(parser)
        parser.add_argument("--batch_size", type=int, help="prompts per batch (default: as in evaluations)")
        add_sampling(parser, "top_p=0.9")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.inference.batch_generation import reply_to_file

        check_at_least(args, batch_size=1)
        n_written = reply_to_file(load_chosen(args), args.input, args.output, args.sampling, args.batch_size)
        return _say_written(n_written, "replies", args.output, "another model")


class Simulate:
    """``rl4dialog simulate``."""

    HELP = "write conversations of a trained model, or a rule policy, with its partner to a file"
    PAGE = "docs/conversations.md"
    EXAMPLES = (
        "rl4dialog simulate --run runs/my_project/my_run --n 100 --output conversations.jsonl",
        "rl4dialog simulate --config_path config.yml --policy rule --n 100 --output conversations.jsonl",
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_model_arguments(parser)
        add_policy(parser)
        parser.add_argument("--n", type=int, default=200, help="number of conversations (default: 200)")
        _add_output(parser)
        parser.add_argument(
            "--split", default="test", choices=SPLITS, help="dataset split to talk about (default: test)"
        )
        parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
        parser.add_argument("--player", help="scripted player of the datapool, instead of the model")
        add_sampling(parser, "do_sample=true")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.inference.simulation import Simulation, simulate_to_file

        check_at_least(args, n=1)
        if args.output.suffix != ".jsonl":
            raise ConfigError(f"--output must be a .jsonl file, not {args.output}")
        if args.player is not None and args.sampling:
            raise ConfigError("--generation_kwargs has no meaning with --player, which does not sample from a model")
        if (acting := load_turn_level(args)) is not None:
            from rl4dialog.inference.turn_level_agent import simulate_agent

            if args.player is not None or args.sampling:
                raise ConfigError("--player and --generation_kwargs are for runs on text; use --policy, or --set")
            n_written = simulate_agent(acting, args.split, args.n, args.seed, args.output)
        else:
            loaded = load_chosen(args)
            agent = args.player or model_name(args)
            simulation = Simulation(loaded, args.split, args.n, args.seed, agent, args.player, args.sampling)
            n_written = simulate_to_file(simulation, args.output)
        return _say_written(n_written, "conversations", args.output, "other conversations")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, required=True, help="output .jsonl file; an incomplete one is continued")


def _say_written(n_written: int, what: str, output: Path, other: str) -> int:
    if n_written:
        print(f"{n_written} {what} written to {output}")
    else:
        print(f"{output} is already complete; choose another --output for {other}")
    return 0
