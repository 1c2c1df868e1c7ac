"""Train small versions of the shipped configs at two commits, and compare their weights, replies and logs byte by byte.

A change of the code that is not meant to change results has to pass it:

    python scripts/compare_commits.py HEAD~1 HEAD --output_path /tmp/compared --only small_talk guess_what

``WORKTREE`` in place of a commit stands for the files as they are. Finished runs are kept, so that the same command
continues after an interruption. Models, and data that are files of others, have stand-ins (check_configs.py).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from check_configs import ConfigReport, Outside, shortened, stand_in_config

from rl4dialog.catalog import DataPoolRegistry

ROOT = Path(__file__).parents[1]
WORKTREE = "WORKTREE"
# One process per commit trains all configs, because importing torch takes longer than most of the runs.
_TRAIN = """
import sys, traceback
from pathlib import Path
from rl4dialog.cli import main_of
for name in sys.argv[2:]:
    runs = Path(sys.argv[1]) / name
    if not (runs / "code").exists():
        try:
            names = ["--project_name", "p", "--experiment_name", "e", "--base_path_to_store_results", str(runs)]
            code = main_of("train", ["--config_path", f"configs/{name}/config.yml", *names, "--overwrite"])
        except Exception:
            traceback.print_exc()
            code = 1
        (runs / "code").write_text(str(code)) if runs.exists() else None
"""
_FEW_SAMPLES = {"n_train": 24, "n_val": 6, "n_test": 6}
# What differs between any two runs: times, memory, places, versions.
_OF_MACHINES = ("time/", "memory/", "system/", "train_runtime_s", "tokens_per_s")
_LOGS = ("rollout_info.jsonl", "training_info.jsonl", "val_split_metrics.jsonl", "test_split_metrics.jsonl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("commits", nargs=2, help=f"commits, branches or tags; {WORKTREE}: the files as they are")
    parser.add_argument("--output_path", type=Path, required=True, help="folder for configs, runs and both trees")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of configs (default: all)")
    args = parser.parse_args()
    folder = args.output_path.expanduser().absolute()
    names = _write_configs(folder / "configs", args.only)
    if not names:
        parser.error(f"no shipped config has one of {args.only} in its name")
    for commit in args.commits:
        _train_all(commit, folder, names)
    n_different = 0
    for name in names:
        first, second = (_results(folder / f"runs-{commit}" / name) for commit in args.commits)
        different = sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))
        n_different += bool(different)
        shown = [f"{key}: {first.get(key)} -> {second.get(key)}" for key in different[:3]]
        same = f"equal ({len(first)} results)" if first["exit code"] == "0" else "failed at both commits, see log-*.txt"
        print(f"{name}: " + ("; ".join(shown) if different else same))
    print(f"{len(names) - n_different} of {len(names)} configs have equal results")
    return 1 if n_different else 0


def _write_configs(folder: Path, only: list[str]) -> list[str]:
    """Write the small config of each shipped config, with its data, unless it is there; return their names."""
    outside = Outside(folder.parent / "models")
    names = []
    for path in sorted((ROOT / "task_configs").glob("*/*.yml")):
        name = f"{path.parent.name}-{path.stem}"
        if path.parent.name in ("accelerate", "benchmarks") or not any(part in name for part in only):
            continue
        names.append(name)
        if not (folder / name / "config.yml").exists():
            (folder / name).mkdir(parents=True)
            config = shortened(stand_in_config(path, folder / name, outside, ConfigReport(name)))
            pool = config.get("datapool", {})
            few = {key: n for key, n in _FEW_SAMPLES.items() if pool and DataPoolRegistry.takes(pool["id"], key)}
            pool.update(args={**(pool.get("args") or {}), **few})
            (folder / name / "config.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return names


def _train_all(commit: str, folder: Path, names: list[str]) -> None:
    tree = ROOT
    if commit != WORKTREE:
        tree = folder / f"tree-{commit.replace('/', '_')}"
        if not tree.exists():
            subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", tree, commit], check=True)
    # The first entry of the path, so that the tree of the commit is found before an installed package.
    command = [sys.executable, "-c", _TRAIN, str(folder / f"runs-{commit}"), *names]
    with open(folder / f"log-{commit.replace('/', '_')}.txt", "a", encoding="utf-8") as log:
        env = {**os.environ, "PYTHONPATH": str(tree), "RL4DIALOG_CACHE": str(folder / f"cache-{commit}")}
        subprocess.run(command, cwd=folder, env=env, stdout=log, stderr=log, check=False)


def _results(runs: Path) -> dict[str, Any]:
    """Results of a run by name: hashes of weights and replies, and all logged numbers."""
    run = runs / "p" / "e"
    code = (runs / "code").read_text() if (runs / "code").exists() else "none"
    found: dict[str, Any] = {"exit code": code}
    for path in sorted([*run.rglob("*.safetensors"), *run.glob("epoch_*_predictions.json")]):
        found[str(path.relative_to(run))] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    for path in filter(Path.exists, (run / name for name in _LOGS)):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            for key, value in json.loads(line).items():
                if not key.startswith(_OF_MACHINES):
                    found[f"{path.name}:{number}:{key}"] = json.dumps(value)
    return found


if __name__ == "__main__":
    sys.exit(main())
