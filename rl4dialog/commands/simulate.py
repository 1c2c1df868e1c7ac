"""``rl4dialog simulate``: let a trained model talk with its partner, and write the conversations to a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_model_arguments, load_chosen, model_name
from rl4dialog.core.errors import ConfigError

HELP = "write conversations of a trained model with its partner to a file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
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
    loaded = load_chosen(args)
    agent = args.player or model_name(args)
    simulation = Simulation(loaded, args.split, args.n, args.seed, agent, args.player, args.sampling)
    n_written = simulate_to_file(simulation, args.output)
    if n_written:
        print(f"{n_written} conversations written to {args.output}")
    else:
        print(f"{args.output} is already complete; choose another --output for other conversations")
    return 0
