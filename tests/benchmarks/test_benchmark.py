"""The benchmark's contestants do the same work."""

import dataclasses
import itertools
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from feature_rows import rows_of_features

from benchmarks import gpu
from benchmarks.compare import combinations
from benchmarks.contestants import Rl4dialog, Setting, Timing, VanillaSB3
from benchmarks.measure import BenchmarkError, Result, measure, timed_iteration
from benchmarks.plain_loop import PlainLoop
from benchmarks.profiles import compare_profiles
from benchmarks.task import TableEndOfTurn
from benchmarks.workers import compare_workers
from benchmarks.workloads import WORKLOADS, build_prompts

SCRIPTS = Path(__file__).parents[2] / "scripts"
SMALL = dataclasses.replace(WORKLOADS["tiny"], n_episodes=8, n_epochs=1, vocab_size=300)
RAGGED = dataclasses.replace(WORKLOADS["ragged"], n_episodes=8, n_epochs=1, vocab_size=300)


LONG = pytest.mark.long
CASES = list(itertools.product([SMALL, RAGGED], ["causal", "seq2seq"], ["separate", "shared", "none"]))
IN_SHORT = {(SMALL, "causal", "separate")}


@pytest.mark.parametrize(
    ("workload", "kind", "critic"), [pytest.param(*case, marks=() if case in IN_SHORT else LONG) for case in CASES]
)
def test_ours_and_the_plain_loop_finish_an_iteration(workload, kind, critic):
    setting = Setting("tiny", kind, critic, "rloo" if critic == "none" else "ppo")
    for contestant in (Rl4dialog(setting, workload), PlainLoop(setting, workload)):
        timing = contestant.iterate()
        contestant.close()
        assert timing.total >= sum(timing.phases.values()) > 0
        if workload is SMALL:
            assert timing.n_tokens == 8 * 20


@pytest.mark.long
def test_gpu_script_checks_graphs_and_measures_each_contestant():
    setting = Setting("tiny", critic="shared")
    found = gpu.check_agreement(setting, SMALL)
    assert 0 < found["difference_to_loop"] < 1e-4 and found["same_share"] == 1
    assert 0 < found["difference_to_training"] < 1e-4
    limits = gpu.measured_limits("cpu", 64)
    ours, loop, plain = gpu.measure("a cell", setting, SMALL, limits, repeats=1)
    assert not any("error" in row for row in (ours, loop, plain)) and ours["launches"] == 0, "there is no GPU"
    assert ours["n_tokens"] == plain["n_tokens"] == 8 * 20 and loop["contestant"] == "rl4dialog, token by token"
    policy = Rl4dialog(setting, SMALL).algorithm.policy
    n, n_trained = (sum(p.numel() for p in each.parameters()) for each in (policy.language_model, policy))
    n_trained -= n  # without the reference
    # 8 replies of 20 tokens after 48 on average: each step multiplies 8 rows, and the only minibatch 8 * 68 tokens.
    sampler, update = gpu.bounds(policy, SMALL, gpu.Limits(bandwidth=1e9, arithmetic=1.0), 8)
    assert sampler == 20 * 2 * n * 8 and update == pytest.approx(6 * n * 8 * 68)
    sampler, update = gpu.bounds(policy, SMALL, gpu.Limits(bandwidth=1.0, arithmetic=1e20), 8)
    cached = 4 * policy.language_model.config.n_layer * policy.language_model.config.n_embd
    assert sampler == 20 * (2 * n + 8 * cached * 58) and update == pytest.approx(28 * n_trained)


@pytest.mark.long
@pytest.mark.parametrize("critic", ["separate", "shared", "none"])
def test_ours_and_the_plain_loop_train_adapters_in_bf16(critic):
    setting = Setting("tiny", "causal", critic, "rloo" if critic == "none" else "ppo", lora=True, precision="bf16")
    ours, plain = Rl4dialog(setting, SMALL), PlainLoop(setting, SMALL)
    n_trained = [sum(p.numel() for p in ours.algorithm.policy.parameters() if p.requires_grad)]
    n_trained.append(sum(p.numel() for p in plain.trained))
    assert n_trained[0] == n_trained[1]
    for contestant in (ours, plain):
        assert contestant.iterate().n_tokens == 8 * 20
        contestant.close()


def test_token_by_token_finishes_an_iteration():
    contestant = VanillaSB3(Setting("tiny"), SMALL)
    assert contestant.iterate().n_tokens == 8 * 20
    contestant.close()


def test_the_plain_loop_computes_our_log_probs_and_values():
    for kind in ("causal", "seq2seq"):
        ours, plain = Rl4dialog(Setting("tiny", kind), RAGGED), PlainLoop(Setting("tiny", kind), RAGGED)
        batch = plain.generate(plain.next_prompts())
        replies, mask = batch["reply_ids"], batch["mask"]
        log_probs, _ = plain.evaluate(batch)
        obs = {name: batch[name] for name in ("prompt_ids", "prompt_mask")}
        obs |= {"response_ids": replies, "response_mask": mask}
        _, ours_log_probs, _ = ours.algorithm.policy.evaluate_actions(obs, replies[mask])
        torch.testing.assert_close(log_probs[mask], ours_log_probs, rtol=1e-4, atol=1e-5)
        ours.close()


def test_settings_are_all_combinations_with_grpo_beside_rloo():
    settings = list(combinations(["tiny"], ["causal"], ["shared", "none"], ["fp32", "bf16"], lora=True))
    assert [(s.precision, s.algorithm, s.critic) for s in settings] == [
        (precision, algorithm, critic)
        for precision in ("fp32", "bf16")
        for algorithm, critic in (("ppo", "shared"), ("rloo", "none"), ("grpo", "none"))
    ]
    assert str(settings[0]) == "tiny, causal, ppo, critic: shared, LoRA, fp32"


def test_prompts_and_replies_have_the_wanted_lengths():
    tokenizer, samples = build_prompts(WORKLOADS["ragged"])
    lengths = [len(tokenizer(sample.prompt_or_input_text)["input_ids"]) for sample in samples]
    wanted = np.resize(WORKLOADS["ragged"].prompt_lengths, len(lengths))
    assert np.abs(np.sort(lengths) - np.sort(wanted)).max() <= 2
    end_of_turn = TableEndOfTurn(tokenizer, (1, 3))
    assert end_of_turn.is_end([4]) and not end_of_turn.is_end([5, 0]) and end_of_turn.is_end([5, 0, 0])


@pytest.mark.long
def test_turns_are_taken_and_memory_is_told():
    ours, plain = measure(Setting("tiny"), SMALL, ["rl4dialog", "plain loop"], repeats=2)
    assert (ours.name, plain.name) == ("rl4dialog", "plain loop")
    assert len(ours.seconds) == len(plain.seconds) == 2
    assert ours.peak_mib > 100
    assert ours.speed_relative_to(ours) == 1


def test_cpu_time_leaves_out_waiting():
    class Sleeper:
        def iterate(self):
            time.sleep(0.5)
            return Timing(0.5, {}, 1)

        def close(self):
            pass

    assert timed_iteration(Sleeper(), cpu_time=False).total == 0.5
    assert timed_iteration(Sleeper(), cpu_time=True) == Timing(pytest.approx(0, abs=0.25), {}, 1)


@pytest.mark.long
def test_a_failing_contestant_is_named():
    with pytest.raises(BenchmarkError, match="'trl' failed"):
        measure(Setting("tiny", algorithm="ppo"), SMALL, ["trl"], repeats=1)


def test_speed_is_compared_turn_by_turn():
    ours = Result("ours", [1.0, 2.0, 4.0], {}, [10, 10, 10], 0.0)
    other = Result("other", [2.0, 4.0, 40.0], {}, [10, 10, 10], 0.0)
    assert ours.speed_relative_to(other) == 2


@pytest.mark.long
def test_a_profile_accounts_for_all_of_an_iteration(capsys):
    compare_profiles({"tiny": SMALL}, [Setting("tiny", critic="shared")])
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    seconds = {row[0]: [float(cell) for cell in row[1:]] for row in cells if len(row) == 3}
    for contestant in (0, 1):
        assert seconds["matrix products"][contestant] > 0
        *parts, watched, _ = (row[contestant] for row in seconds.values())
        assert sum(parts) == pytest.approx(watched, abs=0.05)


@pytest.mark.long
def test_workers_are_timed_and_weighed(capsys):
    compare_workers(n_envs=4, n_workers=2, n_samples=50, repeats=2)
    printed = capsys.readouterr().out
    assert "2 workers" in printed and "4 environments" in printed and "MiB" in printed


HELP = """
import os, runpy, sys
scripts, path = sys.argv[1:], sys.path[:]
for script in scripts:
    sys.argv[1:], sys.path[:] = ["--help"], [os.path.dirname(script), *path]
    for name in [name for name in sys.modules if name.startswith(("benchmarks", "script"))]:
        del sys.modules[name]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert end.code == 0
"""


@pytest.mark.long
def test_scripts_tell_their_arguments(tmp_path):
    """From another folder, with nothing on the path that leads to the benchmarks."""
    scripts = [str(SCRIPTS / f"{name}.py") for name in ("benchmark", "soak", *rows_of_features("SCRIPTS"))]
    done = subprocess.run([sys.executable, "-c", HELP, *scripts], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("usage") == len(scripts), done.stderr
