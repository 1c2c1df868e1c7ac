"""What surrounds a rollout: the KL controller, seeds, and checks of arguments."""

import math

import numpy as np
import pytest
import torch
from collected import collected, make
from feature_rows import rows_of_features
from pydantic import TypeAdapter, ValidationError
from rows import one_row, rows_of
from runs import make_config
from stable_baselines3.common.callbacks import BaseCallback
from tiny import make_gpt2, make_tokenizer
from two_processes import in_two_processes

from rl4dialog.algorithms.on_policy import rollout_mixin
from rl4dialog.algorithms.on_policy.critic_free import GRPO, RLOO, Reinforce
from rl4dialog.algorithms.on_policy.ppo import A2C, NLPO, PPO
from rl4dialog.algorithms.on_policy.rollout_mixin import OnPolicyArguments
from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.algorithms.schedules import as_schedule
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.distributed import process_index
from rl4dialog.rollouts.kl_controllers import KLController
from rl4dialog.training.building.components import check_components

DEVICE = TypeAdapter(OnPolicyArguments.__annotations__["device"], config={"arbitrary_types_allowed": True})


@pytest.mark.parametrize(
    ("name", "message"),
    [("cpu:1", "a device of this machine"), ("cuda:99", "a device of this machine"), ("gpu", "mps")],
)
def test_other_devices_are_refused(name, message):
    assert DEVICE.validate_python("auto") == "auto" and DEVICE.validate_python("cpu:0") == "cpu:0"
    with pytest.raises(ValidationError, match=message):
        DEVICE.validate_python(name)


class Recorder(KLController):
    """Keeps what it is told, and raises its price by a half."""

    def __init__(self, coeff):
        super().__init__(coeff)
        self.told = []

    def step(self, kl, n_tokens):
        self.told.append((kl, n_tokens))
        self.coeff *= 1.5


def make_ppo(controller=None, algorithm=PPO, n_envs=2, model_seed=0, **kwargs):
    model = make_gpt2(make_tokenizer(), model_seed)
    settings = {"batch_size": 16, "learning_rate": 1e-2, "seed": None, **kwargs}
    return make(algorithm, n_envs=n_envs, model=model, kl_controller=controller, **settings)


def test_kl_controller_is_told_the_kl_per_token_after_its_price_was_charged():
    controller = Recorder(0.2)
    algorithm = make_ppo(controller)
    _, callback = algorithm._setup_learn(10**6)
    for iteration in (1, 2):
        algorithm.collect_rollouts(algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
        stored = rows_of(algorithm.rollout_buffer)
        kls = [float(kl) for u in stored for kl in u.unmasked_log_probs - u.ref_log_probs]
        kl, n_tokens = controller.told[-1]
        assert n_tokens == len(kls) > len(stored)
        assert kl == pytest.approx(sum(kls) / len(kls), rel=1e-4, abs=1e-7)
        price = 0.2 * 1.5 ** (iteration - 1)
        assert algorithm.logger.name_to_value["rollout/kl_coeff"] == pytest.approx(price)
        for u in stored:
            charged = u.task_rewards - u.rewards
            assert charged == pytest.approx(price * (u.unmasked_log_probs - u.ref_log_probs), abs=1e-6)
        algorithm.train()
    assert len(controller.told) == 2 and abs(controller.told[1][0]) > 1e-3


OF_MINIBATCHES = {"n_epochs": 2, "batch_size": 16}
STEPS = {
    **{algorithm: OF_MINIBATCHES for algorithm in (PPO, NLPO, Reinforce)},
    **{algorithm: {**OF_MINIBATCHES, "n_generations": 2} for algorithm in (RLOO, GRPO)},
    A2C: {"learning_rate": 1e-3},
}


def updated(algorithm=PPO, step_back=2.0, **kwargs):
    """An algorithm after one update, with its policy's weights before and after it."""
    kwargs = {"target_kl": 0.01, "n_envs": 4, "learning_rate": 0.01, **STEPS[algorithm], **kwargs}
    trained = collected(algorithm, step_back=step_back, **kwargs)
    before = trained.policy.copied_weights()
    trained.train()
    return trained, before, trained.policy.copied_weights()


def flat(weights):
    return torch.cat([each.flatten() for each in weights.tensors().values()])


def exact_kl(trained, before, every):
    """Mean KL(policy || before) at the tokens of one in ``every`` rows, summed over the vocabulary in a loop."""
    total, n_tokens = 0.0, 0
    for row in rows_of(trained.rollout_buffer)[::every]:
        of_row = one_row(row.prompt_ids, row.response_ids).observations
        new = trained.policy.get_distribution(of_row).distribution.probs
        with before.in_place():
            old = trained.policy.get_distribution(of_row).distribution.probs
        total += sum(p * math.log(p / q) for p, q in zip(new.flatten().tolist(), old.flatten().tolist(), strict=True))
        n_tokens += len(new)
    return total / n_tokens


@pytest.mark.parametrize("algorithm", STEPS)
def test_step_that_leads_too_far_is_halved_until_it_does_not(algorithm):
    free, start, far = updated(algorithm, step_back=None)
    limited, before, near = updated(algorithm)
    n_halvings = int(limited.logger.name_to_value["train/step_halvings"])
    assert 1 <= n_halvings < rollout_mixin.MAX_HALVINGS and torch.equal(flat(start), flat(before))
    torch.testing.assert_close(flat(near) - flat(before), (flat(far) - flat(before)) / 2**n_halvings)
    assert limited._kl_from(before) <= 0.02 < limited.logger.name_to_value["train/update_kl"]
    assert "train/update_kl" not in free.logger.name_to_value
    critics = ([p.detach().flatten() for p in each.policy.critic_parameters()] for each in (free, limited))
    assert all(torch.equal(*pair) for pair in zip(*critics, strict=True)), "critics keep their update"


def test_look_sees_the_whole_vocabulary_at_evenly_spaced_rows(monkeypatch):
    trained, before, _ = updated(learning_rate=1e-3, step_back=1e6)
    assert trained.logger.name_to_value["train/step_halvings"] == 0
    expected = pytest.approx(exact_kl(trained, before, every=1), rel=1e-3)
    assert trained._kl_from(before) == trained.logger.name_to_value["train/update_kl"] == expected
    monkeypatch.setattr(rollout_mixin, "MIN_TOKENS_LOOKED_AT", trained.rollout_buffer.n_tokens // 2)
    assert trained._kl_from(before) == pytest.approx(exact_kl(trained, before, every=2), rel=1e-3) != expected


def test_step_that_stays_too_far_is_not_taken_and_a_small_one_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(rollout_mixin, "MAX_HALVINGS", 1)
    _, before, after = updated()
    assert torch.equal(flat(before), flat(after))
    monkeypatch.setattr(PPO, "_kl_from", lambda *args: math.nan)
    _, before, after = updated(step_back=1e6)
    assert torch.equal(flat(before), flat(after)), "a KL that is not a number is too far"
    monkeypatch.undo()
    (_, _, free), (_, _, limited) = updated(step_back=None), updated(step_back=1e6)
    assert torch.equal(flat(free), flat(limited))


def test_processes_halve_together(tmp_path):
    def work(number):
        trained, _, after = updated()
        logged = trained.logger.name_to_value
        return logged["train/update_kl"], logged["train/step_halvings"], flat(after).tolist()

    first, second = in_two_processes(work, tmp_path)
    assert first == second and first[1] > 0


@pytest.mark.parametrize(
    ("algorithm", "args", "words"),
    [
        (PPO, {"step_back": 3.0}, "step_back has no effect without alg.args.target_kl"),
        (A2C, {"step_back": 3.0}, "step_back has no effect without alg.args.target_kl"),
        (TRPO, {"step_back": 3.0}, "step_back has no meaning: trpo finds its step with a line search"),
        (GRPO, {"dual_clip": 3.0, "surrogate": "cispo"}, "dual_clip has no effect with alg.args.surrogate: cispo"),
    ],
)
def test_limits_of_a_step_without_meaning_are_refused(algorithm, args, words):
    with pytest.raises(ConfigError, match=words):
        algorithm.check_arguments(args, 4)


class Pairs(PPO):
    group_size = 2


def test_environments_of_a_group_draw_alike_and_others_do_not():
    assert make_ppo(algorithm=Pairs, n_envs=4, seed=7).env._seeds == [7, 7, 8, 8]
    assert make_ppo(n_envs=4, seed=7).env._seeds == [7, 8, 9, 10]
    unseeded = make_ppo(algorithm=Pairs, n_envs=4)
    unseeded.set_random_seed(None)
    first, again, second, _ = unseeded.env._seeds
    assert (again, second) == (first, first + 1)


def test_processes_start_from_one_policy_and_draw_prompts_and_numbers_of_their_own(tmp_path):
    def work(number):
        trained = make_ppo(n_envs=2, seed=7, model_seed=number)
        drawn = torch.initial_seed()
        weight = next(trained.policy.actor_parameters())
        return trained.env._seeds, weight.detach().flatten()[:5].tolist(), drawn

    (first_seeds, first_weights, first_drawn), (seeds, weights, drawn) = in_two_processes(work, tmp_path)
    assert (first_seeds, seeds) == ([7, 8], [9, 10]), "environments are numbered over all processes"
    assert first_weights == weights
    assert (first_drawn, drawn) == (7, 8)


def test_processes_without_a_seed_agree_on_one(tmp_path):
    def work(number):
        trained = make_ppo(n_envs=1)
        trained.set_random_seed(None)
        return trained.env._seeds

    first, second = in_two_processes(work, tmp_path)
    assert second == [first[0] + 1]


@pytest.mark.parametrize("sharded", [True, False])
def test_policy_is_sharded_where_asked(monkeypatch, sharded):
    done = []
    monkeypatch.setattr(rollout_mixin, "shard_policy", done.append)
    trained = make_ppo(sharded=sharded)
    assert done == [trained.policy] * sharded


class Stops(BaseCallback):
    """Ends the rollout of the second process at its first step."""

    def _on_step(self):
        return process_index() == 0


def test_process_whose_callback_stops_finishes_its_rollout_and_none_begins_another(tmp_path):
    def work(number):
        trained = make_ppo()
        trained._setup_learn(10**6)
        callback = Stops()
        callback.init_callback(trained)
        arguments = (trained.env, callback, trained.rollout_buffer, trained.n_steps)
        went_on = [trained.collect_rollouts(*arguments)]
        requested = trained.stop_requested
        return [*went_on, requested, trained.collect_rollouts(*arguments), trained.stop_requested]

    assert in_two_processes(work, tmp_path) == ([True, False, False, False], [True, True, False, False])


def test_timesteps_are_those_that_were_asked_for_and_episodes_are_kept_as_a_monitor_does():
    trained = make_ppo(seed=0)
    _, callback = trained._setup_learn(10**6)
    assert trained.iteration == 0
    for iteration in (1, 2):
        assert trained.collect_rollouts(trained.env, callback, trained.rollout_buffer, trained.n_steps) is True
        assert (trained.num_timesteps, trained.iteration) == (32 * iteration, iteration)
    logged = dict(trained.logger.name_to_value)
    newest = list(trained.ep_info_buffer)[-int(logged["rollout/n_episodes"]) :]
    assert sum(episode["l"] for episode in newest) == logged["rollout/tokens"] == trained.rollout_buffer.n_tokens
    assert np.mean([episode["r"] for episode in newest]) == pytest.approx(logged["rollout/task_reward"], rel=1e-5)
    assert {"time/generate_s", "time/evaluate_s", "time/score_s"} <= set(logged)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"start": 2.0}, [2.0, 1.5, 1.0, 0.0]),
        ({"start": 2.0, "end": 1.0}, [2.0, 1.75, 1.5, 1.0]),
        ({"start": 2.0, "schedule": "cosine"}, [2.0, 1 + math.cos(math.pi / 4), 1.0, 0.0]),
        ({"start": 2.0, "schedule": "constant"}, [2.0] * 4),
        ({"start": 2.0, "warmup": 0.5}, [2.0, 1.0, 2.0, 0.0]),
        ({"start": 2.0, "schedule": "constant", "warmup": 0.5}, [2.0, 1.0, 2.0, 2.0]),
        ({"start": 2.0, "end": 1.0, "schedule": "cosine", "warmup": 0.25}, [2.0, 2.0, 1.75, 1.0]),
    ],
)
def test_values_follow_the_progress(settings, expected):
    value = as_schedule(settings, "learning_rate")
    assert [value(1 - done) for done in (0, 0.25, 0.5, 1)] == pytest.approx(expected)


SCHEDULES = ({"start": 0.01}, {"start": 0.01, "end": 1e-3, "schedule": "cosine", "warmup": 0.5})


@pytest.mark.parametrize("settings", SCHEDULES)
@pytest.mark.parametrize(("n_iters", "is_start"), [(1, True), (3, False)])
def test_the_only_iteration_of_a_run_has_the_start_of_its_schedules(settings, n_iters, is_start, tmp_path):
    others = [make(tmp_path, settings) for make in rows_of_features("WITH_LEARNING_RATE")]
    for algorithm in (make_ppo(learning_rate=settings, n_epochs=1), *others):
        algorithm.learn(n_iters * algorithm.timesteps_per_iteration, log_interval=None)
        rate = algorithm.policy.optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(0.01 if is_start else settings.get("end", 0))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("learning_rate", {"start": 1e-4, "end": 1e-3}, r"learning_rate\.end is 0\.001, above start = 0\.0001"),
        ("learning_rate", {"start": 1e-4, "end": 0.0, "schedule": "constant"}, r"learning_rate\.end has no effect"),
        ("learning_rate", {"end": 1e-3}, r"alg\.args\.learning_rate"),
        ("learning_rate", {"start": 1e-4, "warm_up": 0.1}, r"alg\.args\.learning_rate"),
        ("learning_rate", {"start": 1e-4, "warmup": 1.0}, r"alg\.args\.learning_rate"),
        ("clip_range", {"start": 0.2}, r"clip_range cannot have end: 0, where every ratio is clipped"),
        ("clip_range", {"start": 0.2, "end": 0.1, "warmup": 0.1}, r"clip_range cannot have warmup: it would begin at"),
        ("clip_range_high", {"start": 0.3, "end": 0.1}, r"clip_range_high is 0\.1, below alg\.args\.clip_range = 0\.2"),
        ("ent_coef", {"start": 0.3, "end": 0.1}, r"alg\.args\.ent_coef"),
    ],
)
def test_schedules_without_meaning_are_refused(tmp_path, name, value, words):
    config = make_config(tmp_path, **{f"alg__args__{name}": value})
    with pytest.raises(ConfigError, match=words):
        check_components(parse_config(config, "test"))


def test_config_accepts_schedules(tmp_path):
    args = {
        "alg__args__learning_rate": {"start": 1e-4, "end": 0, "schedule": "cosine", "warmup": 0.1},
        "alg__args__clip_range": {"start": 0.2, "end": 0.1},
        "alg__args__clip_range_high": {"start": 0.3, "end": 0.1, "schedule": "linear"},
        "alg__args__clip_range_vf": {"start": 5, "schedule": "constant"},
    }
    check_components(parse_config(make_config(tmp_path, **args), "test"))
