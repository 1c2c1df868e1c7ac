"""The golden rule: on one rollout, our update over whole replies is that of stable-baselines3 over single tokens."""

import copy

import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch
from collected import collect
from conversing import conversation_env, conversation_tokenizer, ending_often
from covering import covering, quick
from rows import one_row, rows_of
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import MODELS, make_env, make_gpt2, make_policy, make_tokenizer, maskable_class_of, policy_class_of
from torch.nn.attention import SDPBackend, sdpa_kernel

from rl4dialog.algorithms.on_policy.ppo import A2C, NLPO, PPO
from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.text.end_of_turn import EndOfTurn

SETTINGS = {
    "n_epochs": 1,
    "gamma": 0.97,
    "gae_lambda": 0.9,
    "ent_coef": 0.03,
    "vf_coef": 0.4,
    "clip_range_vf": 0.5,
    "max_grad_norm": 0.5,
    "learning_rate": 1e-3,
    "seed": 3,
    "device": "cpu",
}


CRITICS = ("separate", "shared")
ENDS = [0, 8, 12]
"""Several end-of-sequence ids, so that some replies end and others are cut."""


class ReplayMixin:
    """Says what it is told, and scores it itself, token by token."""

    script: list[int]

    def forward(self, obs, deterministic=False):
        logits, values = self._logits_and_values(obs)
        action = torch.tensor([self.script.pop(0)])
        return action, values.unsqueeze(1), logits.log_softmax(-1).gather(1, action[:, None])[:, 0]


def single_reply_env():
    tokenizer = make_tokenizer()
    return make_env(tokenizer, end_of_turn=EndOfTurn(tokenizer, ENDS))


def after_rollout(
    model, critic, bootstrap, algorithm=PPO, env=single_reply_env, n_steps=40, join_turns=True, **overrides
):
    """Ours after a rollout, and class and arguments of a vanilla policy and algorithm like it."""
    policy_kwargs = {"end_of_turn": env().end_of_turn, "critic": critic, **overrides.pop("policy_kwargs", {})}
    policy_class = overrides.pop("policy_class", policy_class_of(model))
    settings = {name: value for name, value in {**SETTINGS, "batch_size": 40, **overrides}.items() if value is not None}
    ours = algorithm(
        policy_class,
        DummyVecEnv([lambda: UtteranceView(env())]),
        n_steps=n_steps,
        join_turns=join_turns,
        policy_kwargs={"model": copy.deepcopy(model), **policy_kwargs},
        collector=RolloutCollector(bootstrap_truncated=bootstrap),
        **settings,
    )
    torch.nn.init.normal_(ours.policy._value_head.output.weight, std=0.2)
    collect(ours)
    settings["n_steps"] = ours.rollout_buffer.n_tokens
    if "batch_size" in settings:
        settings["batch_size"] = ours.batch_size = ours.rollout_buffer.n_tokens
    settings["policy_kwargs"] = {"model": copy.deepcopy(model), **policy_kwargs}
    return ours, policy_class, settings


def pair(model, critic, bootstrap, algorithms=(PPO, stable_baselines3.PPO), env=single_reply_env, **further):
    """Ours after a rollout, and vanilla after stepping through the same one."""
    ours, policy_class, settings = after_rollout(model, critic, bootstrap, algorithms[0], env, **further)
    vanilla = algorithms[1](type("ReplayPolicy", (ReplayMixin, policy_class), {}), DummyVecEnv([env]), **settings)
    vanilla.policy.load_state_dict(copy.deepcopy(ours.policy.state_dict()))
    vanilla.policy.script = [int(t) for u in rows_of(ours.rollout_buffer) for t in u.response_ids]
    _, callback = vanilla._setup_learn(10**6)
    vanilla.collect_rollouts(vanilla.env, callback, vanilla.rollout_buffer, vanilla.n_steps)
    return ours, vanilla


def assert_same_rollout(ours, vanilla):
    stored = rows_of(ours.rollout_buffer)
    replies = ours.rollout_buffer.replies.per_reply("response_ids")
    ended = [ours.policy.end_of_turn.is_end(reply.tolist()) for reply in replies]
    assert 0 < sum(ended) < len(ended), "both ways of ending a reply must occur"
    # Not the rewards: vanilla adds the bootstrapped value to them, ours keeps it apart.
    for name in ("log_probs", "values", "advantages", "returns"):
        mine = np.concatenate([getattr(u, name) for u in stored])
        theirs = getattr(vanilla.rollout_buffer, name).flatten()
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5, err_msg=name)


def assert_same_update(ours, vanilla, keys):
    ours.train()
    vanilla.train()
    for key in keys:
        mine, theirs = (a.logger.name_to_value[f"train/{key}"] for a in (ours, vanilla))
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6), key
    for (name, p), q in zip(ours.policy.named_parameters(), vanilla.policy.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=name)


PPO_KEYS = ("policy_gradient_loss", "value_loss", "entropy_loss", "loss", "clip_fraction", "explained_variance")


@pytest.mark.parametrize(("model", "critic"), covering(MODELS, CRITICS), indirect=["model"])
def test_full_batch_update_of_ppo_equals_vanilla_token_by_token(model, critic):
    ours, vanilla = pair(model, critic, bootstrap=True)
    assert_same_rollout(ours, vanilla)
    assert_same_update(ours, vanilla, PPO_KEYS)


def conversations_env():
    return conversation_env(conversation_tokenizer())


@pytest.mark.parametrize(
    ("architecture", "join_turns", "critic"), covering(("gpt2", "llama", "t5"), (True, False), CRITICS)
)
def test_full_batch_update_over_conversations_equals_vanilla_token_by_token(architecture, join_turns, critic):
    """Conversations of one, three and six turns, with a partner that leaves at random."""
    model = ending_often(MODELS[architecture](conversation_tokenizer()))
    ours, vanilla = pair(model, critic, True, env=conversations_env, n_steps=120, join_turns=join_turns, seed=5)
    replies = ours.rollout_buffer.replies
    turns, episodes = replies.flat("turn").numpy(), replies.token_episodes()
    n_turns = [int(turns[episodes == episode].max()) + 1 for episode in range(episodes.max() + 1)]
    assert {1, 3, 6} <= set(n_turns) and (replies.last_value != 0).any()
    is_joined = join_turns and not model.config.is_encoder_decoder
    assert (len(replies) < sum(n_turns)) is is_joined
    assert len({len(reply) for reply in replies.per_reply("turn")}) > 1
    assert_same_rollout(ours, vanilla)
    assert_same_update(ours, vanilla, PPO_KEYS)


@pytest.mark.parametrize(
    ("model", "critic"),
    [("gpt2", "shared"), pytest.param("t5", "separate", marks=pytest.mark.long)],
    indirect=["model"],
)
def test_full_batch_update_of_a2c_equals_vanilla_token_by_token(model, critic):
    without = {"n_epochs": None, "clip_range_vf": None, "batch_size": None}
    ours, vanilla = pair(model, critic, True, (A2C, stable_baselines3.A2C), **without, normalize_advantage=True)
    assert_same_rollout(ours, vanilla)
    assert_same_update(ours, vanilla, ("policy_loss", "value_loss", "entropy_loss", "explained_variance"))


@pytest.mark.parametrize("model", quick("llama", "t5", of=MODELS), indirect=True)
def test_full_batch_update_of_nlpo_equals_vanilla_ppo_with_the_same_mask(model):
    mask = {"top_mask": 8, "mask_type": "learned_top_k"}
    algorithms = (NLPO, stable_baselines3.PPO)
    ours, vanilla = pair(model, "separate", True, algorithms, policy_class=maskable_class_of(model), policy_kwargs=mask)
    assert_same_rollout(ours, vanilla)
    assert_same_update(ours, vanilla, PPO_KEYS)


@pytest.mark.parametrize("model", quick("gpt2", "t5", of=MODELS), indirect=True)
def test_step_of_trpo_equals_that_of_sb3_contrib_token_by_token(model):
    without = dict.fromkeys(("n_epochs", "clip_range_vf", "ent_coef", "vf_coef", "max_grad_norm"))
    settings = {"cg_max_steps": 4, "cg_damping": 0.5, "n_critic_updates": 2, "target_kl": 0.02}
    ours, vanilla = pair(model, "separate", True, (TRPO, sb3_contrib.TRPO), **without, **settings)
    assert_same_rollout(ours, vanilla)
    # sb3-contrib differentiates with respect to every parameter that has no "value" in its name.
    trainable = [(name, parameter) for name, parameter in vanilla.policy.named_parameters() if parameter.requires_grad]
    vanilla.policy.named_parameters = lambda: trainable
    before = copy.deepcopy(ours.policy.state_dict())
    ours.train()
    with sdpa_kernel(SDPBackend.MATH):
        vanilla.train()
    assert ours.logger.name_to_value["train/is_line_search_success"] == 1
    for key in ("policy_objective", "kl_divergence_loss", "value_loss"):
        mine, theirs = (a.logger.name_to_value[f"train/{key}"] for a in (ours, vanilla))
        assert mine == pytest.approx(theirs, rel=2e-2, abs=1e-5), key
    for name, weight in vanilla.policy.state_dict().items():
        step, wanted = ours.policy.state_dict()[name] - before[name], weight - before[name]
        # Conjugate gradients amplify the last digits.
        torch.testing.assert_close(step, wanted, rtol=5e-2, atol=2e-4, msg=name)
    moved = {name for name, weight in before.items() if not torch.equal(weight, ours.policy.state_dict()[name])}
    assert any(name.startswith("_policy_model") for name in moved)
    assert any(name.startswith("_value_head.trunk") for name in moved)


def test_without_bootstrap_vanilla_differs_only_by_the_value_at_the_cut():
    ours, vanilla = pair(make_gpt2(make_tokenizer()), "shared", bootstrap=False)
    differs = [not np.allclose(u.returns[-1], u.rewards[-1], atol=1e-5) for u in rows_of(ours.rollout_buffer)]
    assert not any(differs), "without bootstrap the last return is the last reward"
    assert not np.allclose(
        np.concatenate([u.returns for u in rows_of(ours.rollout_buffer)]),
        vanilla.rollout_buffer.returns.flatten(),
        atol=1e-3,
    )


@pytest.mark.parametrize("model", quick("gpt2", "bart", of=MODELS), indirect=True)
def test_update_equals_vanilla_train_on_the_same_minibatches(model):
    ours, _, _ = after_rollout(model, "separate", bootstrap=False)
    ours.batch_size, ours.n_epochs = 12, 3
    state = copy.deepcopy(ours.policy.state_dict())
    np.random.seed(0)
    ours.train()
    trained = copy.deepcopy(ours.policy.state_dict())
    ours.policy.load_state_dict(state)
    ours.policy.optimizer = ours.policy.optimizer_class(
        [*ours.policy.actor_parameters(), *ours.policy.critic_parameters()], lr=1e-3, **ours.policy.optimizer_kwargs
    )
    np.random.seed(0)
    stable_baselines3.PPO.train(ours)
    for name, weight in ours.policy.state_dict().items():
        torch.testing.assert_close(trained[name], weight, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0)])
def test_advantages_equal_those_of_sb3s_rollout_buffer(gamma, lam):
    env = UtteranceView(make_env(make_tokenizer()))
    rng = np.random.default_rng(1)
    lengths = [3, 1, 5, 4]
    ours = SequenceRolloutBuffer(1, env.observation_space, env.action_space, "cpu", lam, gamma)
    theirs = RolloutBuffer(
        sum(lengths), stable_baselines3.common.buffers.spaces.Discrete(2), env.action_space, "cpu", lam, gamma
    )
    for episode, n in enumerate(lengths):
        rewards, values = rng.normal(size=(2, n)).astype(np.float32)
        numbers = {"values": values, "rewards": rewards, "reward_scales": np.abs(rewards)}
        ours.add(one_row([1], np.ones(n), episode, **numbers))
        for t in range(n):
            theirs.add(
                np.zeros(1), np.zeros((1, 5)), rewards[t], np.array([t == 0]), torch.tensor(values[t]), torch.zeros(1)
            )
    ours.compute_returns_and_advantage()
    theirs.compute_returns_and_advantage(torch.zeros(1), np.array([True]))
    mine = np.concatenate([u.advantages for u in rows_of(ours)])
    np.testing.assert_allclose(mine, theirs.advantages.flatten(), rtol=1e-5, atol=1e-6)


def test_policy_trains_with_plain_stable_baselines3():
    tokenizer = make_tokenizer()
    env = make_env(tokenizer)
    policy = make_policy(env, make_gpt2(tokenizer))
    before = {n: p.clone() for n, p in policy.named_parameters()}
    algorithm = stable_baselines3.PPO(
        CausalLMActorCriticPolicy,
        DummyVecEnv([lambda: make_env(tokenizer)]),
        n_steps=16,
        batch_size=16,
        n_epochs=1,
        seed=0,
        device="cpu",
        policy_kwargs={"model": make_gpt2(tokenizer), "end_of_turn": env.end_of_turn},
    )
    algorithm.learn(32)
    changed = {n for n, p in algorithm.policy.named_parameters() if not torch.equal(p, before[n])}
    assert any(n.startswith("_policy_model") for n in changed)
    assert any(n.startswith("_value_head.trunk") for n in changed)
    assert not any(n.startswith("_reference_model") for n in changed)
