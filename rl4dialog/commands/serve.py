"""``rl4dialog serve``: serve a trained model as an OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.address import add_address_arguments, check_address_arguments, warn_of_visitors
from rl4dialog.commands.models import add_model_arguments, load_chosen, model_name
from rl4dialog.commands.output import write_verbatim

HELP = "serve a run's model, or any model, as an OpenAI-compatible endpoint"
PAGE = "docs/serving.md"
EXAMPLES = ("rl4dialog serve --run runs/my_project/my_run",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--name", default=None, help="name of the model in requests (default: that of its folder)")
    add_address_arguments(parser, 8000)
    parser.add_argument(
        "--api_key_env",
        default=None,
        metavar="VARIABLE",
        help="environment variable with the API key that requests must send (default: they need none)",
    )


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.api_keys import read_api_key
    from rl4dialog.serving.api_server import load_server, serve_api

    # Check everything cheap before the model is loaded.
    load_server()
    check_address_arguments(args)
    if args.api_key_env is not None:
        read_api_key(args.api_key_env, "--api_key_env")

    from rl4dialog.inference.chat_agent import ChatAgent

    model = ChatAgent(load_chosen(args), model_name(args))
    if args.api_key_env is None:
        warn_of_visitors(args, "use the model; --api_key_env requires a key.")
    name = args.name or Path(args.run_path or args.model).expanduser().resolve().name
    serve_api(model, name, args.host, args.port, write_verbatim, args.api_key_env, args.allow_host)
    return 0
