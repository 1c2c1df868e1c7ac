"""Collecting: which rewards reach the buffer."""

import numpy as np
import pytest
from collected import make
from rows import rows_of
from stable_baselines3.common.callbacks import BaseCallback
from tiny import n_words_reward

from rl4dialog.catalog import InfoFnRegistry
from rl4dialog.core.errors import ConfigError, PartnerError, RewardError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.rollouts.collector import RolloutCollector, RolloutStats, check_progress, numbers_in
from rl4dialog.rollouts.task_rewards import RewardNormalizer, TaskRewards
from rl4dialog.scores.composite import Linear


def collected(collector, parts, n_iterations=1):
    """An algorithm after some rollouts without any training in between."""
    env, sizes = {"reward_parts": parts}, {"n_envs": 1, "n_steps": 24, "batch_size": 24}
    algorithm = make(env_kwargs=env, kl_coeff=0.7, collector=collector, **sizes)
    # Away from the reference, so that there is a KL to pay for.
    for parameter in algorithm.policy.language_model.parameters():
        parameter.data *= 1.1
    _, callback = algorithm._setup_learn(10**6)
    for _ in range(n_iterations):
        algorithm.collect_rollouts(algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
    return algorithm


def test_rewards_of_an_episode_are_its_normalized_score_less_the_kl():
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


def test_weights_follow_the_iteration_and_plain_environments_pay_the_same_at_first():
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


def test_numbers_of_the_infos_are_logged_and_unknown_ones_refused():
    parts = [RewardPart("words", 1.0, n_words_reward)]
    algorithm = collected(RolloutCollector(TaskRewards(parts), log_infos=["utterance_truncated"]), parts)
    logged = algorithm.logger.name_to_value
    assert logged["rollout/info/utterance_truncated"] == logged["rollout/cut_replies"]
    with pytest.raises(ConfigError, match=r"have no number 'utterance_cut'.*\(they have: .*utterance_truncated"):
        collected(RolloutCollector(TaskRewards(parts), log_infos=["utterance_cut"]), parts)


def test_functions_read_the_whole_rollout():
    records = []

    def seen(record):
        records.append(record)
        return {"n_turns": len(record.infos), "mean": np.mean(record.rewards)}

    parts = [RewardPart("words", 1.0, n_words_reward)]
    functions = {"returns": InfoFnRegistry.get("returns"), "seen": seen}
    algorithm = collected(RolloutCollector(TaskRewards(parts), info_fns=functions), parts)
    logged, (record,) = algorithm.logger.name_to_value, records
    earned = [u.task_rewards.sum() for u in rows_of(algorithm.rollout_buffer)]
    assert sorted(record.returns) == pytest.approx(sorted(earned)) == sorted(record.rewards)
    assert [info["reward_parts"]["words"].sum() for info in record.infos] == pytest.approx(record.rewards)
    assert record.replies.n_tokens == algorithm.rollout_buffer.replies.n_tokens
    for name, expected in (("min", np.min), ("median", np.median), ("max", np.max)):
        assert logged[f"rollout/info/returns/{name}"] == pytest.approx(expected(earned))
    assert logged["rollout/info/seen/mean"] == pytest.approx(logged["rollout/task_reward"])
    assert logged["rollout/info/seen/n_turns"] == logged["rollout/n_episodes"]
    with pytest.raises(ConfigError, match=r"logging\.info_fns: wrong failed: ZeroDivisionError"):
        collected(RolloutCollector(TaskRewards(parts), info_fns={"wrong": lambda record: {"x": 1 / 0}}), parts)


class Watching(BaseCallback):
    """Keeps what stable-baselines3's callbacks read."""

    def _on_training_start(self):
        self.seen = []

    def _on_step(self):
        self.seen.append({name: self.locals[name] for name in ("actions", "rewards", "dones", "infos", "new_obs")})
        return len(self.seen) < 2


def test_callbacks_read_each_step_and_may_end_the_rollout():
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


def test_stop_that_was_requested_begins_no_rollout():
    parts = [RewardPart("words", 1.0, n_words_reward)]
    algorithm = collected(RolloutCollector(TaskRewards(parts)), parts, n_iterations=0)
    algorithm.stop_requested = True
    callback = Watching()
    callback.init_callback(algorithm)
    callback.on_training_start({}, {})
    arguments = (algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
    assert algorithm.collect_rollouts(*arguments) is False
    assert callback.seen == [] and not algorithm.stop_requested


INFO = {
    "utterance_truncated": True,
    "speed": np.float32(2.5),
    "sample_id": "a",
    "reward_parts": {"words": np.zeros(2)},
    "hopeless": float("nan"),
    "meta_info": {"act": 3, "speed": 9.0, "history": ["x"]},
}


def test_numbers_of_an_info_hide_those_of_its_meta_info():
    assert numbers_in(INFO) == {"utterance_truncated": 1.0, "speed": 2.5, "act": 3.0}
    assert numbers_in({"reward_parts": {}}) == {}


def test_named_numbers_are_gathered_where_they_are():
    numbers, series = RolloutCollector(log_infos=["act", "late"]), {"rollout/info/act": [], "rollout/info/late": []}
    numbers.add_infos([INFO, {"late": 0, "meta_info": None}], series)
    assert series == {"rollout/info/act": [3.0], "rollout/info/late": [0.0]}
    numbers.check_infos({"rollout/info/act": 3.0, "rollout/info/late": 0.0}, iteration=1)


def test_unknown_name_is_told_after_the_first_iteration_only():
    numbers = RolloutCollector(log_infos=["sped"])
    numbers.add_infos([INFO], {})
    with pytest.raises(ConfigError, match=r"'sped'; did you mean 'speed'\? \(they have: act, speed, utterance"):
        numbers.check_infos({}, iteration=1)
    numbers.check_infos({}, iteration=2)


def test_a_rollout_of_failures_is_stopped_and_names_the_cause():
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


def test_a_rollout_goes_on_while_few_failed_or_one_succeeded():
    check_progress(RolloutStats(n_masked=99), n_partner_failed=99)
    check_progress(RolloutStats(n_masked=500, episodes=[{"r": 1.0, "l": 3.0}]), n_partner_failed=0)
