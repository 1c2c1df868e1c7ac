"""The benchmark's contestants on a log do the same work."""

import dataclasses
import multiprocessing
import os
import time

import pytest
import torch

from benchmarks import agile_ilql, original_ilql
from benchmarks.agile_ilql import AgileILQL
from benchmarks.contestants import Setting
from benchmarks.large_logs import serve
from benchmarks.measure import Result
from benchmarks.offline import BarePasses, Decoding, OfflineLoop, OfflineRl4dialog, with_room
from benchmarks.on_log import compare_offline
from benchmarks.original_ilql import OriginalILQL
from benchmarks.workloads import WORKLOADS

SMALL = dataclasses.replace(WORKLOADS["tiny"], n_episodes=8, n_epochs=1, vocab_size=300)
ON_LOG = dataclasses.replace(WORKLOADS["tiny"], n_episodes=16)
LONG = pytest.mark.long
MORE_ON_LOG = [("bc", "none"), ("ilql", "shared")]


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

    monkeypatch.setattr("benchmarks.on_log.measure", result)
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
    pytest.importorskip("rl4dialog.features.games")
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path))
    monkeypatch.setattr("benchmarks.large_logs.N_STEPS", 2048)
    monkeypatch.setattr("benchmarks.large_logs.N_READ", 2)
    ours, theirs = multiprocessing.Pipe()
    serve(theirs, 300, time.time())
    found = ours.recv()
    assert 0 < found.peak_mib <= found.training_mib <= found.reading_mib and found.cpu_seconds > 0
