"""``rl4dialog ui``: a local web page to chat with a model, two models or an agent, to judge a queue, or to teach."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4dialog.commands.address import add_address_arguments, check_address_arguments, warn_of_visitors
from rl4dialog.commands.chat import add_talk_arguments, feedback_file, load_for_chat
from rl4dialog.commands.models import add_model_arguments, add_policy, compared_name, load_compared, model_name
from rl4dialog.commands.output import write_verbatim
from rl4dialog.commands.teach import add_situation_arguments, load_teaching, print_what_to_do

if TYPE_CHECKING:
    from rl4dialog.serving.judging import Judging

HELP = "chat with a run's model, an agent for a task or two models, judge replies or teach a model, on a web page"
PAGE = "docs/chat.md"
EXAMPLES = (
    "rl4dialog ui --run runs/my_project/my_run",
    "rl4dialog ui --run runs/my_project/my_run --compare runs/my_project/other_run",
    "rl4dialog ui --queue queue.jsonl --feedback feedback.jsonl",
    "rl4dialog ui --run runs/my_project/my_run --teach",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_policy(parser)
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
        help="instead of a chat: judge the replies or conversations that rl4dialog select wrote; needs no model",
    )
    parser.add_argument(
        "--teach",
        action="store_true",
        help="instead of a chat: accept, reject or correct replies, as in rl4dialog teach",
    )
    add_situation_arguments(parser)
    add_talk_arguments(parser)
    add_address_arguments(parser, 7860)


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.errors import ConfigError
    from rl4dialog.serving.chat import Chat
    from rl4dialog.serving.chat_page import ChatPage
    from rl4dialog.serving.page import load_gradio
    from rl4dialog.serving.server import serve

    if args.compare is None and args.compare_checkpoint is not None:
        raise ConfigError("--compare_checkpoint needs --compare")
    if not args.teach and (args.split, args.n) != (None, None):
        raise ConfigError("--split and --n select the situations of --teach, which is missing")
    # Check everything cheap before the models are loaded.
    check_address_arguments(args)
    load_gradio()
    if args.queue is not None or args.teach:
        from rl4dialog.serving.judging import JudgingPage

        judging = _judging(args)
        print(f"Judgements are appended to {judging.feedback}", file=sys.stderr)
        serve(JudgingPage(judging), args.host, args.port, write_verbatim, allow_hosts=args.allow_host)
        print_what_to_do(judging, args)
        return 0

    from rl4dialog.inference.chat_agent import ChatAgent
    from rl4dialog.inference.loading import LoadedPolicy

    feedback, chosen = feedback_file(args), load_for_chat(args)
    if not isinstance(chosen, LoadedPolicy):
        from rl4dialog.serving.task_chat import TaskPage

        warn_of_visitors(args, "chat with the agent.")
        serve(TaskPage(chosen), args.host, args.port, write_verbatim, allow_hosts=args.allow_host)
        return 0
    models = [ChatAgent(chosen, model_name(args))]
    if args.compare is not None:
        models.append(ChatAgent(load_compared(args), compared_name(args)))
    warn_of_visitors(args, "chat with the model and give feedback.")
    print(f"Judgements are appended to {feedback}", file=sys.stderr)
    page = ChatPage(Chat(models, feedback, args.seed, args.show_reward))
    serve(page, args.host, args.port, write_verbatim, allow_hosts=args.allow_host)
    return 0


def _judging(args: argparse.Namespace) -> Judging[Any]:
    """What is judged on the page: a queue, or the replies of a model that is taught."""
    from rl4dialog.core.errors import ConfigError
    from rl4dialog.core.feedback_queue import read_queue
    from rl4dialog.serving.judging import QueueJudging

    given = {
        "run" if name == "run_path" else name
        for name, value in vars(args).items()
        if value is not None and value is not False
    }
    if args.teach:
        if others := [option for option in ("queue", "policy", "compare", "show_reward") if option in given]:
            raise ConfigError(f"--teach shows one reply of one model at a time; remove --{others[0]}")
        warn_of_visitors(args, "let the model reply and give feedback.")
        return load_teaching(args)
    for option in ("run", "model", "config_path", "policy", "compare", "checkpoint", "seed", "show_reward"):
        if option in given:
            raise ConfigError(f"--queue shows replies that are already written; remove --{option}")
    warn_of_visitors(args, "see the replies and give feedback.")
    return QueueJudging(read_queue(args.queue), feedback_file(args))
