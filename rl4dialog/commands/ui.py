"""``rl4dialog ui``: chat with one trained model, or with two side by side, on a local web page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rl4dialog.commands.address import add_address_arguments, check_address_arguments, warn_of_visitors
from rl4dialog.commands.chat import add_talk_arguments, feedback_file
from rl4dialog.commands.models import add_model_arguments, compared_name, load_chosen, load_compared, model_name
from rl4dialog.commands.output import write_verbatim

if TYPE_CHECKING:
    from rl4dialog.serving.queue_page import QueuePage

HELP = "chat with a run's model, or with two models side by side, on a web page"
PAGE = "docs/chat.md"
EXAMPLES = (
    "rl4dialog ui --run runs/my_project/my_run",
    "rl4dialog ui --run runs/my_project/my_run --compare runs/my_project/other_run",
    "rl4dialog ui --queue queue.jsonl --feedback feedback.jsonl",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--compare", default=None, metavar="RUN", help="second model: a run folder, a model folder or a hub id"
    )
    parser.add_argument(
        "--compare_checkpoint", default=None, help="checkpoint of the second run: an iteration, last or best"
    )
    parser.add_argument(
        "--queue",
        type=Path,
        default=None,
        metavar="FILE",
        help="instead of a chat: judge the pairs of replies that rl4dialog select wrote; needs no model",
    )
    add_talk_arguments(parser)
    add_address_arguments(parser, 7860)


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.errors import ConfigError
    from rl4dialog.serving.page import ChatPage, load_gradio
    from rl4dialog.serving.page_chat import PageChat
    from rl4dialog.serving.page_server import serve

    if args.compare is None and args.compare_checkpoint is not None:
        raise ConfigError("--compare_checkpoint needs --compare")
    # Check everything cheap before the models are loaded.
    load_gradio()
    check_address_arguments(args)
    if args.queue is not None:
        serve(_queue_page(args), args.host, args.port, write_verbatim, allow_hosts=args.allow_host)
        return 0

    from rl4dialog.inference.chat_agent import ChatAgent

    models = [ChatAgent(load_chosen(args), model_name(args))]
    if args.compare is not None:
        models.append(ChatAgent(load_compared(args), compared_name(args)))
    warn_of_visitors(args, "chat with the model and give feedback.")
    page = ChatPage(PageChat(models, feedback_file(args), args.seed, args.show_reward))
    serve(page, args.host, args.port, write_verbatim, allow_hosts=args.allow_host)
    return 0


def _queue_page(args: argparse.Namespace) -> QueuePage:
    """The page for a queue of pairs.

    Raises:
        ConfigError: If a model is given, too.
        DataError: If the queue or the feedback file is invalid.
    """
    from rl4dialog.core.errors import ConfigError
    from rl4dialog.core.feedback_queue import read_queue
    from rl4dialog.serving.pair_judging import PairJudging
    from rl4dialog.serving.queue_page import QueuePage

    for option in ("run", "model", "config_path", "compare", "checkpoint", "seed"):
        if getattr(args, "run_path" if option == "run" else option) is not None:
            raise ConfigError(f"--queue shows replies that are already written; remove --{option}")
    return QueuePage(PairJudging(read_queue(args.queue), feedback_file(args)))
