"""What a rollout holds, number by number: conversations that are written down, through the collector."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rows import rows_of
from scripted import LAST_VALUE, Conversation, ScriptedPolicy, roll_out
from two_processes import in_two_processes

from rl4dialog.core.errors import RewardError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.conversations import GroupSettings
from rl4dialog.rollouts.task_rewards import TaskRewards


def turns(*lengths, start=1, **kwargs):
    """A conversation of replies with these lengths, and ids that count up."""
    ids = iter(range(start, 99))
    return Conversation([[next(ids) for _ in range(n)] for n in lengths], **kwargs)


def stored(rollout):
    """Prompts and replies, in the order of the buffer."""
    return [(u.prompt_ids.tolist(), u.response_ids.tolist()) for u in rows_of(rollout.buffer)]


def test_conversations_under_way_are_completed_and_no_other_begun():
    """Enough tokens after the first step, in which one of four conversations ends."""
    scripts = [[turns(2), turns(2)], [turns(1, 2, 1), turns(1)], [turns(1, 1), turns(1)], [turns(1, 1, 1, 3), turns(1)]]
    rollout = roll_out(scripts, n_tokens=2)
    replies = [(env, turn) for (env, number, turn), _ in stored(rollout) if number == 1]
    expected = [(1, 1), (3, 1), (3, 2), (2, 1), (2, 2), (2, 3), (4, 1), (4, 2), (4, 3), (4, 4)]
    assert replies == expected and len(rows_of(rollout.buffer)) == len(expected)
    for (env, _, turn), reply in stored(rollout):
        assert reply == scripts[env - 1][0].replies[turn - 1]
    assert [u.episode for u in rows_of(rollout.buffer)] == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    # Whoever has finished waits, at the beginning of the next conversation.
    assert [[bool(ids) for ids in step] for step in rollout.env.actions] == [
        [True, True, True, True],
        [False, True, True, True],
        [False, True, False, True],
        [False, False, False, True],
    ]
    assert rollout.observations["prompt_ids"][:, 2:].tolist() == [[2, 1]] * 4


def test_conversations_that_begin_in_the_step_that_brings_enough_are_not_under_way():
    scripts = [[turns(1), turns(1), turns(1)], [turns(1, 1, 1), turns(1)]]
    rollout = roll_out(scripts, n_tokens=2)
    assert [prompt[1:] for prompt, _ in stored(rollout) if prompt[0] == 1] == [[1, 1], [2, 1]]
    assert rollout.stats is not None and rollout.stats.n_tokens == 5


def test_each_of_a_group_completes_as_many_conversations_as_the_others():
    short = [turns(1), turns(1), turns(1), turns(1)]
    scripts = [short, [turns(1, 1, 1), turns(2)], short, short]
    rollout = roll_out(scripts, n_tokens=6, groups=GroupSettings(size=2))
    groups = {}
    for u in rows_of(rollout.buffer):
        assert isinstance(u.group, (int, np.integer))
        groups.setdefault(u.group, []).append((int(u.prompt_ids[0]), int(u.prompt_ids[1])))
    # Two steps bring six tokens, as the long conversation counts only when it is over.
    assert {frozenset(members) for members in groups.values()} == {
        *(frozenset({(1, n), (2, n)}) for n in (1, 2)),
        *(frozenset({(3, n), (4, n)}) for n in (1, 2)),
    }


def test_utterances_keep_what_belongs_to_their_tokens():
    rollout = roll_out([[turns(2, 3)], [turns(1, 1, start=20)]], n_tokens=1)
    for u in rows_of(rollout.buffer):
        ids = u.response_ids
        np.testing.assert_allclose(u.log_probs, -ids / 10, rtol=1e-6)
        np.testing.assert_allclose(u.unmasked_log_probs, -ids / 20, rtol=1e-6)
        np.testing.assert_allclose(u.ref_log_probs, -ids / 40, rtol=1e-6)
        np.testing.assert_allclose(u.values, ids / 100, rtol=1e-6)
        np.testing.assert_array_equal(u.task_rewards, ids)
        assert u.task_rewards.dtype == np.float32 and u.last_value == 0


def test_tokens_know_the_number_of_their_turn_in_the_conversation():
    scripts = [[turns(2, 1, 3), turns(1)], [turns(1), turns(2, 2), turns(1)]]
    rollout = roll_out(scripts, n_tokens=5)
    turn_of = {tuple(u.prompt_ids): u.turn.tolist() for u in rows_of(rollout.buffer)}
    assert turn_of[1, 1, 1] == [0, 0] and turn_of[1, 1, 2] == [1] and turn_of[1, 1, 3] == [2, 2, 2]
    assert turn_of[2, 1, 1] == [0] and turn_of[2, 2, 1] == [0, 0] and turn_of[2, 2, 2] == [1, 1]
    assert rollout.buffer.replies.turn is not None and rollout.buffer.replies.turn.dtype == torch.int64


def test_log_has_the_means_of_the_rollout():
    """Tokens 1 2 | 3 and 20 | 20 20 20 20 20 20; a token's KL is -id/20 + id/40."""
    scripts = [[turns(2, 1)], [Conversation([[20], [20] * 6], cut=True)]]
    stats = roll_out(scripts, n_tokens=1).stats
    assert stats is not None
    assert stats.episodes == [{"r": 6.0, "l": 3.0}, {"r": 140.0, "l": 7.0}]
    expected = {
        "task_reward": (6 + 140) / 2,
        "task_reward_std": (140 - 6) / 2,
        "kl": -146 / 40 / 10,
        "kl_per_reply": -146 / 40 / 4,
        "log_prob": -146 / 10 / 10,
        "ref_log_prob": -146 / 40 / 10,
        "values": 146 / 100 / 10,
        "reply_length": 10 / 4,
        "cut_replies": 1 / 4,
        "repeated_trigrams": 3 / 4 / 4,
        "distinct_replies": 1.0,
        "truncated_mass": 146 / 50 / 10,
        "reward/id": 146 / 2,
        "n_episodes": 2,
        "tokens": 10,
        "masked_rewards": 0,
    }
    found = {name.removeprefix("rollout/"): value for name, value in stats.means.items()}
    standard_error = found.pop("kl_se")
    assert found == pytest.approx(expected, rel=1e-5)
    residuals = -np.array([3.0, 20.0, 3.0, 120.0]) / 40 + 146 / 40 / 10 * np.array([2, 1, 1, 6])
    assert standard_error == pytest.approx(residuals.std(ddof=1) / (10 / 4 * 2), rel=1e-5)
    assert set(stats.seconds) == {"time/generate_s", "time/evaluate_s", "time/score_s"}
    assert all(0 <= seconds < 600 for seconds in stats.seconds.values())


@pytest.mark.parametrize("bootstrap", [True, False, None])
def test_only_conversations_whose_last_reply_is_cut_are_bootstrapped(bootstrap):
    """A reply that is cut in mid-conversation, and one after which the partner leaves, are no end at a limit."""
    scripts = [[turns(6, 1)], [turns(2, 6)], [turns(2, 6, cut=True)]]
    collector = None if bootstrap is None else RolloutCollector(bootstrap_truncated=bootstrap)
    rollout = roll_out(scripts, n_tokens=1, collector=collector)
    last_values = {(u.prompt_ids[0], u.prompt_ids[2]): u.last_value for u in rows_of(rollout.buffer)}
    bootstrapped = {key for key, value in last_values.items() if value}
    assert bootstrapped == ({(3, 2)} if bootstrap else set())
    assert last_values[3, 2] == (LAST_VALUE if bootstrap else 0)
    assert rollout.policy.terminal_observations == ([scripts[2][0].replies[1]] if bootstrap else [])


ERROR = {"error": "reward 'x' failed"}


def test_conversation_whose_reward_failed_is_left_out_whole_and_counted():
    scripts = [[turns(2, 1, 3, infos={1: ERROR}), turns(2)], [turns(1), turns(1), turns(1)]]
    rollout = roll_out(scripts, n_tokens=5, collector=RolloutCollector(mask_failed_rewards=True))
    assert rollout.stats is not None
    assert [prompt for prompt, _ in stored(rollout)] == [[2, 1, 1], [2, 2, 1], [1, 2, 1], [2, 3, 1]]
    assert [u.episode for u in rows_of(rollout.buffer)] == [0, 1, 2, 3]
    assert rollout.stats.n_masked == rollout.stats.means["rollout/masked_rewards"] == 1
    assert rollout.stats.n_tokens == 5 and len(rollout.stats.episodes) == 4
    with pytest.raises(RewardError, match=r"^reward 'x' failed$"):
        roll_out(scripts, n_tokens=5)


def test_steps_show_what_was_done_and_earned():
    rollout = roll_out([[turns(2), turns(1)], [turns(3, 1), turns(1)]], n_tokens=1)
    first, second = rollout.steps
    assert first["actions"].tolist() == [[1, 2, -1, -1, -1, -1], [1, 2, 3, -1, -1, -1]]
    assert first["rewards"].tolist() == [3, 6] and first["dones"].tolist() == [True, False]
    assert second["actions"].tolist() == [[-1] * 6, [4, *[-1] * 5]]
    assert second["rewards"].tolist() == [0, 4] and second["dones"].tolist() == [False, True]
    assert [len(info["reward_parts"]["id"]) for info in second["infos"]] == [0, 1]
    assert second["new_obs"]["prompt_ids"].tolist() == [[9, 1, 2, 1], [9, 2, 2, 1]]


def test_callback_that_stops_leaves_no_statistics():
    rollout = roll_out([[turns(1, 1, 1)]], n_tokens=1, n_steps=2)
    assert rollout.stats is None and len(rollout.steps) == 2
    assert rollout.observations["prompt_ids"].tolist() == [[9, 1, 1, 3]]


class Sampled(ScriptedPolicy):
    """Another backend draws, from what is off by -0.1, 0.2, -0.3 ... in the log-probabilities of a reply's tokens."""

    def generate(self, obs):
        utterances = super().generate(obs)
        n = utterances.response_ids.shape[1]
        gaps = torch.tensor([0.1 * (i + 1) * (-1) ** (i + 1) for i in range(n)])
        return replace(utterances, truncated_mass=None, sampler_log_probs=utterances.log_probs + gaps)


def test_distance_of_another_sampler_is_measured_over_real_tokens():
    stats = roll_out([[turns(1), turns(1)], [turns(2, 3)]], n_tokens=1, policy_class=Sampled).stats
    assert stats is not None
    assert stats.means["rollout/sampler_kl"] == pytest.approx((-0.1 - 0.1 + 0.2 - 0.1 + 0.2 - 0.3) / 6, abs=1e-6)
    assert stats.means["rollout/sampler_max_ratio"] == pytest.approx(np.exp(0.3), rel=1e-5)
    assert "rollout/truncated_mass" not in stats.means


def ended(replies):
    """1 at the end of a conversation, and a term of its own that is not finite there."""
    return {"end": [float(done) for done in replies.dones], "own": [np.nan if done else 5.0 for done in replies.dones]}


def test_rewards_of_the_workers_and_of_the_main_process_are_weighted_and_summed():
    parts = [RewardPart("id", lambda iteration: iteration, None), RewardPart("end", 2.0, None, in_main_process=True)]
    collector = RolloutCollector(TaskRewards(parts, ended), mask_failed_rewards=True)
    scripts = [[turns(2, 1), turns(1)], [turns(1, infos={0: ERROR}), turns(1)]]
    rollout = roll_out(scripts, n_tokens=1, collector=collector, iteration=3)
    first, second = (u for u in rows_of(rollout.buffer) if u.prompt_ids[0] == 1)
    assert first.task_rewards.tolist() == [3.0, 6.0] and second.task_rewards.tolist() == [11.0]
    assert rollout.stats is not None and rollout.stats.means["rollout/reward/own"] == 5.0
    assert rollout.stats.means["rollout/reward/id/weight"] == 3.0


class InLockstep(ScriptedPolicy):
    lockstep = True


def test_processes_in_lockstep_make_as_many_passes_as_the_longest_rollout(tmp_path):
    """The first is done after one reply, the second after four; what is said for nothing is kept nowhere."""

    def work(number):
        scripts = [[turns(1), turns(1)], [turns(*[1] * (1 + 3 * number)), turns(1)]]
        rollout = roll_out(scripts, n_tokens=1, policy_class=InLockstep)
        assert rollout.stats is not None
        return rollout.policy.n_passes, [prompt for prompt, _ in stored(rollout)], rollout.stats.means

    (n_first, first, means), (n_second, second, same) = in_two_processes(work, tmp_path)
    assert n_first == n_second == 4
    assert first == [[1, 1, 1], [2, 1, 1]]
    assert second == [[1, 1, 1], [2, 1, 1], [2, 1, 2], [2, 1, 3], [2, 1, 4]]
    assert means == same and means["rollout/tokens"] == 7 and means["rollout/n_episodes"] == 4
    assert means["rollout/reply_length"] == 1 and means["rollout/task_reward"] == pytest.approx((1 + 1 + 1 + 10) / 4)
    assert means["rollout/distinct_replies"] == pytest.approx(4 / 7), "the same reply in two processes is one"
