"""Commands that show or compute results, such as ``report``, ``evaluate`` and ``simulate``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from rl4dialog.commands.options import (
    CONFIG,
    MODEL,
    POLICY,
    RUN,
    SEED,
    TRUST,
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
    sampling_option,
    set_option,
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
    option("runs", "run folder; several are compared with each other", nargs="+", metavar="RUN"),
    option("--output", "output file (default: report.html in the run folder, or comparison.html)", metavar="FILE"),
    option("--csv", "also write the metrics as CSV", type=Path, metavar="FILE"),
    option("--latex", "also write the metrics as a LaTeX table", type=Path, metavar="FILE"),
)
def report(args: Namespace) -> None:
    from rl4dialog.runs.report.comparison import write_comparison
    from rl4dialog.runs.report.pages import write_report

    if len(args.runs) == 1:
        print(write_report(args.runs[0], args.output))
    else:
        print(write_comparison(args.runs, args.output or "comparison.html"))
    if args.csv or args.latex:
        from rl4dialog.runs.report.tables import metric_rows, write_csv, write_latex

        found = metric_rows(args.runs)
        for path, write in ((args.csv, write_csv), (args.latex, write_latex)):
            if path is not None:
                print(write(path.expanduser(), *found))


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
    *(RUN, TRUST, SEED),
    option("--checkpoint", "checkpoint of the run: iteration, last or best", default="last"),
    split_option("val", "dataset split of the conversations"),
    option("--n_states", "number of states, each of another conversation", default=200, at_least=10),
    option("--n_continuations", "number of continuations of each state", default=32, at_least=2),
    option("--n_ordered", "number of states in which utterances are compared", default=40, at_least=0),
    set_option("KEY=VALUE", "override a config key, such as train_evaluation.eval_batch_size=500"),
)
def critic(args: Namespace) -> None:
    from rl4dialog.core.files import write_json
    from rl4dialog.inference.loading import find_checkpoint
    from rl4dialog.inference.offline_evaluation import print_metrics
    from rl4dialog.runs.plots import plot_calibration
    from rl4dialog.runs.report.pages import write_report
    from rl4dialog.runs.run_folder import CRITIC_MEASURE_FILE
    from rl4dialog.training.critic_measure import CriticMeasure, critic_statistics

    loaded = load_model(Namespace(**vars(args), model=None, config_path=None))
    measure = CriticMeasure(loaded, loaded.policy, loaded.policy_with_critic, args.seed)
    states, returns, seen = measure.drawn(loaded.data.samples(args.split), args.n_states, args.n_continuations)
    alternatives = measure.alternatives(states[: args.n_ordered], args.n_continuations)
    found = critic_statistics(states, returns, seen, alternatives)
    found["notes"] += measure.notes
    path = Path(args.run_path).expanduser() / CRITIC_MEASURE_FILE
    about = {"checkpoint": find_checkpoint(path.parent, args.checkpoint).name, "split": args.split}
    sizes = {"seed": args.seed, "n_states": len(states), "n_continuations": args.n_continuations}
    of_states = [{"id": state.sample.id, "turn": state.turn + 1, "value": state.value} for state in states]
    write_json(path, {**about, **sizes, **found, "states": of_states})
    plot_calibration(found["bins"], path.with_suffix(".png"))
    write_report(path.parent)
    print_metrics(args.split, len(states), found["metrics"], {}, path)
    print("", *found["notes"], sep="\n")


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


@command(
    *CONFIG,
    option("--ratings", "ratings file, or dataset: dstc9, chitchat or small_talk", required=True),
    option("--unit", "ratings to read (default: those in the file)", choices=("dialogue", "reply")),
    option("--rating", "names of ratings to compare with (default: all)", nargs="+", default=[]),
    option("--max_items", "rated dialogues or replies to draw at random (default: all)", at_least=3),
    option("--n_resamples", "resamples of the confidence intervals", default=500, at_least=1),
    option("--output_path", "new output folder (default: in validations/ of the current folder)"),
)
def validate_reward(args: Namespace) -> None:
    from rl4dialog.core.config import text_config
    from rl4dialog.data.ratings import load_ratings
    from rl4dialog.inference.offline_evaluation import check_is_new, evaluation_folder
    from rl4dialog.inference.reward_validation import drawn, print_validation, validate, write_validation

    config, name = text_config(read_config(args)), Path(args.ratings).stem
    folder = Path(args.output_path or evaluation_folder(Path.cwd() / "validations", name)).expanduser().absolute()
    check_is_new(folder)
    unit, rated = load_ratings(args.ratings, args.unit)
    result = validate(config, drawn(rated, args.max_items, config.seed), args.rating, args.n_resamples)
    write_validation(result, folder, {"config": args.config_path, "ratings": args.ratings, "unit": unit})
    print_validation(result)
    print(f"written to {folder}")
