"""RLOO and GRPO against loops over replies and tokens."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from grouped import BETA, collect, groups_of, make_group_algorithm
from tiny import make_gpt2, make_t5, make_tokenizer, reply_log_probs

from rl4dialog.algorithms.on_policy.critic_free import GRPO, RLOO
from rl4dialog.partners.scripted import ScriptedPartner


@pytest.mark.parametrize("algorithm", [RLOO, GRPO])
def test_groups_are_whole_and_answer_one_prompt(algorithm):
    trained = make_group_algorithm(algorithm, make_gpt2(make_tokenizer()))
    for reset in (True, False, False):
        groups = groups_of(collect(trained, reset))
        assert {len(members) for members in groups.values()} == {4}
        for members in groups.values():
            assert len({tuple(u.prompt_ids.tolist()) for u in members}) == 1
        assert len({tuple(u.response_ids.tolist()) for members in groups.values() for u in members}) > 4


KL = [(RLOO, "reward", "k1"), (RLOO, "loss", "k2"), (GRPO, "reward", "k1"), (GRPO, "loss", "k3"), (GRPO, "loss", "k1")]
MODELS = {"gpt2": make_gpt2, "t5": partial(make_t5, n_spare=0)}


@pytest.mark.parametrize(
    ("architecture", "algorithm", "kl_in", "estimator"), [(("gpt2", "t5")[i % 2], *each) for i, each in enumerate(KL)]
)
def test_update_equals_a_loop_over_replies(architecture, algorithm, kl_in, estimator):
    model = MODELS[architecture](make_tokenizer())
    trained = make_group_algorithm(algorithm, model, kl_in=kl_in, kl_estimator=estimator)
    # Away from the reference, so that the KL is not zero.
    for parameter in trained.policy.actor_parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    utterances = collect(trained)
    policy = copy.deepcopy(trained.policy.language_model)

    losses = []
    for members in groups_of(utterances).values():
        rewards = []
        for u in members:
            penalty = sum(u.log_probs - u.ref_log_probs) if kl_in == "reward" else 0.0
            rewards.append(float(sum(u.task_rewards) - BETA * penalty))
        for i, u in enumerate(members):
            others = [reward for j, reward in enumerate(rewards) if j != i]
            if algorithm is RLOO:
                advantage = rewards[i] - sum(others) / len(others)
            else:
                advantage = (rewards[i] - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-4)
            np.testing.assert_allclose(u.advantages, advantage, rtol=1e-4, atol=1e-5)
            prompt, reply = u.prompt_ids.tolist(), u.response_ids.tolist()
            for t, log_prob in enumerate(reply_log_probs(policy, prompt, reply)):
                loss = -advantage * (log_prob - float(u.log_probs[t])).exp()
                if kl_in == "loss":
                    log_ratio = log_prob - float(u.ref_log_probs[t])
                    kl = {"k1": log_ratio, "k2": log_ratio**2 / 2, "k3": (-log_ratio).exp() - 1 + log_ratio}[estimator]
                    loss = loss + BETA * kl
                losses.append(loss)
    torch.stack(losses).mean().backward()

    trained.train()
    ours = list(trained.policy.actor_parameters())
    assert trained.logger.name_to_value["train/loss"] == pytest.approx(
        float(torch.stack(losses).mean()), rel=1e-3, abs=1e-5
    )
    for mine, theirs in zip(ours, policy.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def test_conversations_of_several_turns_are_compared_as_wholes():
    tokenizer = make_tokenizer()
    partner = {"partner": ScriptedPartner(["w7", "w8"]), "max_turns": 3, "max_prompt_length": 30}
    trained = make_group_algorithm(RLOO, make_gpt2(tokenizer), env_kwargs=partner)
    utterances = collect(trained)
    for members in groups_of(utterances).values():
        assert len({u.episode for u in members}) == 4
        totals = {
            episode: sum(u.rewards.sum() for u in members if u.episode == episode)
            for episode in {u.episode for u in members}
        }
        for u in members:
            others = [total for episode, total in totals.items() if episode != u.episode]
            np.testing.assert_allclose(u.advantages, totals[u.episode] - np.mean(others), rtol=1e-4, atol=1e-4)
