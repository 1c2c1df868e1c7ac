"""Commands that look into a run: ``doctor``, ``critic``, ``validate-reward`` and ``validate-partner``."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from rl4dialog.commands.options import (
    CONFIG,
    OPTIONAL_CONFIG,
    RUN,
    SEED,
    SPLITS,
    TRUST,
    command,
    flag,
    load_model,
    option,
    read_config,
    set_option,
    split_option,
)
from rl4dialog.core.errors import ConfigError


@command(
    *OPTIONAL_CONFIG,
    option("--base_path_to_store_results", "parent folder of project folders", default="."),
    flag("--quick", "leave out all checks that need the language model"),
    flag("--all", "show passed and skipped checks in full, too"),
    flag("--gpu", "check only if replies from CUDA graphs are right on this machine, in a minute, without a config"),
)
def doctor(args: Namespace) -> int:
    if args.gpu:
        from rl4dialog.features.inspection.graph_check import check_graphs

        return 0 if check_graphs() else 1
    if args.config_path is None:
        raise ConfigError("doctor needs --config_path, or --gpu")

    from rl4dialog.features.inspection.examination import examine, print_findings
    from rl4dialog.features.inspection.subject import Subject

    findings = examine(Subject(read_config(args), Path(args.base_path_to_store_results), args.quick), args.debug)
    print_findings(findings, show_all=args.all)
    if any(found.level == "fail" for found in findings.values()):
        return 1
    of_training = [each for each in args.argv[1:] if each not in ("--quick", "--all")]  # with the same overrides
    print(f"Next: rl4dialog train {shlex.join(of_training)}")
    return 0


_OF_DRAWN = {"n_states": 200, "n_continuations": 32, "n_ordered": 40}
_REPLAYED = (
    "env.args.partner={id: replay}",
    "env.args.first_speaker=sample",
    "train_evaluation.value_rank_states=null",
)


@command(
    *(RUN, TRUST, SEED),
    option("--checkpoint", "checkpoint of the run: iteration, last or best", default="last"),
    split_option("val", "dataset split of the conversations"),
    option("--n_states", "number of states, each of another conversation (default: 200)", at_least=10),
    option("--n_continuations", "number of continuations of each state (default: 32)", at_least=2),
    option("--n_ordered", "number of states in which utterances are compared (default: 40)", at_least=0),
    flag("--logged", "measure it in all conversations of the data, instead of in --n_states with the partner"),
    option("--success", "with --logged: outcome that is 1 for a success (default: a return above the median)"),
    set_option("KEY=VALUE", "override a config key, such as train_evaluation.eval_batch_size=500"),
)
def critic(args: Namespace) -> None:
    from rl4dialog.core.files import write_json
    from rl4dialog.features.inspection.critic import (
        critic_statistics,
        logged_statistics,
        plot_calibration,
        utterances_in,
    )
    from rl4dialog.inference.loading import find_checkpoint
    from rl4dialog.inference.offline_evaluation import print_metrics
    from rl4dialog.runs.report.pages import write_report
    from rl4dialog.runs.run_folder import CRITIC_MEASURE_FILE, LOGGED_CRITIC_FILE
    from rl4dialog.training.critic_measure import CriticMeasure

    for name, default in _OF_DRAWN.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif args.logged:
            raise ConfigError(f"--{name} is only without --logged")
    if args.logged:
        args.overrides = [*args.overrides, *_REPLAYED]
    elif args.success is not None:
        raise ConfigError("--success is only for --logged")
    loaded = load_model(Namespace(**vars(args), model=None, config_path=None))
    measure = CriticMeasure(loaded, loaded.policy, loaded.policy_with_critic, args.seed, repeats=not args.logged)
    samples, root = loaded.data.samples(args.split), Path(args.run_path).expanduser()
    about: dict[str, Any] = {"checkpoint": find_checkpoint(root, args.checkpoint).name, "split": args.split}
    if args.logged:
        path, found = root / LOGGED_CRITIC_FILE, logged_statistics(measure, samples, args.success)
        n = len({state["id"] for state in found["states"]})
    else:
        states, returns, seen = measure.drawn(samples, args.n_states, args.n_continuations)
        alternatives = utterances_in(measure, states[: args.n_ordered], args.n_continuations)
        path, found, n = root / CRITIC_MEASURE_FILE, critic_statistics(states, returns, seen, alternatives), len(states)
        about |= {"seed": args.seed, "n_states": n, "n_continuations": args.n_continuations}
        found["states"] = [{"id": each.sample.id, "turn": each.turn + 1, "value": each.value} for each in states]
    found["notes"] += measure.notes
    write_json(path, about | found)
    plot_calibration(found["bins"], path.with_suffix(".png"))
    write_report(root)
    print_metrics(args.split, n, found["metrics"], {}, path)
    print("", *found["notes"], sep="\n")


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
    from rl4dialog.features.inspection.reward_validation import drawn, print_validation, validate, write_validation
    from rl4dialog.inference.offline_evaluation import check_is_new, evaluation_folder

    config, name = text_config(read_config(args)), Path(args.ratings).stem
    folder = Path(args.output_path or evaluation_folder(Path.cwd() / "validations", name)).expanduser().absolute()
    check_is_new(folder)
    unit, rated = load_ratings(args.ratings, args.unit)
    result = validate(config, drawn(rated, args.max_items, config.seed), args.rating, args.n_resamples)
    write_validation(result, folder, {"config": args.config_path, "ratings": args.ratings, "unit": unit})
    print_validation(result)
    print(f"written to {folder}")


@command(
    *CONFIG,
    option("--partner", "what a partner said: NAME=FILE of simulate; several are compared", nargs="+", required=True),
    split_option("test", "dataset split of people whom the partners never met"),
    option(
        "--other_people", "dataset split of other people, whose distance is the floor", choices=SPLITS, default="train"
    ),
    option("--goal_key", "key of goals in the meta data (default: the config's goal, or partner_persona)"),
    option("--person_key", "key of people in the meta data (default: the config's people, or user)"),
    option("--max_conversations", "conversations to draw at random, of each", default=300, at_least=10),
    option("--output_path", "new output folder (default: in validations/ of the current folder)"),
)
def validate_partner(args: Namespace) -> None:
    from rl4dialog.core.config import text_config
    from rl4dialog.features.inspection.partner_validation import print_findings, validate_partners, write_findings
    from rl4dialog.inference.offline_evaluation import check_is_new, evaluation_folder, make_folder

    config, files = text_config(read_config(args)), dict[str, str]()
    for each in args.partner:
        name, equals, file = each.partition("=")
        if not equals or name in files:
            raise ConfigError(f"--partner needs NAME=FILE, each name once, not {each!r}")
        files[name] = file
    parent = evaluation_folder(Path.cwd() / "validations", "_".join(files))
    folder = Path(args.output_path or parent).expanduser().absolute()
    check_is_new(folder)
    keys = args.goal_key, args.person_key, args.max_conversations
    found = validate_partners(config, files, args.split, args.other_people, *keys)
    make_folder(folder)
    splits = {"split": args.split, "other_people": args.other_people}
    page = write_findings(found, folder, {"config": args.config_path, **splits, "files": files})
    print_findings(found)
    print(f"written to {page}")
