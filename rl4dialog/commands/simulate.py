"""``rl4dialog simulate``: let a trained model talk with its partner, and write the conversations to a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_model_arguments, add_policy, load_chosen, load_turn_level, model_name
from rl4dialog.core.errors import ConfigError

HELP = "write conversations of a trained model, or a rule policy, with its partner to a file"
PAGE = "docs/conversations.md"
EXAMPLES = (
    "rl4dialog simulate --run runs/my_project/my_run --n 100 --output conversations.jsonl",
    "rl4dialog simulate --config_path config.yml --policy rule --n 100 --output conversations.jsonl",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_policy(parser)
    parser.add_argument("--n", type=int, default=200, help="number of conversations (default: 200)")
    parser.add_argument("--output", type=Path, required=True, help="output .jsonl file; an incomplete one is continued")
    parser.add_argument(
        "--split", default="test", choices=("train", "val", "test"), help="dataset split to talk about (default: test)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--player", default=None, help="scripted player of the datapool, instead of the model")
    parser.add_argument(
        "--generation_kwargs",
        dest="sampling",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="override a sampling setting of the evaluations, such as do_sample=true",
    )


def run(args: argparse.Namespace) -> int:
    from rl4dialog.inference.simulation import Simulation, simulate_to_file

    if args.n < 1:
        raise ConfigError(f"--n must be at least 1, not {args.n}")
    if args.output.suffix != ".jsonl":
        raise ConfigError(f"--output must be a .jsonl file, not {args.output}")
    if args.player is not None and args.sampling:
        raise ConfigError("--generation_kwargs has no meaning with --player, which does not sample from a model")
    if (acting := load_turn_level(args)) is not None:
        from rl4dialog.inference.turn_level.simulation import simulate_agent

        if args.player is not None or args.sampling:
            raise ConfigError("--player and --generation_kwargs are for runs on text; use --policy, or --set")
        return _report(simulate_agent(acting, args.split, args.n, args.seed, args.output), args.output)
    loaded = load_chosen(args)
    agent = args.player or model_name(args)
    simulation = Simulation(loaded, args.split, args.n, args.seed, agent, args.player, args.sampling)
    return _report(simulate_to_file(simulation, args.output), args.output)


def _report(n_written: int, output: Path) -> int:
    if n_written:
        print(f"{n_written} conversations written to {output}")
    else:
        print(f"{output} is already complete; choose another --output for other conversations")
    return 0
