"""Collecting: which rewards reach the buffer."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from rows import rows_of
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_gpt2, make_tokenizer, n_words_reward, policy_class_of

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.errors import ConfigError, PartnerError, RewardError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.collector import RolloutCollector, RunningConversations
from rl4dialog.rollouts.conversations import EndedConversation, GroupSettings
from rl4dialog.rollouts.conversing import Speech
from rl4dialog.rollouts.kl_controllers import FixedKLController
from rl4dialog.rollouts.statistics import InfoNumbers, RolloutStats, check_progress, numbers_in
from rl4dialog.rollouts.task_rewards import RewardNormalizer, TaskRewards
from rl4dialog.scores.composite import Linear
from rl4dialog.text.end_of_turn import EndOfTurn

END = 0


class Kept:
    """Takes replies as they are, and the conversations that have ended."""

    def __init__(self) -> None:
        self.ended: list[EndedConversation] = []

    def add(self, replies: Replies | None) -> Replies | None:
        return replies

    def end(self, conversation: EndedConversation) -> None:
        self.ended.append(conversation)


def said(ids: list[int]) -> Replies:
    replies = Replies.from_ids([[5]], [ids])
    replies.log_probs = torch.zeros(replies.response_ids.shape)
    return replies


class Trial:
    """Two environments, of which the first one talks."""

    def __init__(self, both_learn: bool) -> None:
        end = EndOfTurn(make_tokenizer(), [END]) if both_learn else None
        self.kept = Kept()
        self.running = RunningConversations(cast(Any, self.kept), 2, GroupSettings(), True, partners_end=end)

    def agent_says(self, ids: list[int]) -> None:
        self.running.add(Speech(np.zeros((2, 1)), np.array([0]), said(ids), 0.0, 0.0))

    def partner_says(self, ids: list[int]) -> None:
        speech = Speech(np.zeros((2, 1)), np.zeros(0, dtype=int), None, 0.0, 0.0)
        speech.partner_rows, speech.partner_replies = np.array([0]), said(ids)
        self.running.add(speech)

    def ended(self) -> list[list[list[float]]]:
        """What was earned by each token of each utterance of each side."""
        self.running.end(0, {"ended_by": "max_turns"}, 0.0)
        return [[each.tolist() for each in conversation.earned] for conversation in self.kept.ended]


@pytest.mark.parametrize("partner_opens", [False, True])
def test_both_sides_get_the_payments_of_a_turn(partner_opens: bool) -> None:
    trial = Trial(both_learn=True)
    if partner_opens:
        trial.partner_says([9, 9, END])
    for turn, earlier in enumerate([[], [], [10.0, 20.0, 30.0]]):
        trial.agent_says([7, 8, END])
        trial.partner_says([6, END])
        trial.running.pay(0, np.array([1.0, 0.0, 2.0 + turn]), np.array(earlier))
    agent, partner = trial.ended()
    assert agent == [[1.0, 0.0, 12.0], [1.0, 0.0, 23.0], [1.0, 0.0, 34.0]]
    opening = [[0.0, 0.0, 0.0]] if partner_opens else []
    assert partner == [*opening, [0.0, 13.0], [0.0, 24.0], [0.0, 35.0]], "nothing for what opened the conversation"


def test_one_side_gets_the_payments_of_its_turns() -> None:
    trial = Trial(both_learn=False)
    for turn in range(2):
        trial.agent_says([7, END])
        trial.running.pay(0, np.array([0.5, 1.0 + turn]), np.array([10.0, 20.0] if turn else []))
    assert trial.ended() == [[[0.5, 11.0], [0.5, 22.0]]]
    assert trial.running.stats.episodes == [{"r": 34.0, "l": 4.0}]


def test_partner_is_cut_where_no_end_of_an_utterance_was_said() -> None:
    trial = Trial(both_learn=True)
    for ids in ([6, END], [6, 6]):
        trial.agent_says([7, END])
        trial.partner_says(ids)
        trial.running.pay(0, np.zeros(2), np.zeros(0))
    trial.ended()
    assert [conversation.cut for conversation in trial.kept.ended] == [[False, False], [False, True]]


def collected(collector: RolloutCollector, parts: list[RewardPart], n_iterations: int = 1) -> Any:
    """An algorithm after some rollouts without any training in between."""
    tokenizer = make_tokenizer()
    env = make_env(tokenizer, reward_parts=parts)
    algorithm = PPO(
        policy_class_of(make_gpt2(tokenizer)),
        DummyVecEnv([lambda: UtteranceView(env)]),
        n_steps=24,
        batch_size=24,
        policy_kwargs={"model": make_gpt2(tokenizer), "end_of_turn": env.end_of_turn},
        seed=0,
        collector=collector,
        kl_controller=FixedKLController(0.7),
    )
    # Away from the reference, so that there is a KL to pay for.
    for parameter in algorithm.policy.language_model.parameters():
        parameter.data *= 1.1
    _, callback = algorithm._setup_learn(10**6)
    for _ in range(n_iterations):
        algorithm.collect_rollouts(algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
    return algorithm


def test_rewards_of_an_episode_are_its_normalized_score_less_the_kl() -> None:
    parts = [RewardPart("words", 1.0, n_words_reward)]
    plain, normalized = (
        collected(RolloutCollector(TaskRewards(parts), normalizer=n), parts)
        for n in (None, RewardNormalizer("batch", clip=(-1.0, 1.0)))
    )
    earned = [u.task_rewards.sum() for u in rows_of(plain.rollout_buffer)]
    expected = np.clip((earned - np.mean(earned)) / np.std(earned), -1.0, 1.0)
    utterances = rows_of(normalized.rollout_buffer)
    assert [u.response_ids.tolist() for u in utterances] == [
        u.response_ids.tolist() for u in rows_of(plain.rollout_buffer)
    ]
    assert [u.task_rewards.sum() for u in utterances] == pytest.approx(expected, abs=1e-5)
    kl = np.array([(u.log_probs - u.ref_log_probs).sum() for u in utterances])
    assert abs(kl).max() > 1e-3
    assert [u.rewards.sum() for u in utterances] == pytest.approx(expected - 0.7 * kl, abs=1e-5)
    assert normalized.logger.name_to_value["rollout/task_reward"] == pytest.approx(np.mean(earned))


def test_weights_follow_the_iteration_and_plain_environments_pay_the_same_at_first() -> None:
    parts = [RewardPart("words", Linear(1.0, 2.0, 2), n_words_reward, clip=(0.0, 2.5))]
    by_env = rows_of(collected(RolloutCollector(), parts).rollout_buffer)
    first, second = (rows_of(collected(RolloutCollector(TaskRewards(parts)), parts, n).rollout_buffer) for n in (1, 2))
    assert max(u.task_rewards.max() for u in first) == 2.5
    for u, v in zip(by_env, first, strict=True):
        np.testing.assert_allclose(u.task_rewards, v.task_rewards, rtol=1e-6)
    for u in second:
        own = [0.1 * (id % 5) for id in u.response_ids]
        own[-1] += len(u.response_ids)
        np.testing.assert_allclose(u.task_rewards, 2.0 * np.clip(own, 0.0, 2.5), rtol=1e-6)


def test_numbers_of_the_infos_are_logged_and_unknown_ones_refused() -> None:
    parts = [RewardPart("words", 1.0, n_words_reward)]
    algorithm = collected(RolloutCollector(TaskRewards(parts), log_infos=["utterance_truncated"]), parts)
    logged = algorithm.logger.name_to_value
    assert logged["rollout/info/utterance_truncated"] == logged["rollout/cut_replies"]
    with pytest.raises(ConfigError, match=r"have no number 'utterance_cut'.*\(they have: .*utterance_truncated"):
        collected(RolloutCollector(TaskRewards(parts), log_infos=["utterance_cut"]), parts)


class Watching(BaseCallback):
    """Keeps what stable-baselines3's callbacks read."""

    def _on_training_start(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        self.seen.append({name: self.locals[name] for name in ("actions", "rewards", "dones", "infos", "new_obs")})
        return len(self.seen) < 2


def test_callbacks_read_each_step_and_may_end_the_rollout() -> None:
    parts = [RewardPart("words", 1.0, n_words_reward)]
    algorithm = collected(RolloutCollector(TaskRewards(parts)), parts, n_iterations=0)
    callback = Watching()
    callback.init_callback(algorithm)
    callback.on_training_start({}, {})
    arguments = (algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
    assert algorithm.collect_rollouts(*arguments) is False
    assert len(callback.seen) == 2 and algorithm.num_timesteps == 0
    step = callback.seen[0]
    assert step["rewards"] == pytest.approx([step["infos"][0]["reward_parts"]["words"].sum()])
    assert step["actions"].shape[0] == len(step["dones"]) == len(step["new_obs"]["prompt_ids"]) == 1


def test_stop_that_was_requested_begins_no_rollout() -> None:
    parts = [RewardPart("words", 1.0, n_words_reward)]
    algorithm = collected(RolloutCollector(TaskRewards(parts)), parts, n_iterations=0)
    algorithm.stop_requested = True
    callback = Watching()
    callback.init_callback(algorithm)
    callback.on_training_start({}, {})
    arguments = (algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
    assert algorithm.collect_rollouts(*arguments) is False
    assert callback.seen == [] and not algorithm.stop_requested


INFO: dict[str, Any] = {
    "utterance_truncated": True,
    "speed": np.float32(2.5),
    "sample_id": "a",
    "reward_parts": {"words": np.zeros(2)},
    "hopeless": float("nan"),
    "meta_info": {"act": 3, "speed": 9.0, "history": ["x"]},
}


def test_numbers_of_an_info_hide_those_of_its_meta_info() -> None:
    assert numbers_in(INFO) == {"utterance_truncated": 1.0, "speed": 2.5, "act": 3.0}
    assert numbers_in({"reward_parts": {}}) == {}


def test_named_numbers_are_gathered_where_they_are() -> None:
    numbers, series = InfoNumbers(["act", "late"]), {"rollout/info/act": [], "rollout/info/late": []}
    numbers.add([INFO, {"late": 0, "meta_info": None}], series)
    assert series == {"rollout/info/act": [3.0], "rollout/info/late": [0.0]}
    numbers.check({"rollout/info/act": 3.0, "rollout/info/late": 0.0}, iteration=1)


def test_unknown_name_is_told_after_the_first_iteration_only() -> None:
    numbers = InfoNumbers(["sped"])
    numbers.add([INFO], {})
    with pytest.raises(ConfigError, match=r"'sped'; did you mean 'speed'\? \(they have: act, speed, utterance"):
        numbers.check({}, iteration=1)
    numbers.check({}, iteration=2)


def test_resumed_run_is_not_ended_by_a_name_that_its_first_iteration_lacks() -> None:
    InfoNumbers(["rare"]).check({}, iteration=7)


def test_a_rollout_of_failures_is_stopped_and_names_the_cause() -> None:
    stats = RolloutStats(n_masked=100)
    with pytest.raises(PartnerError, match=r"the partner failed in 51 of the first 100 .*partner_on_error: raise"):
        check_progress(stats, n_partner_failed=51)
    with pytest.raises(RewardError, match=r"the reward failed for each of the first 100 .*on_error: raise"):
        check_progress(stats, n_partner_failed=50)
    stats.last_failure = "HTTP status 401"
    with pytest.raises(
        RewardError, match=r"nothing to train on with reward_fn\.on_error: mask; the last failure: HTTP status 401"
    ):
        check_progress(stats, n_partner_failed=50)


def test_a_rollout_goes_on_while_few_failed_or_one_succeeded() -> None:
    check_progress(RolloutStats(n_masked=99), n_partner_failed=99)
    check_progress(RolloutStats(n_masked=500, episodes=[{"r": 1.0, "l": 3.0}]), n_partner_failed=0)
