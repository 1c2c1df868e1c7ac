"""``rl4dialog ui``: talk to a trained model, or to two side by side, on a web page of this machine."""

from __future__ import annotations

import argparse
import sys

from rl4dialog.commands.chat import add_talk_arguments, feedback_file
from rl4dialog.commands.models import add_model_arguments, compared_name, load_chosen, load_compared, model_name

HELP = "talk to a run's model, or to two side by side, on a web page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--compare", default=None, metavar="RUN", help="a second one: a run, or a model's folder or id")
    parser.add_argument("--compare_checkpoint", default=None, help="of the second run: an iteration, last or best")
    add_talk_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at; by default only this machine's")
    parser.add_argument(
        "--allow_host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name under which the page may be opened, such as a proxy's; may be given several times",
    )
    parser.add_argument("--port", type=int, default=7860, help="the port; by default 7860")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.errors import ConfigError
    from rl4dialog.serving.page import ChatPage, load_gradio
    from rl4dialog.serving.page_chat import PageChat
    from rl4dialog.serving.page_guard import PageHosts
    from rl4dialog.serving.page_server import check_address, serve

    if args.compare is None and args.compare_checkpoint is not None:
        raise ConfigError("--compare_checkpoint goes with --compare")
    # Before models are loaded, which takes long.
    load_gradio()
    check_address(args.host, args.port)
    PageHosts(args.host, args.port, args.allow_host)

    from rl4dialog.inference.chat_agent import ChatAgent

    models = [ChatAgent(load_chosen(args), model_name(args))]
    if args.compare is not None:
        models.append(ChatAgent(load_compared(args), compared_name(args)))
    if args.host not in ("127.0.0.1", "localhost", "::1"):
        print(f"Whoever reaches {args.host} can talk to the model and give feedback.", file=sys.stderr)

    def write(text: str) -> None:
        print(text, end="", flush=True)

    page = ChatPage(PageChat(models, feedback_file(args), args.seed, args.show_reward))
    serve(page, args.host, args.port, write, allow_hosts=args.allow_host)
    return 0
