"""Commands that show or compute results: ``runs``, ``report``, ``evaluate``, ``generate`` and ``simulate``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from rl4dialog.commands.options import (
    MODEL,
    POLICY,
    SEED,
    check_at_least,
    command,
    flag,
    load_agent,
    load_model,
    model_name,
    option,
    output_option,
    sampling_option,
    split_option,
)
from rl4dialog.core.errors import ConfigError

_OUTPUT = output_option("output .jsonl file; an incomplete one is continued")


@command(
    "runs",
    "list the runs in a folder with their state and results",
    "docs/runs.md",
    "rl4dialog runs",
    "rl4dialog runs runs/my_project",
    options=[
        option("folder", "folder to search", nargs="?", type=Path, default=Path()),
        option("--metrics", "metrics to show (default: the first ones)", nargs="+", default=[], metavar="KEY"),
    ],
)
def runs(args: Namespace) -> None:
    from rl4dialog.runs.listing import list_runs, print_runs

    print_runs(list_runs(args.folder.expanduser()), args.metrics)


@command(
    "report",
    "write the report of a run, or a comparison of several, as one HTML file",
    "docs/runs.md",
    "rl4dialog report runs/my_project/my_run",
    "rl4dialog report runs/my_project/my_run runs/my_project/other_run --output comparison.html",
    options=[
        option("runs", "run folder; several are compared with each other", nargs="+", metavar="RUN"),
        option("--output", "output file (default: report.html in the run folder, or comparison.html)", metavar="FILE"),
    ],
)
def report(args: Namespace) -> None:
    from rl4dialog.runs.report.comparison import write_comparison
    from rl4dialog.runs.report.pages import write_report

    if len(args.runs) == 1:
        print(write_report(args.runs[0], args.output))
    else:
        print(write_comparison(args.runs, args.output or "comparison.html"))


@command(
    "evaluate",
    "evaluate a run's model, or any model, without training",
    "docs/after_a_run.md",
    "rl4dialog evaluate --run runs/my_project/my_run --split test",
    "rl4dialog evaluate --run runs/my_project/my_run --set env.args.partner.args.error_rate=0",
    options=[
        *MODEL,
        POLICY,
        split_option("test", "dataset split to evaluate"),
        option("--output_path", "new output folder (default: in evaluations/ of the run folder or the current folder)"),
        flag("--by_turn", "conversations: also compute the metrics of the first, second, ... replies"),
    ],
)
def evaluate(args: Namespace) -> None:
    from rl4dialog.inference.loading import LoadedPolicy
    from rl4dialog.inference.offline_evaluation import evaluate_split, evaluation_folder
    from rl4dialog.inference.turn_level_agent import evaluate_agent

    agent = load_agent(args)
    parent = Path(args.run_path) if args.run_path else Path.cwd()
    folder = Path(args.output_path or evaluation_folder(parent / "evaluations", args.split, args.checkpoint))
    folder = folder.expanduser().absolute()
    about = {"run": args.run_path, "checkpoint": args.checkpoint, "model": args.model}
    if isinstance(agent, LoadedPolicy):
        evaluate_split(agent, args.split, folder, about, args.by_turn)
    elif args.by_turn:
        raise ConfigError("--by_turn compares replies of language models; this run has none")
    else:
        evaluate_agent(agent, args.split, folder, {**about, "policy": agent.name})


@command(
    "generate",
    "generate a reply to each prompt of a file",
    "docs/after_a_run.md",
    "rl4dialog generate --run runs/my_project/my_run --input prompts.jsonl --output replies.jsonl",
    options=[
        *MODEL,
        option(
            "--input", ".txt file of prompts, or .jsonl file with prompt, messages or history", type=Path, required=True
        ),
        _OUTPUT,
        option("--batch_size", "prompts per batch (default: as in evaluations)", type=int),
        sampling_option("top_p=0.9"),
    ],
)
def generate(args: Namespace) -> None:
    from rl4dialog.inference.batch_generation import reply_to_file

    check_at_least(args, batch_size=1)
    n_written = reply_to_file(load_model(args), args.input, args.output, args.sampling, args.batch_size)
    _print_written(n_written, "replies", args.output, "another model")


@command(
    "simulate",
    "write conversations of a trained model, or a rule policy, with its partner to a file",
    "docs/conversations.md",
    "rl4dialog simulate --run runs/my_project/my_run --n 100 --output conversations.jsonl",
    "rl4dialog simulate --config_path config.yml --policy rule --n 100 --output conversations.jsonl",
    options=[
        *MODEL,
        POLICY,
        option("--n", "number of conversations", default=200),
        _OUTPUT,
        split_option("test", "dataset split to talk about"),
        SEED,
        option("--player", "scripted player of the datapool, instead of the model"),
        sampling_option("do_sample=true"),
    ],
)
def simulate(args: Namespace) -> None:
    from rl4dialog.inference.loading import LoadedPolicy
    from rl4dialog.inference.simulation import Simulation, simulate_to_file
    from rl4dialog.inference.turn_level_agent import simulate_agent

    check_at_least(args, n=1)
    if args.output.suffix != ".jsonl":
        raise ConfigError(f"--output must be a .jsonl file, not {args.output}")
    if args.player is not None and args.sampling:
        raise ConfigError("--generation_kwargs has no meaning with --player, which does not sample from a model")
    agent = load_agent(args)
    if isinstance(agent, LoadedPolicy):
        name = args.player or model_name(args)
        simulation = Simulation(agent, args.split, args.n, args.seed, name, args.player, args.sampling)
        n_written = simulate_to_file(simulation, args.output)
    elif args.player is not None or args.sampling:
        raise ConfigError("--player and --generation_kwargs are for runs on text; use --policy, or --set")
    else:
        n_written = simulate_agent(agent, args.split, args.n, args.seed, args.output)
    _print_written(n_written, "conversations", args.output, "other conversations")


def _print_written(n_written: int, what: str, output: Path, other: str) -> None:
    if n_written:
        print(f"{n_written} {what} written to {output}")
    else:
        print(f"{output} is already complete; choose another --output for {other}")
