"""Commands about judgements: ``select``, ``improve``, ``export-feedback``, ``study-results``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Literal

from rl4dialog.commands.options import (
    MODEL,
    RUN,
    SEED,
    TRUST,
    command,
    flag,
    load_model,
    model_name,
    option,
    output_option,
    set_option,
    split_option,
)
from rl4dialog.core.errors import ConfigError, DataError

_PLURALS = {"pair": "pairs", "reply": "replies", "conversation": "conversations"}
_OUTPUT = output_option("output .jsonl file; an existing one is replaced")


@command(
    *MODEL,
    _OUTPUT,
    split_option("train", "split of the samples"),
    option("--n", "number of pairs, replies or conversations", default=50, at_least=1),
    option(
        "--unit",
        "pairs of replies to choose from, replies to rate, or whole conversations with the partner",
        default="pair",
        choices=tuple(_PLURALS),
    ),
    option("--n_prompts", "samples to choose from (default: n if random and one by one, else 4 * n)", at_least=1),
    option("--n_replies", "replies, or conversations, for each sample (default: 2 for pairs, otherwise 1)", at_least=1),
    option(
        "--strategy",
        "at random, or by reward models: the closest pairs, those they disagree about, the clearest ones",
        default="random",
        choices=("random", "uncertain", "disagreement", "gap"),
    ),
    option("--reward_model", "folders of runs with alg.id: reward_model", nargs="+", default=[], metavar="RUN"),
    SEED,
)
def select(args: Namespace) -> None:
    from rl4dialog.core.feedback import write_queue
    from rl4dialog.features.feedback.queue_selection import check_strategy, generate_candidates, select, size_of
    from rl4dialog.scores.reward_models import load_reward_model

    fewest, is_whole = size_of(args.unit), args.unit == "conversation"
    if args.n_replies == 1 < fewest:
        raise ConfigError("--n_replies must be at least 2, not 1: a pair has two replies")
    check_strategy(args.strategy, args.reward_model, args.unit)
    judged: Literal["reply", "dialogue"] = "dialogue" if is_whole else "reply"
    models = [load_reward_model(name, judged, 64, "rl4dialog select") for name in args.reward_model]
    n_prompts = args.n_prompts or (args.n if args.strategy == "random" and fewest == 1 else 4 * args.n)
    candidates, n_unusable = generate_candidates(
        load_model(args), args.split, n_prompts, args.n_replies or fewest, args.seed, args.unit
    )
    queue = select(candidates, args.n, model_name(args), args.strategy, models, args.seed, args.unit)
    write_queue(args.output, queue)
    why = "conversations failed" if is_whole else "prompts had equal replies only"
    notes = f"; {n_unusable} {why}" if n_unusable else ""
    fewer = f", fewer than the {args.n} requested" if len(queue) < args.n else ""
    print(f"{len(queue)} of {len(candidates)} {_PLURALS[args.unit]} written to {args.output}{fewer}{notes}")


@command(
    RUN,
    option("--feedback", "feedback of rl4dialog chat or ui (default: feedback.jsonl in the run folder)", type=Path),
    option("--output", "folder of the stages, perhaps to continue (default: RUN_improved)", type=Path),
    flag("--force", "run PPO even with few votes, or a reward model no better than a coin"),
    flag("--dry_run", "check everything, print the plan, and stop"),
    set_option("STAGE.KEY=VALUE", "override a key of a stage's config, such as policy.train_evaluation.n_iters=10"),
    TRUST,
)
def improve(args: Namespace) -> None:
    from rl4dialog.core.config import text_config
    from rl4dialog.features.feedback.improvement import improve, make_plan, plan_text
    from rl4dialog.inference.loading import read_run_config

    folder = Path(args.run_path).expanduser().absolute()
    feedback = (args.feedback or folder / "feedback.jsonl").expanduser()
    output = (args.output or folder.with_name(f"{folder.name}_improved")).expanduser()
    config = text_config(read_run_config(folder, trust=args.trust, trains=True))
    plan = make_plan(folder, config, feedback, output, args.force, args.overrides)
    print(plan_text(plan), flush=True)
    if not args.dry_run:
        print(f"\nReport: {improve(plan)}")


@command(option("--feedback", "feedback file of rl4dialog chat or rl4dialog ui", type=Path, required=True), _OUTPUT)
def export_feedback(args: Namespace) -> None:
    from rl4dialog.core.files import write_records
    from rl4dialog.data.dialogue_format import chat_messages
    from rl4dialog.data.ratings import count_kinds, read_latest

    judgements, rows = read_latest(args.feedback), list[dict[str, Any]]()
    for each in judgements:
        if each.compared is not None and len({*each.compared}) > 1:
            chosen, rejected = ([{"role": "assistant", "content": text}] for text in each.compared)
            prompt = chat_messages(each.turns, each.persona)
            rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    if not rows:
        what = "preferences or corrections of different replies, which pairs are made of"
        raise DataError(f"{args.feedback} has no {what} (it has {count_kinds(judgements)})")
    write_records(args.output, rows)
    n_without = len(judgements) - len(rows)
    left_out = f"; {n_without} judgements make no pair (ratings, or equal replies)" if n_without else ""
    print(f"{len(rows)} pairs written to {args.output}{left_out}")


@command(
    option("--feedback", "answers to a study of rl4dialog ui --study", type=Path, required=True),
    option("--output_dir", "output folder", type=Path, required=True),
)
def study_results(args: Namespace) -> None:
    from rl4dialog.features.feedback.study_results import is_of_talks, talk_results, write_results

    if is_of_talks(args.feedback):
        found = talk_results(args.feedback, args.output_dir)
        print(f"{found['study']}: {found['n_conversations']} conversations of {found['n_raters']} people")
        for key, means in found["measures"].items():
            for name, each in means.items():
                interval = " ({:.3f} to {:.3f})".format(*each["interval"]) if each["interval"] else ""
                print(f"{key}, {name}: {each['value']:.3f}{interval}")
        print(f"Written to {args.output_dir}: answers.csv, summary.json")
        return
    found = write_results(args.feedback, args.output_dir)
    print(
        f"{found['study']}: {found['n_answers']} answers of {found['n_raters']} raters about {found['n_items']} items"
    )
    for n, n_items in found["items_by_n_answers"].items():
        print(f"  items with answers of {n} raters: {n_items}")
    alpha = f"undefined: {found['why_alpha_is_undefined']}" if found["alpha"] is None else f"{found['alpha']:.3f}"
    print(f"Krippendorff's alpha: {alpha}")
    for model, mean in found["mean_by_model"].items():
        print(f"{model}: {mean:.3f}")
    if "n_tied_items" in found:
        print(
            f"items without a majority: {found['n_tied_items']}; answers of no difference: {found['n_no_difference']}"
        )
    print(f"Written to {args.output_dir}: items.jsonl, answers.csv, summary.json")
