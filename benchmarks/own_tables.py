"""Does the config that ``rl4dialog init`` writes do harm? Tables × models × seeds, judged on their test splits.

    python benchmarks/own_tables.py --tables FOLDER --output runs/tables --outcomes docs/measured/own_tables.json

Each table (``.csv``, ``.jsonl``) of the folder goes through ``init`` and ``train`` as it is, without an edit or a hint.
``--make`` first writes three made-up tables into it (long replies, ten rows, two languages), ``--star`` a fourth, of
the turns of STAR (its repository). Finished runs are kept, so that a stopped benchmark goes on.

A run has done harm if the 95 % interval of its paired change on the test lies below 0, with Holm's correction over all
runs; ``first update`` is the KL by which it moved the policy, as a multiple of ``alg.args.target_kl``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from rl4dialog.features.experiments.quality.page import holm
from rl4dialog.runs.causes import causes
from rl4dialog.runs.reading import pair, read_run
from rl4dialog.runs.report.metrics import before_and_after

THINGS = ["kettle", "desk lamp", "router", "toaster", "headset", "printer", "fan heater", "electric drill", "camera"]
TROUBLES = {
    "does not start": "pull the plug, wait for a minute, and plug it in again",
    "makes a noise": "put it on a level surface, and tighten the four screws below",
    "smells burnt": "pull the plug at once, and do not use it any more",
    "blinks red": "hold the small button at the back until the light is green",
    "is too hot": "let it rest for ten minutes, and clean its vents with a dry cloth",
}
LANGUAGES = {
    "Where is my {}?": "Your {} is on its way.",
    "Can I return the {}?": "Yes, you can return the {} for 30 days.",
    "Is the {} in stock?": "Yes, we have the {} in stock.",
    "Wo ist mein Paket mit {}?": "Dein Paket mit {} ist unterwegs.",
    "Kann ich {} zurückgeben?": "Ja, {} kannst du 30 Tage lang zurückgeben.",
    "Gibt es {} noch?": "Ja, {} ist noch da.",
}


def made_up() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Tables that nobody tuned to: names, and rows of questions and answers."""
    choose = random.Random(20261129)
    rows = []
    for _ in range(400):
        thing, (trouble, cure) = choose.choice(THINGS), choose.choice([*TROUBLES.items()])
        bought = choose.choice(["last week", "in May", "two years ago", "yesterday"])
        asked = f"The {thing} that I bought {bought} {trouble}."
        warranty = "its warranty has ended" if bought == "two years ago" else "it is still under warranty"
        said = f"I am sorry that your {thing} {trouble}. First, please {cure}. If that does not help, "
        rows.append((asked, said + f"send the {thing} to our workshop: as you bought it {bought}, {warranty}."))
    yield "long_replies", rows
    yield "ten_rows", rows[:10]
    pairs = [*LANGUAGES.items()]
    rows = []
    for _ in range(400):
        (asked, said), thing = choose.choice(pairs), choose.choice(THINGS)
        rows.append((asked.format(thing), said.format(thing)))
    yield "two_languages", rows


def star_turns(folder: Path, n: int = 1200) -> list[tuple[str, str]]:
    """What users of STAR say, and what the clerk answers before they go on, in the order of the conversations."""
    from rl4dialog.features.star.reading import read_conversations  # only this table needs the feature

    rows: list[tuple[str, str]] = []
    for conversation in read_conversations(folder):
        said = ""
        for event in conversation.events:
            if event.who == "user":
                said = event.text
            elif event.who == "clerk" and said:
                rows.append((said, event.text))
                said = ""
    return rows[:n]


def write_table(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("question", "answer"), *rows])


def run_one(table: Path, model: str, seed: int, output: Path) -> Path:
    """The folder of a finished run, which is trained if it is not there."""
    folder = output / f"{table.stem}__{Path(model).name}"
    folder.mkdir(parents=True, exist_ok=True)
    config, run = folder / "config.yml", folder / "runs" / f"seed_{seed}"
    command, said = [sys.executable, "-m", "rl4dialog.cli"], folder / f"seed_{seed}.txt"
    with said.open("a", encoding="utf-8") as file:
        kwargs: dict[str, Any] = dict(stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=True)
        if not config.exists():
            subprocess.run([*command, "init", "--data", table, "--model", model, "--output", config], **kwargs)
        if not (run / "result.json").exists():
            where = ["--base_path_to_store_results", str(folder), "--project_name", "runs"]
            where += ["--experiment_name", run.name, "--resume", "auto", "--set", f"seed={seed}"]
            subprocess.run([*command, "train", "--config_path", config, *where], **kwargs)
    return run


def judged(run: Path) -> dict[str, Any]:
    """What a run did to its reward on the test split."""
    read = read_run(run)
    moved = [kl for kl in read.column("train/kept_update_kl") if kl == kl]
    target = read.config["alg"]["args"]["target_kl"]
    before, after = before_and_after(read, "test")
    found: dict[str, Any] = {"causes": [cause.name for cause in causes(read, before, after)]}
    if moved:
        found |= {"first_update_of_target": round(moved[0] / target, 3)}
    if before is None:
        return found
    if after is None:  # the model before training was kept
        after = before
    before, after = pair(before, after)
    old, new = before.scores["reward"], after.scores["reward"]
    found |= {"n_test": len(old), "before": float(old.mean()), "after": float(new.mean())}
    found["change"] = float((new - old).mean())
    found["p"] = 1.0 if np.ptp(new - old) == 0 else float(ttest_1samp(new - old, 0.0).pvalue)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, required=True, help="folder of tables")
    parser.add_argument("--only", nargs="*", help="names of tables, without their ending")
    parser.add_argument("--make", action="store_true", help="write the made-up tables into the folder")
    parser.add_argument("--star", type=Path, help="STAR's repository, for a table of its turns")
    parser.add_argument("--models", nargs="+", default=["builtin/tiny-gpt2"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--outcomes", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("WANDB_MODE", "disabled")
    args.tables.mkdir(parents=True, exist_ok=True)
    for name, rows in [*(made_up() if args.make else []), *([("star", star_turns(args.star))] if args.star else [])]:
        write_table(args.tables / f"{name}.csv", rows)

    found = json.loads(args.outcomes.read_text()) if args.outcomes and args.outcomes.exists() else {"runs": {}}
    tables = [table for table in sorted(args.tables.iterdir()) if not args.only or table.stem in args.only]
    for model in args.models:
        for table in tables:
            for seed in args.seeds:
                key = f"{table.stem}, {Path(model).name}, {seed}"
                found["runs"][key] = judged(run_one(table.absolute(), model, seed, args.output.absolute()))
                print(key, found["runs"][key], flush=True)
    runs = [run for run in found["runs"].values() if "p" in run]
    for run, adjusted in zip(runs, holm([run["p"] for run in runs]), strict=True):
        run["effect"] = "none" if adjusted >= 0.05 else "gain" if run["change"] > 0 else "harm"
    found["summary"] = {
        "runs": len(runs),
        "gained": sum(run["change"] > 0 and run["p"] < 0.05 for run in runs),
        "lost": sum(run["change"] < 0 and run["p"] < 0.05 for run in runs),
        "gained, with Holm's correction": sum(run["effect"] == "gain" for run in runs),
        "lost, with Holm's correction": sum(run["effect"] == "harm" for run in runs),
        "highest first update, of its target": max((run.get("first_update_of_target", 0) for run in runs), default=0),
    }
    print(json.dumps(found["summary"], indent=1))
    if args.outcomes:
        args.outcomes.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
