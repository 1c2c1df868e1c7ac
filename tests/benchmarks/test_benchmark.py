"""The benchmark's contestants do the same work."""

import dataclasses
import itertools
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import agile_ilql, gpu, original_ilql
from benchmarks.agile_ilql import AgileILQL
from benchmarks.compare import combinations, compare_offline
from benchmarks.contestants import Rl4dialog, Setting, Timing, VanillaSB3
from benchmarks.large_logs import serve
from benchmarks.measure import BenchmarkError, Result, measure, timed_iteration
from benchmarks.offline import BarePasses, Decoding, OfflineLoop, OfflineRl4dialog, with_room
from benchmarks.original_ilql import OriginalILQL
from benchmarks.plain_loop import PlainLoop
from benchmarks.profiles import compare_profiles
from benchmarks.task import TableEndOfTurn
from benchmarks.workers import compare_workers
from benchmarks.workloads import WORKLOADS, build_prompts

SCRIPTS = Path(__file__).parents[2] / "scripts"
SMALL = dataclasses.replace(WORKLOADS["tiny"], n_episodes=8, n_epochs=1, vocab_size=300)
ON_LOG = dataclasses.replace(WORKLOADS["tiny"], n_episodes=16)
RAGGED = dataclasses.replace(WORKLOADS["ragged"], n_episodes=8, n_epochs=1, vocab_size=300)


LONG = pytest.mark.long
MORE_ON_LOG = [("bc", "none"), ("ilql", "shared")]
CASES = list(itertools.product([SMALL, RAGGED], ["causal", "seq2seq"], ["separate", "shared", "none"]))
IN_SHORT = {(SMALL, "causal", "separate")}


@pytest.mark.parametrize(
    ("workload", "kind", "critic"),
    [pytest.param(*case, marks=() if case in IN_SHORT else LONG) for case in CASES],
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
    assert 0 < found["graph_difference"] < 1e-4 and found["graph_same_share"] == 1
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


@pytest.mark.parametrize(
    ("algorithm", "critic"), [("ilql", "separate"), *(pytest.param(*case, marks=LONG) for case in MORE_ON_LOG)]
)
def test_ours_and_the_plain_loop_learn_the_same_from_a_log(algorithm, critic):
    workload = with_room(ON_LOG)
    setting = Setting("tiny", "causal", critic, algorithm)
    ours = OfflineRl4dialog(setting, workload)
    plains = [OfflineLoop(setting, workload, each) for each in (False, True)[: 1 + (algorithm == "ilql")]]
    policy = ours.algorithm.policy
    if algorithm == "ilql":
        for plain in plains:
            for heads, own in ((plain.heads, policy.heads), (plain.target_heads, policy._target_heads)):
                for head, of_ours in zip(heads, [*own.q, own.output], strict=False):
                    head[0].load_state_dict(of_ours.inner[0].state_dict())
    assert len({each.iterate().n_tokens for each in (ours, *plains)}) == 1
    for plain in plains:
        for one, other in zip(policy.language_model.parameters(), plain.model.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        if algorithm == "ilql":
            for own, head in zip(policy._target_heads.q, plain.target_heads, strict=True):
                torch.testing.assert_close(own.output.weight, head[-1].weight, rtol=0, atol=1e-6)
    ours.close()


@pytest.mark.long
@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_bare_passes_go_through_all_transformers_and_no_heads(critic):
    setting, workload = Setting("tiny", critic=critic, algorithm="ilql"), with_room(ON_LOG)
    bare = BarePasses(setting, workload)
    assert bare.iterate().n_tokens == OfflineLoop(setting, workload).iterate().n_tokens
    for trained in filter(None, (bare.model.transformer, bare.critic)):
        assert all(parameter.grad is not None for parameter in trained.parameters())
    assert not bare.optimizer.state
    assert all(parameter.grad is None for parameter in bare.heads.parameters())


OTHER_ILQL = [(OriginalILQL, original_ilql.SOURCE), (AgileILQL, agile_ilql.FOLDER)]


@pytest.mark.parametrize(("contestant", "variable"), OTHER_ILQL)
def test_other_code_computes_the_losses_of_the_plain_loop(contestant, variable):
    if variable not in os.environ:
        pytest.skip(f"{variable} names no folder")
    workload = with_room(ON_LOG)
    setting = Setting("tiny", critic="separate", algorithm="ilql")
    other, plain = contestant(setting, workload), OfflineLoop(setting, workload, all_values=True)
    rows = plain._rows[:8]
    heads = [*plain.heads, *plain.target_heads]
    for name, head in zip(("q", "q2", "v", "target_q", "target_q2"), heads, strict=True):
        torch.nn.init.normal_(head[-1].weight, std=0.1)
        getattr(other.model, name).load_state_dict(head.state_dict())
    loss, logged = other.loss(rows)
    token_loss, v_loss, q_loss = (logged[name][0] for name in ("token_loss", "v_loss", "q_loss"))
    assert loss.item() == pytest.approx(token_loss + v_loss + q_loss, rel=1e-5)
    n_agent, n_all = sum(len(rewards) for _, _, rewards in rows), sum(len(ids) - 1 for ids, _, _ in rows)
    imitation = token_loss * n_all / n_agent  # theirs is a mean over all tokens
    assert plain.loss(rows).item() == pytest.approx(imitation + v_loss + q_loss, rel=1e-5)
    assert other.iterate().n_tokens == plain.iterate().n_tokens


def test_contestants_on_a_log_can_be_chosen(capsys, monkeypatch):
    def result(setting, workload, names, *_):
        return [Result(name, [1.0], {}, [100], 1.0) for name in names]

    monkeypatch.setattr("benchmarks.compare.measure", result)
    compare_offline({"tiny": ON_LOG}, ["shared"], repeats=1, contestants=["plain loop", "unguided"], cpu_time=True)
    printed = capsys.readouterr().out
    assert printed.count("plain loop") == printed.count("unguided") == 1
    assert "rl4dialog" not in printed and printed.count("CPU seconds") == 2


@pytest.mark.long
def test_guided_and_unguided_replies_have_the_wanted_length():
    for settings in ({"beta": 4.0, "top_k": 5}, {"beta": 0.0}):
        decoding = Decoding(Setting("tiny", critic="shared", algorithm="ilql"), SMALL, **settings)
        assert decoding.iterate().n_tokens == 8 * 20


def test_starts_of_large_logs_are_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path))
    monkeypatch.setattr("benchmarks.large_logs.N_STEPS", 2048)
    monkeypatch.setattr("benchmarks.large_logs.N_READ", 2)
    ours, theirs = multiprocessing.Pipe()
    serve(theirs, 300, time.time())
    found = ours.recv()
    assert 0 < found.peak_mib <= found.training_mib <= found.reading_mib and found.cpu_seconds > 0


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
    scripts = [str(SCRIPTS / f"{name}.py") for name in ("benchmark", "benchmark_logs", "soak")]
    done = subprocess.run([sys.executable, "-c", HELP, *scripts], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("usage") == 3, done.stderr
