"""Commands that show or compute results, such as ``runs``, ``evaluate`` and ``simulate``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from rl4dialog.commands.options import (
    MODEL,
    POLICY,
    SEED,
    check_log,
    command,
    flag,
    load_agent,
    load_for_players,
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
    option("folder", "folder to search", nargs="?", type=Path, default=Path()),
    option("--metrics", "metrics to show (default: the first ones)", nargs="+", default=[], metavar="KEY"),
)
def runs(args: Namespace) -> None:
    from rl4dialog.runs.listing import list_runs, print_runs

    print_runs(list_runs(args.folder.expanduser()), args.metrics)


@command(
    *MODEL,
    POLICY,
    split_option("test", "dataset split to evaluate"),
    option("--output_path", "new output folder (default: in evaluations/ of the run folder or the current folder)"),
    flag("--by_turn", "conversations: also compute the metrics of the first, second, ... replies"),
)
def evaluate(args: Namespace) -> None:
    from rl4dialog.inference.loading import LoadedPolicy
    from rl4dialog.inference.offline_evaluation import evaluate_split, evaluation_folder

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
        agent.evaluate(args.split, folder, {**about, "policy": agent.name})


@command(
    *MODEL,
    option(
        "--input", ".txt file of prompts, or .jsonl file with prompt, messages or history", type=Path, required=True
    ),
    _OUTPUT,
    option("--batch_size", "prompts per batch (default: as in evaluations)", at_least=1),
    sampling_option("top_p=0.9"),
)
def generate(args: Namespace) -> None:
    from rl4dialog.inference.simulation import reply_to_file

    n_written = reply_to_file(load_model(args), args.input, args.output, args.sampling, args.batch_size)
    _print_written(n_written, "replies", args.output, "another model")


@command(
    *MODEL,
    POLICY,
    option("--n", "number of conversations", default=200, at_least=1),
    _OUTPUT,
    split_option("test", "dataset split to talk about"),
    SEED,
    option("--player", "scripted player of the datapool, instead of the model; --config_path is enough"),
    sampling_option("do_sample=true"),
)
def simulate(args: Namespace) -> None:
    from rl4dialog.inference.loading import Agent
    from rl4dialog.inference.simulation import chosen_player, simulate_to_file

    check_log(args.output)
    if args.player is not None and args.sampling:
        raise ConfigError("--generation_kwargs has no meaning with --player, which does not sample from a model")
    agent = load_agent(args) if args.player is None else load_for_players(args)
    if not isinstance(agent, Agent):
        name, player = args.player or model_name(args), None
        if args.player is not None:
            player = chosen_player(agent, args.split, args.player)
        what = args.split, args.n, args.seed, name
        n_written = simulate_to_file(agent, args.output, *what, player, args.sampling)
    elif args.sampling:
        raise ConfigError("--generation_kwargs is for runs on text; use --policy, or --set")
    else:
        n_written = agent.simulate(args.split, args.n, args.seed, args.output)
    _print_written(n_written, "conversations", args.output, "other conversations")


def _print_written(n_written: int, what: str, output: Path, other: str) -> None:
    if n_written:
        print(f"{n_written} {what} written to {output}")
    else:
        print(f"{output} is already complete; choose another --output for {other}")
