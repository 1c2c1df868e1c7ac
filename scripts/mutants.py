"""Mutation testing: change the code in many small ways, and list the changes that no test detects.

mutmut creates the mutants of some packages, determines which tests cover each, and runs those tests. The settings of
both samples are in pyproject.toml: `core` has `functional/`, `rollouts/` and `algorithms/`, and `around` has what is
around them. This script draws a sample from every module in proportion to its number of mutants. It selects by a hash
of the names, so most of the sample stays the same when the code changes. Results are kept in `mutants/` (core) and in
`mutants/around/`: an interrupted run continues, and a mutant reruns only if its function has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Where mutmut runs, the number of mutants, and one whose function is small: the first run needs a name.
SAMPLES = {
    "core": (ROOT, 300, "rl4dialog.algorithms.on_policy.critic_free.*"),
    "around": (ROOT / "mutants" / "around", 100, "rl4dialog.text.words.*"),
}
# mutmut's exit codes for a mutant's tests.
KILLED, SURVIVED, UNCOVERED, TIMEOUTS = (1, 3), 0, (5, 33), (36, -24, 24, 152, 255)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", choices=SAMPLES, default="core", help="which packages are changed (default: core)")
    parser.add_argument("--n", type=int, help="size of the sample (default: 300, or 100 with around)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the sample (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="number of processes (default: one per core)")
    parser.add_argument("--again", action="store_true", help="rerun surviving mutants, after tests have changed")
    args = parser.parse_args()

    folder, n, first = SAMPLES[args.sample]
    if folder != ROOT:
        copy_tree(folder, args.sample)
    shutil.rmtree(folder / "mutants" / "tests", ignore_errors=True)  # mutmut's copy would keep tests that were deleted
    # A first run on few mutants generates all of them, and determines which tests cover each.
    run_mutmut(folder, [first], args.jobs)
    codes = results(folder)
    names = sample(list(codes), args.n or n, args.seed)
    todo = [name for name in names if codes[name] is None or (args.again and status(codes[name]) == "survived")]
    if todo:
        run_mutmut(folder, todo, args.jobs)
    codes = results(folder)
    report = report_on(folder, {name: codes[name] for name in names})
    (folder / "mutants" / "report.md").write_text(report, encoding="utf-8")
    print(report)
    return 0


def copy_tree(folder: Path, sample: str) -> None:
    """Copy code, tests and what they read to where mutmut finds the settings of another sample."""
    for name in ("rl4dialog", "tests", "docs", "scripts", "task_configs"):
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", folder)
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(settings_of(settings, sample), encoding="utf-8")


def settings_of(pyproject: str, sample: str) -> str:
    """The text of a pyproject.toml in which mutmut finds the settings of another sample."""
    return pyproject.replace("[tool.mutmut]", "[tool.mutants.core]").replace(
        f"[tool.mutants.{sample}]", "[tool.mutmut]"
    )


def run_mutmut(folder: Path, names: list[str], jobs: int) -> None:
    # One thread, because processes are forked; a fixed hash seed, so that tests always run in the same order.
    settings = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs), *names]
    subprocess.run(command, cwd=folder, env={**os.environ, **settings}, check=True)


def results(folder: Path) -> dict[str, int | None]:
    """Exit code of each mutant's tests by mutant name; ``None`` if they have not run."""
    codes: dict[str, int | None] = {}
    for path in sorted((folder / "mutants" / "rl4dialog").rglob("*.meta")):
        codes.update(json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"])
    return codes


def sample(names: list[str], n: int, seed: int) -> list[str]:
    """Draw names from every module in proportion to its size, by the largest-remainder method."""
    modules = Counter(map(module_of, names))
    n = min(n, len(names))
    shares = {module: n * count / len(names) for module, count in modules.items()}
    sizes = {module: int(share) for module, share in shares.items()}
    by_remainder = sorted(modules, key=lambda module: (sizes[module] - shares[module], module))
    for module in by_remainder[: n - sum(sizes.values())]:
        sizes[module] += 1
    drawn = []
    for module, size in sorted(sizes.items()):
        of_module = [name for name in names if module_of(name) == module]
        drawn += sorted(of_module, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:size]
    return drawn


def module_of(name: str) -> str:
    return name.rpartition(".")[0]


def status(code: int | None) -> str:
    if code in KILLED or code in TIMEOUTS:
        return "killed" if code in KILLED else "timed out"
    return "survived" if code in (SURVIVED, *UNCOVERED) else "not run" if code is None else f"exit code {code}"


def report_on(folder: Path, codes: dict[str, int | None]) -> str:
    """Return a table of the modules, followed by the diff of each mutant that was not killed."""
    kinds = ["killed", "timed out", "survived"]
    rows = {
        module: Counter(status(codes[name]) for name in codes if module_of(name) == module)
        for module in sorted({module_of(name) for name in codes})
    }
    kinds += sorted({kind for row in rows.values() for kind in row} - set(kinds))
    lines = [f"| module | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    total = sum(rows.values(), Counter())
    for module, row in {**rows, "all": total}.items():
        lines.append(f"| {module} | {' | '.join(str(row[kind]) for kind in kinds)} |")
    lines.append(f"\n{100 * (total['killed'] + total['timed out']) / len(codes):.1f} % killed")
    for name, code in codes.items():
        if status(code) != "killed":
            command = [sys.executable, "-m", "mutmut", "show", name]
            change = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
            lines.append(f"\n{name}: {status(code)}\n\n```diff\n{change.strip()}\n```")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
