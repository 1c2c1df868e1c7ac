"""``rl4dialog serve``: serve a trained model as an OpenAI-compatible endpoint."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rl4dialog.commands.models import add_model_arguments, load_chosen, model_name

HELP = "serve a run's model, or any model, as an OpenAI-compatible endpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--name", default=None, help="name of the model in requests (default: that of its folder)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--allow_host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional host name that the server answers to, such as a proxy's; can be repeated",
    )
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (default: 8000)")
    parser.add_argument(
        "--api_key_env",
        default=None,
        metavar="VARIABLE",
        help="environment variable with the API key that requests must send (default: they need none)",
    )


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.api_keys import read_api_key
    from rl4dialog.serving.address import check_address
    from rl4dialog.serving.api_server import load_server, serve_api
    from rl4dialog.serving.page_guard import PageHosts

    # Check everything cheap before the model is loaded.
    load_server()
    check_address(args.host, args.port)
    PageHosts(args.host, args.port, args.allow_host)
    if args.api_key_env is not None:
        read_api_key(args.api_key_env, "--api_key_env")

    from rl4dialog.inference.chat_agent import ChatAgent

    model = ChatAgent(load_chosen(args), model_name(args))
    if args.host not in ("127.0.0.1", "localhost", "::1") and args.api_key_env is None:
        print(f"Anyone who can reach {args.host} can use the model; --api_key_env requires a key.", file=sys.stderr)

    def write(text: str) -> None:
        print(text, end="", flush=True)

    name = args.name or Path(args.run_path or args.model).expanduser().resolve().name
    serve_api(model, name, args.host, args.port, write, args.api_key_env, args.allow_host)
    return 0
