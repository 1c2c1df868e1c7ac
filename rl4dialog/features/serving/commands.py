"""Commands that let people talk: ``chat``, ``ui``, ``teach``, ``play`` and ``serve``."""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4dialog.commands.options import (
    MODEL,
    POLICY,
    SEED,
    SPLITS,
    Option,
    check_log,
    command,
    flag,
    load_agent,
    load_for_players,
    load_model,
    model_name,
    option,
    output_option,
    read_config,
    split_option,
)
from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.core.features import all_ids
from rl4dialog.core.feedback import check_feedback_file
from rl4dialog.core.files import is_run
from rl4dialog.core.registry import import_object

if TYPE_CHECKING:
    from rl4dialog.core.protocols import Player
    from rl4dialog.features.serving.judging import Judging
    from rl4dialog.features.serving.server import Address
    from rl4dialog.features.serving.teaching import Teaching
    from rl4dialog.inference.loading import LoadedPolicy

_N_EXAMPLES, _LONGEST_EXAMPLE = 3, 80  # messages to begin with, and their characters
_ONE_REPLY = "The model was trained for one reply, not for a second turn"
_SHOW_REWARD = flag("--show_reward", "print the reward of each reply and its parts")
_JUDGING = (
    option("--seed", "random seed of the replies", type=int),
    option(
        "--feedback",
        "file for ratings and corrections (default: feedback.jsonl in the run or current folder)",
        type=Path,
    ),
)
_SITUATIONS = (
    option("--split", "split of the situations (default: train)", choices=SPLITS),
    option("--n", "number of situations (default: all of the split)", at_least=1),
)
_write = functools.partial(print, end="", flush=True)


def _address_options(port: int) -> tuple[Option, ...]:
    return (
        option("--host", "address to listen on; 127.0.0.1 is local only", default="127.0.0.1"),
        option(
            "--allow_host",
            "also answer to this host name, such as a proxy's; can be repeated",
            action="append",
            default=[],
            metavar="NAME",
        ),
        option("--port", "port to listen on", default=port),
    )


@command(*MODEL, POLICY, _SHOW_REWARD, *_JUDGING)
def chat(args: Namespace) -> None:
    from rl4dialog.features.serving.chat import Chat, ChatAgent
    from rl4dialog.features.serving.terminal import TerminalChat, console_reader
    from rl4dialog.inference.loading import LoadedPolicy

    feedback, chosen = _feedback_file(args), _load_for_chat(args)
    read_line = console_reader(sys.stdin, _write)
    if isinstance(chosen, LoadedPolicy):
        models = [ChatAgent(chosen, model_name(args))]
        if _is_for_one_reply(chosen, _prompts(args.run_path)):
            _write(f"{_ONE_REPLY}: /reset begins anew, and docs/conversations.md shows how to train several turns.\n")
        talk = Chat(models, feedback, args.seed, args.show_reward, show_tokens=False)
        TerminalChat(talk, read_line, _write).run()
    else:
        _about_task("terminal")(chosen(), read_line, _write).run()


@command(
    *MODEL,
    POLICY,
    option("--compare", "second model: a run folder, a model folder or a hub id", metavar="RUN"),
    option("--compare_checkpoint", "checkpoint of the second run: an iteration, last or best"),
    option(
        "--queue", "instead of a chat: judge what rl4dialog select wrote; needs no model", type=Path, metavar="FILE"
    ),
    option(
        "--study",
        "a study as YAML: about the queue, or in which people talk to --run and --compare",
        type=Path,
        metavar="FILE",
    ),
    flag("--teach", "instead of a chat: accept, reject or correct replies, as in rl4dialog teach"),
    *_SITUATIONS,
    _SHOW_REWARD,
    *_JUDGING,
    *_address_options(7860),
)
def ui(args: Namespace) -> None:
    from rl4dialog.features.serving.judging import JudgingPage, StudyJudging, StudyPage
    from rl4dialog.features.serving.page import load_gradio
    from rl4dialog.features.serving.server import serve

    if args.compare is None and args.compare_checkpoint is not None:
        raise ConfigError("--compare_checkpoint needs --compare")
    own, other = (each and Path(each).expanduser().resolve() for each in (args.run_path or args.model, args.compare))
    if own is not None and own == other and args.compare_checkpoint == args.checkpoint:
        raise ConfigError(f"--compare {args.compare} is the model of --run or --model itself; choose another one")
    people_talk = args.queue is None and args.study is not None
    if people_talk and (args.compare is None or args.teach):
        raise ConfigError("--study is about the replies of a --queue, which is missing; or people talk: add --compare")
    if not args.teach and (args.split, args.n) != (None, None):
        raise ConfigError("--split and --n select the situations of --teach, which is missing")
    # Check everything cheap before the models are loaded.
    address = _address_of(args)
    load_gradio()
    if people_talk:
        serve(_talk_study(args), address, _write)
        return
    if args.queue is None and not args.teach:
        serve(_chat_page(args), address, _write)
        return
    judging = _judging(args)
    print(f"Judgements are appended to {judging.feedback}", file=sys.stderr)
    page = StudyPage(judging) if isinstance(judging, StudyJudging) else JudgingPage(judging)
    serve(page, address, _write)
    _print_what_to_do(judging, args)


@command(
    *MODEL,
    *_JUDGING,
    *_SITUATIONS,
    option("--learn_every", "learn in adapters after this number of corrections; /keep saves them", at_least=1),
)
def teach(args: Namespace) -> None:
    from rl4dialog.features.serving.terminal import TeachingTerminal, console_reader

    teaching = _load_teaching(args)
    TeachingTerminal(teaching, console_reader(sys.stdin, _write), _write).run()
    _print_what_to_do(teaching, args)


@command(
    *MODEL,
    output_option("conversation log to write or to continue"),
    split_option("train", "split of the samples"),
    option("--n", "number of games (default: as many as the split has samples)", at_least=1),
    option("--hint", "who gives hints: a scripted player of the datapool, or a run", metavar="PLAYER_OR_RUN"),
    SEED,
)
def play(args: Namespace) -> None:
    from rl4dialog.features.serving.terminal import ModelHints, play_in_terminal
    from rl4dialog.inference.loading import load_policy
    from rl4dialog.inference.simulation import chosen_player

    check_log(args.output)
    run = load_for_players(args)
    hint: Player | None = None
    if args.hint is not None and is_run(Path(args.hint).expanduser()):
        hint = ModelHints(load_policy(args.hint, trust=args.trust))
    elif args.hint is not None:
        hint = chosen_player(run, args.split, args.hint, "--hint {!r} is neither a run folder nor a player")()
    play_in_terminal(run, hint, args.split, args.n, args.seed, args.output, _write)


@command(
    *MODEL,
    option("--name", "name of the model in requests (default: that of its folder)"),
    *_address_options(8000),
    option("--api_key_env", "variable with the API key that requests must send (default: none)", metavar="VARIABLE"),
)
def serve(args: Namespace) -> None:
    from rl4dialog.core.http_requests import read_api_key
    from rl4dialog.features.serving.api_server import load_server, serve_api

    # Check everything cheap before the model is loaded.
    load_server()
    address = _address_of(args)
    api_key = None if args.api_key_env is None else read_api_key(args.api_key_env, "--api_key_env")

    from rl4dialog.features.serving.chat import ChatAgent

    model = ChatAgent(load_model(args), model_name(args))
    if api_key is None:
        _warn_of_visitors(args, "use the model; --api_key_env requires a key.")
    name = args.name or Path(args.run_path or args.model).expanduser().resolve().name
    serve_api(model, name, address, _write, api_key)


def _load_for_chat(args: Namespace) -> LoadedPolicy | Callable[[], Any]:
    """Load a language model, or what returns an agent for a task for each person."""
    from rl4dialog.inference.loading import LoadedPolicy

    chosen = load_agent(args)
    if isinstance(chosen, LoadedPolicy) and chosen.config.task is None:
        return chosen
    name = args.policy or model_name(args)
    for given in ("show_reward", "feedback", "compare"):
        if vars(args).get(given):
            raise ConfigError(
                f"{name} is for a task, whose dialogues are scored by whether a goal is reached; remove --{given}"
            )
    return functools.partial(_about_task("agent"), chosen, name, args.seed)


def _about_task(part: str) -> Any:
    return import_object(all_ids()["chat about a task"][part])


def _chat_page(args: Namespace) -> Any:
    from rl4dialog.features.serving.chat import Chat, ChatAgent, introduction
    from rl4dialog.features.serving.chat_page import ChatPage
    from rl4dialog.inference.loading import LoadedPolicy

    feedback, chosen = _feedback_file(args), _load_for_chat(args)
    if not isinstance(chosen, LoadedPolicy):
        _warn_of_visitors(args, "chat with the agent.")
        return _about_task("page")(chosen)
    models = [ChatAgent(chosen, model_name(args))]
    if args.compare is not None:
        models.append(ChatAgent(load_compared(args), compared_name(args)))
    _warn_of_visitors(args, "chat with the model and give feedback.")
    print(f"Judgements are appended to {feedback}", file=sys.stderr)
    prompts = _prompts(args.run_path)
    is_warned = args.compare is None and _is_for_one_reply(chosen, prompts)
    remark = f"{_ONE_REPLY}: the bin begins anew." if is_warned else ""
    about = introduction(chosen.config, is_trained=args.run_path is not None)
    chat = Chat(models, feedback, args.seed, args.show_reward)
    return ChatPage(chat, _beginnings(prompts or _prompts_of_data(chosen)), remark, about)


def _talk_study(args: Namespace) -> Any:
    """The page on which people talk to two models that are not named."""
    from rl4dialog.data.studies import TalkStudy, read_study
    from rl4dialog.features.serving.chat import ChatAgent
    from rl4dialog.features.serving.talk_study import TalkJudging, TalkStudyPage

    study, chosen = read_study(args.study, TalkStudy), load_model(args)
    models = [ChatAgent(chosen, model_name(args)), ChatAgent(load_compared(args), compared_name(args))]
    _warn_of_visitors(args, "talk to the models and rate them.")
    feedback = (args.feedback or Path("answers.jsonl")).expanduser()
    judging = TalkJudging(study, models, chosen.data.samples(study.split), feedback, args.seed or 0)
    print(f"Answers are appended to {feedback}; then: rl4dialog study-results --feedback {feedback}", file=sys.stderr)
    return TalkStudyPage(judging)


def load_compared(args: Namespace) -> LoadedPolicy:
    """Load the model that ``--compare`` selects: a run's, or any other model, with the config of the first one."""
    from rl4dialog.inference.loading import LoadedPolicy, load_policy, read_run_config

    folder = Path(args.compare).expanduser()
    if is_run(folder):
        return load_policy(folder, args.compare_checkpoint, args.trust)
    if args.compare_checkpoint is not None:
        raise ConfigError(f"--compare_checkpoint works only with a run, and {args.compare} is not a run folder")
    run = args.run_path and Path(args.run_path).expanduser()
    config = read_config(args) if run is None else read_run_config(run, trust=args.trust)
    return LoadedPolicy(config, str(folder) if folder.exists() else args.compare)


def compared_name(args: Namespace) -> str:
    return model_name(Namespace(run_path=args.compare, checkpoint=args.compare_checkpoint))


def _is_for_one_reply(model: LoadedPolicy, prompts: list[list[str]]) -> bool:
    """Whether a model was trained without conversations, on prompts of one utterance."""
    from rl4dialog.core.config import OnPolicyConfig

    is_single = isinstance(model.config, OnPolicyConfig) and model.config.env.args.max_turns == 1
    return is_single and all(len(said) == 1 for said in prompts)


def _prompts(run: str | None) -> list[list[str]]:
    """Utterances with which the run was evaluated."""
    from rl4dialog.runs.reading import read_predictions

    for path in sorted(Path(run).expanduser().glob("epoch_*_split_predictions.json")) if run is not None else ():
        found = read_predictions(path)
        return [[*said] for said in filter(None, found.utterances if found is not None else ())]
    return []


def _prompts_of_data(model: LoadedPolicy) -> list[list[str]]:
    """Utterances of the test split, of a model that was not evaluated yet."""
    with contextlib.suppress(RL4DialogError):
        return [list((each.meta_data or {}).get("history", ())) for each in model.data.samples("test")]
    return []


def _beginnings(prompts: list[list[str]]) -> list[str]:
    """Short first utterances, or the shortest."""
    said = [text for text in dict.fromkeys(each[0] for each in prompts if each) if "<" not in text]
    short = [text for text in said if len(text) <= _LONGEST_EXAMPLE]
    return (short if len(short) >= _N_EXAMPLES else sorted(said, key=len))[:_N_EXAMPLES]


def _judging(args: Namespace) -> Judging[Any]:
    """What is judged on the page: a queue, or the replies of a model that is taught."""
    from rl4dialog.core.feedback import read_queue
    from rl4dialog.data.studies import Study, read_study
    from rl4dialog.features.serving.judging import QueueJudging, StudyJudging

    chosen = {**vars(args), "run": args.run_path}
    given = [name for name, value in chosen.items() if value is not None and value is not False]
    if args.teach:
        if others := [name for name in ("queue", "policy", "compare", "show_reward") if name in given]:
            raise ConfigError(f"--teach shows one reply of one model at a time; remove --{others[0]}")
        _warn_of_visitors(args, "let the model reply and give feedback.")
        return _load_teaching(args)
    for name in ("run", "model", "config_path", "policy", "compare", "checkpoint", "seed", "show_reward"):
        if name in given:
            raise ConfigError(f"--queue shows replies that are already written; remove --{name}")
    _warn_of_visitors(args, "see the replies and give feedback.")
    queue = read_queue(args.queue)
    if args.study is None:
        return QueueJudging(queue, _feedback_file(args))
    study: Study = read_study(args.study)
    if study.raters_per_item == 1:
        print(f"{args.study}: with raters_per_item: 1, agreement between raters is undefined", file=sys.stderr)
    return StudyJudging(study, queue, _feedback_file(args, study.title))


def _load_teaching(args: Namespace) -> Teaching:
    from rl4dialog.features.serving.teaching import build_teaching

    feedback = _feedback_file(args)
    learn_every = vars(args).get("learn_every")
    model = load_model(args)
    return build_teaching(model, model_name(args), args.split or "train", args.n, feedback, args.seed, learn_every)


def _print_what_to_do(judging: Judging[Any], args: Namespace) -> None:
    """Print the number of judgements and, if there are any, the commands that learn from them."""
    from rl4dialog.data.ratings import count_kinds

    if not judging.given:
        print("No judgements were made.")
        return
    print(f"Appended to {judging.feedback}: {count_kinds(judging.given)}. To use all judgements in this file:")
    if any(each.study for each in judging.given):
        print(f"  rl4dialog study-results --feedback {shlex.quote(str(judging.feedback))} --output_dir results")
        return
    feedback, are_whole = shlex.quote(str(judging.feedback)), [each.rates_conversation for each in judging.given]
    if args.run_path is not None:
        chosen = "" if args.feedback is None else f" --feedback {feedback}"
        print(f"  rl4dialog improve --run {shlex.quote(args.run_path)}{chosen}")
    elif not all(are_whole):
        print(f"  rl4dialog improve --run RUN --feedback {feedback}")
    if not all(are_whole):
        print(f"  rl4dialog export-feedback --feedback {feedback} --output pairs.jsonl")
    if any(are_whole):
        print("  rl4dialog train with a reward model of conversations (docs/feedback.md, Whole conversations)")


def _feedback_file(args: Namespace, study: str | None = None) -> Path:
    """The feedback file given by ``--feedback``, or the default one."""
    path: Path = (args.feedback or Path(args.run_path or ".") / "feedback.jsonl").expanduser()
    check_feedback_file(path, study)
    return path


def _address_of(args: Namespace) -> Address:
    """Where to listen, which is checked before a model is loaded."""
    from rl4dialog.features.serving.server import Address

    address = Address(args.host, args.port, args.allow_host)
    address.check()
    return address


def _warn_of_visitors(args: Namespace, what: str) -> None:
    """Say what others can do, if the address is not that of this machine only."""
    if args.host not in ("127.0.0.1", "localhost", "::1"):
        print(f"Anyone who can reach {args.host} can {what}", file=sys.stderr)
