"""Iterations on a GPU beside the physical bound, the plain loop and TRL: one table, and one JSON line per cell.

``benchmarks/gpu.sh`` runs it. Each cell is a process with a time limit, and its failure, or that of a test, is a row
with an ``error``, as is a policy that did not sample with graphs; then the exit code is 1. A cell begins with a check
that replies from graphs are those of the loop. A decoding step takes at least the time to read the
weights and the keys and values of all rows, or to multiply all rows; an update at least that of its multiplications (6
per parameter and token, 4 with adapters) and of Adam's 28 bytes per trained parameter. Bandwidth and arithmetic are
those of a copy and of a product of matrices on the same device.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import torch
from rich.console import Console
from rich.table import Table
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks import trl_trainer
from benchmarks.contestants import PHASES, Contestant, Rl4dialog, Setting, synchronize
from benchmarks.plain_loop import PlainLoop
from benchmarks.trl_trainer import TRL
from benchmarks.workloads import WORKLOADS, Workload, build_prompts
from rl4dialog import cli
from rl4dialog.core.process_memory import keep_freed_memory
from rl4dialog.features.inspection.graph_check import compare, fallback, problem_of
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.runs.provenance import git_state, package_versions
from rl4dialog.training.memory import peak_mib

_LEAST_S = 20.0  # a cell is not begun with less time
_LONG_S = 15.0  # after these, a contestant does no further iteration
_RAGGED = 2, 3, 4, 5, 7, 10, 14, 20, 28, 40  # of which few are left at the end
_LONG_PROMPTS = tuple(range(256, 513, 4))
_EAGER, _OURS, _PLAIN, _TRL = "rl4dialog, token by token", "rl4dialog", "plain loop", "trl"
_TESTS, _NOT_BEGUN = "tests", "not begun, because the time is over"


def _cell(
    size: str, reply: int, algorithm: str = "ppo", lora: bool = False, **changes: Any
) -> tuple[Setting, Workload]:
    critic, lora = "shared" if algorithm == "ppo" else "none", lora or size == "8b"
    setting = Setting(size, critic=critic, algorithm=algorithm, device="cuda", precision="bf16", lora=lora)
    changes = {"reply_lengths": (reply,), "batch_size": 32 if reply > 20 else 8, **changes}
    return setting, dataclasses.replace(WORKLOADS[size], **changes)


CELLS = {
    "small, 20 tokens": _cell("small", 20),
    "small, RLOO, replies of 2 to 40 tokens": _cell("small", 20, "rloo", reply_lengths=_RAGGED),
    "small with LoRA, 20 tokens": _cell("small", 20, lora=True),
    "135m, 128 tokens": _cell("135m", 128),
    "1b, 20 tokens": _cell("1b", 20),
    "8b with LoRA, 20 tokens": _cell("8b", 20),
    "small, prompts of 512": _cell("small", 20, prompt_lengths=_LONG_PROMPTS),
    "small, GRPO": _cell("small", 20, "grpo"),
    "1b, 256 rows": _cell("1b", 20, n_episodes=256, batch_size=32),
    "small, 128 tokens": _cell("small", 128),
    "1b, 128 tokens": _cell("1b", 128),
    "135m, 20 tokens": _cell("135m", 20),
    "8b with LoRA, 128 tokens": _cell("8b", 128),
}


class Limits(NamedTuple):
    """What a device can do: bytes and floating-point operations (of bf16) per second."""

    bandwidth: float
    arithmetic: float


def measured_limits(device: str, n: int) -> Limits:
    """Limits by a copy of n * n floats, and by a product of two (n, n) matrices."""
    matrix = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    numbers, copy = torch.empty(2, n * n, device=device)
    copying, multiplying = _seconds(lambda: copy.copy_(numbers), device), _seconds(lambda: matrix @ matrix, device)
    return Limits(8 * n * n / copying, 2 * n**3 / multiplying)


def _seconds(run: Callable[[], Any], device: str, repeats: int = 10) -> float:
    run()
    synchronize(device)
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize(device)
    return (time.perf_counter() - started) / repeats


def bounds(policy: LMActorCriticPolicy, workload: Workload, limits: Limits, n_trained_rows: int) -> tuple[float, float]:
    """Least seconds of the sampler and of the update of an iteration."""
    config, rows, reply = policy.language_model.config.get_text_config(), workload.n_episodes, workload.max_reply_length
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    cached = 4 * config.num_hidden_layers * heads * config.hidden_size // config.num_attention_heads  # bytes per token
    n_parameters = sum(p.numel() for p in policy.language_model.parameters())
    prompt = statistics.mean(workload.prompt_lengths)
    read = 2 * n_parameters + rows * cached * (prompt + reply / 2)
    sampler = reply * max(read / limits.bandwidth, 2 * n_parameters * rows / limits.arithmetic)
    trained = sum(p.numel() for group in policy.optimizer.param_groups for p in group["params"])
    factor = 6 if policy.lora is None else 4
    multiplied = factor * n_parameters * n_trained_rows * (prompt + reply) * workload.n_epochs
    n_steps = workload.n_epochs * workload.n_episodes // workload.batch_size
    return sampler, multiplied / limits.arithmetic + n_steps * 28 * trained / limits.bandwidth


def check_agreement(setting: Setting, workload: Workload) -> dict[str, float]:
    """What `graph_check.compare` finds; its second round follows a change of weights, so that no adapters are 0."""
    tokenizer, samples = build_prompts(workload)
    ours = Rl4dialog(dataclasses.replace(setting, backend="graph"), workload)
    prompts = [tokenizer(sample.prompt_or_input_text, verbose=False)["input_ids"] for sample in samples[:16]]
    found = compare(ours.algorithm.policy, prompts, n_rounds=2, n_turns=1)
    problem = problem_of(ours.algorithm.policy, found, shrinks=len(workload.reply_lengths) > 1)
    if setting.device == "cuda" and problem is not None:
        raise SystemExit(problem)
    ours.close()
    return found


def measure(name: str, setting: Setting, workload: Workload, limits: Limits, repeats: int) -> Iterator[dict[str, Any]]:
    """One row per contestant, one after the other."""
    contestants: dict[str, Callable[[], Contestant]] = {
        _OURS: lambda: Rl4dialog(setting, workload),
        _EAGER: lambda: Rl4dialog(dataclasses.replace(setting, backend="transformers"), workload),
    }
    if setting.algorithm != "grpo":
        contestants[_PLAIN] = lambda: PlainLoop(setting, workload)
    if setting.algorithm != "ppo" and trl_trainer.is_installed():
        contestants[_TRL] = lambda: TRL(setting, workload)
    for who, build in contestants.items():
        _forget(setting.device)
        row: dict[str, Any] = {"cell": name, "contestant": who}
        try:
            row |= _measured(build(), setting, workload, limits, repeats)
        except Exception as error:  # such as too little memory; the next contestant may need less
            row["error"] = f"{type(error).__name__}: {error}"
        yield row


def _measured(
    contestant: Contestant, setting: Setting, workload: Workload, limits: Limits, repeats: int
) -> dict[str, Any]:
    started = time.perf_counter()
    contestant.iterate()
    row: dict[str, Any] = {"first_s": time.perf_counter() - started}
    timings = [contestant.iterate()]
    while len(timings) < repeats and time.perf_counter() - started < _LONG_S:
        timings.append(contestant.iterate())
    row |= {"seconds": [round(timing.total, 4) for timing in timings], "n_tokens": timings[0].n_tokens}
    row["tokens_per_s"] = statistics.median(timing.n_tokens / timing.total for timing in timings)
    for phase in PHASES:
        if all(phase in timing.phases for timing in timings):
            row[f"{phase}_s"] = statistics.median(timing.phases[phase] for timing in timings)
    if setting.device == "cuda":
        row["peak_mib"] = peak_mib(torch.device(setting.device))
    if isinstance(contestant, Rl4dialog):
        policy = contestant.algorithm.policy
        sampler, update = bounds(policy, workload, limits, workload.n_episodes)
        row |= {"sampler_bound_s": sampler, "update_bound_s": update}
        row["sampler_tokens_per_s"] = row["n_tokens"] / row["rollout_s"]
        row |= _profiled(contestant, setting.device)
        if setting.device == "cuda" and policy.sampler != "transformers" and (reason := fallback(policy)):
            row["error"] = f"graphs are not used: {reason}"
    contestant.close()
    return row


def _profiled(contestant: Contestant, device: str) -> dict[str, float]:
    """Share of an iteration in which the device works, and how often Python starts kernels and waits."""
    activities = [ProfilerActivity.CUDA] if device == "cuda" else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiler:
        total = contestant.iterate().total
    # The tree of events that torch makes of these takes longer than the iteration.
    results: Any = profiler.profiler
    events = results.kineto_results.events()
    busy = sum(each.duration_ns() for each in events if each.device_type() == DeviceType.CUDA) / 1e9
    counts = Counter(event.name() for event in events)

    def n_calls(*names: str) -> int:
        return sum(n for name, n in counts.items() if name.startswith(names))

    return {
        "busy_share": busy / total,
        "launches": n_calls("cudaLaunchKernel", "cuLaunchKernel"),
        "graph_launches": n_calls("cudaGraphLaunch"),
        "synchronizations": n_calls("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
    }


def measure_conversations(config: Path, backend: str, device: str, n_iters: int = 3) -> dict[str, Any]:
    """Agent tokens per second of a shipped config with a partner, after its first iteration, from its log."""
    with tempfile.TemporaryDirectory() as folder:
        changes = ["warm_start=null", f"train_evaluation.n_iters={n_iters}", "train_evaluation.max_eval_samples=8"]
        changes += [f"generation.backend={backend}", f"alg.args.device={device}"]
        command = ["train", "--config_path", str(config), "--set", *changes]
        command += ["--base_path_to_store_results", folder, "--experiment_name", "run"]
        with contextlib.redirect_stdout(sys.stderr):
            code = cli.main(command)
        logs = [*Path(folder).rglob("training_info.jsonl")]
        if code or not logs:
            raise RuntimeError(f"the run ended with exit code {code}")
        rows = [json.loads(line) for line in logs[0].read_text(encoding="utf-8").splitlines()]
    rates = [row["time/tokens_per_s"] for row in rows if "time/tokens_per_s" in row][1:]
    cell = f"conversation: {config.parent.name}/{config.stem}"
    found = {"cell": cell, "contestant": f"rl4dialog, {backend}", "tokens_per_s": statistics.median(rates)}
    if backend != "transformers" and device == "cuda" and "rollout/sampler_kl" not in rows[-1]:
        found["error"] = "graphs are not used, at least in the last iteration; see the messages"
    return found


def run_tests(seconds: float) -> Iterator[dict[str, Any]]:
    """What only a GPU can show, by pytest; among it, each architecture is captured or known not to be."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [sys.executable, "-m", "pytest", "-q", "tests/invariants/test_gpu.py", f"--junitxml={results}"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, stdout=sys.stderr, timeout=seconds)
        if not results.is_file():
            yield {"cell": _TESTS, "error": f"there is no pytest, or the tests were ended after {seconds:.0f} s"}
            return
        cases = [*ElementTree.parse(results).iter("testcase")]
    for case in cases:
        if (failed := case.find("failure")) is not None or (failed := case.find("error")) is not None:
            yield {"cell": _TESTS, "contestant": case.get("name"), "error": failed.get("message", "")[:500]}
    n_skipped = sum(case.find("skipped") is not None for case in cases)
    yield {"cell": _TESTS, "contestant": f"{len(cases) - n_skipped} were run, {n_skipped} skipped"}


def _forget(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--cells", nargs="+", choices=CELLS, default=list(CELLS), help="which are measured (default: all)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="timed iterations per contestant, after one warm-up")
    parser.add_argument("--seconds", type=float, default=480, help="time for all cells (default: 480)")
    parser.add_argument("--cell_seconds", type=float, default=100, help="time limit of a cell (default: 100)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for trying the script out")
    parser.add_argument("--config", type=Path, help="config of conversations to measure with and without graphs")
    parser.add_argument("--tests", action="store_true", help="also run the tests that need a GPU")
    parser.add_argument("--tiny", action="store_true", help="replace every model by a tiny one, to try the script out")
    parser.add_argument("--output", type=Path, required=True, help="JSON file for all that is measured")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # a cell or a backend, in a process of its own
    args = parser.parse_args()
    if args.only is not None:
        for row in _rows_of(args):
            print(json.dumps(row, default=str), flush=True)
        return
    ends = time.perf_counter() + args.seconds
    report: dict[str, Any] = {"versions": package_versions(), "commit": git_state(Path(__file__).parents[1])}
    rows = report["rows"] = []
    # What is worth most comes first: there may be no time for the last.
    talks = ["auto", "transformers"] if args.config is not None else []
    for job in [*args.cells[:1], *talks[:1], *([_TESTS] if args.tests else []), *talks[1:], *args.cells[1:]]:
        left = min(args.cell_seconds, ends - time.perf_counter())
        found = list(run_tests(left) if job == _TESTS else _in_own_process(job, left))
        for row in found:
            print(json.dumps(row), flush=True)
        rows += found
        args.output.write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
    Console(width=140).print(_table(rows))
    if failed := [row for row in rows if "error" in row and row["error"] != _NOT_BEGUN]:
        what = "\n".join(f"  {row['cell']}, {row.get('contestant', '')}: {row['error']}" for row in failed)
        raise SystemExit(f"NOT AS IT SHOULD BE:\n{what}")


def _rows_of(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of one job, in this process."""
    keep_freed_memory()
    if args.only not in CELLS:
        yield measure_conversations(args.config, args.only, args.device)
        return
    setting, workload = CELLS[args.only]
    setting = dataclasses.replace(setting, device=args.device)
    if args.tiny:
        workload = dataclasses.replace(workload, model="tiny", n_episodes=16)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    limits = measured_limits(args.device, 8192 if args.device == "cuda" else 512)
    agreement = check_agreement(setting, workload)
    for row in measure(args.only, setting, workload, limits, args.repeats):
        yield {**row, **agreement, **limits._asdict(), "device": device}


def _in_own_process(job: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Rows of a job, and how its process ended, if it failed."""
    cell = job if job in CELLS else f"conversation, {job}"
    if seconds < _LEAST_S:
        yield {"cell": cell, "error": _NOT_BEGUN}
        return
    command, error = [sys.executable, "-m", "benchmarks.gpu", *sys.argv[1:], "--only", job], ""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as messages:
        try:
            code = subprocess.run(command, stdout=output, stderr=messages, timeout=seconds).returncode
            error = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            error = f"ended after {seconds:.0f} s"
        output.seek(0)
        messages.seek(0)
        yield from (json.loads(line) for line in output if line.startswith("{") and line.endswith("}\n"))
        if error:
            yield {"cell": cell, "error": error, "messages": messages.read()[-3000:]}


def _table(rows: list[dict[str, Any]]) -> Table:
    columns = (
        "s/iteration",
        "sampler tokens/s",
        "of its bound",
        "update, of its bound",
        "busy",
        "launches",
        "peak MiB",
    )
    table = Table("cell", "contestant", *columns)
    for row in rows:
        who = row.get("contestant", "")
        if "error" in row:
            table.add_row(row["cell"], who, row["error"][:60])
            continue
        ours, per_s = "sampler_bound_s" in row, row.get("tokens_per_s", 0.0)
        cells = [f"{statistics.median(row['seconds']):.3f}" if "seconds" in row else f"{per_s:,.0f} tokens/s"]
        if ours:
            cells += [f"{row['sampler_tokens_per_s']:,.0f}", f"{row['sampler_bound_s'] / row['rollout_s']:.1%}"]
            cells += [f"{row['update_bound_s'] / row['update_s']:.1%}", f"{row['busy_share']:.0%}"]
            cells.append(f"{row['launches']:,}")
        table.add_row(row["cell"], who, *cells, *[""] * (6 - len(cells)), f"{row.get('peak_mib', 0):,.0f}")
    return table


if __name__ == "__main__":
    main()
