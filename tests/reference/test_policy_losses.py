"""The variants of the policy's loss against loops over replies and tokens, as their papers write them."""

import copy

import numpy as np
import pytest
import torch
from grouped import BETA, collect, groups_of, make_group_algorithm
from tiny import make_gpt2, make_tokenizer, reply_log_probs

from rl4dialog.algorithms.on_policy.critic_free import GRPO, RLOO

MAX_REPLY = 5
NARROW = {"clip_range": 0.05, "clip_range_high": 0.2}
PENALTY = {"repetition_penalty": 1.4, "top_k": 15}
VARIANTS = {
    "ppo": {"clip_range": 0.1},
    "grpo": {"clip_range": 0.1, "loss_aggregation": "sequence_mean"},
    "dr_grpo": {"clip_range": 0.1, "loss_aggregation": "constant", "scale_rewards": "none"},
    "dapo": {**NARROW, "mask_truncated": True},
    "overlong_sequences": {"mask_truncated": True, "loss_aggregation": "sequence_mean"},
    "overlong_constant": {"mask_truncated": True, "loss_aggregation": "constant"},
    "gspo": {**NARROW, "ratio": "sequence", "loss_aggregation": "sequence_mean"},
    "cispo": {**NARROW, "surrogate": "cispo"},
    "cispo_of_replies": {**NARROW, "surrogate": "cispo", "ratio": "sequence"},
    "tis": {"importance_correction": "token", "correction_cap": 1.1, "generation_kwargs": PENALTY},
    "tis_of_replies": {"importance_correction": "sequence", "correction_cap": 1.1, "generation_kwargs": PENALTY},
    "icepop": {
        "importance_correction": "token",
        **{"correction_cap": 1.25, "correction_mode": "mask", "generation_kwargs": PENALTY},
    },
    "batch": {"scale_rewards": "batch"},
}


def loss_of_reply(log_probs, old, advantage, settings):
    """Losses of the tokens of a reply, or one loss of the reply with GSPO."""
    low = 1 - settings.get("clip_range", 0.2)
    high = 1 + settings.get("clip_range_high", settings.get("clip_range", 0.2))
    ratios = (log_probs - old).exp()
    if settings.get("ratio") == "sequence":
        ratios = (log_probs.sum() - old.sum()).div(len(old)).exp().expand(len(old))
    losses = []
    for ratio, log_prob in zip(ratios, log_probs, strict=True):
        clipped = min(max(ratio.item(), low), high)
        if settings.get("surrogate") == "cispo":
            losses.append(-clipped * advantage * log_prob)
        else:
            unclipped_is_smaller = ratio.item() * advantage <= clipped * advantage
            losses.append(-(ratio if unclipped_is_smaller else torch.tensor(clipped)) * advantage)
    return torch.stack(losses)


def correction(u, settings):
    """Weights of the tokens of a reply."""
    cap, found = settings.get("correction_cap"), []
    ratios = [float(np.exp(p - q)) for p, q in zip(u.log_probs, u.sampler_log_probs, strict=True)]
    if settings["importance_correction"] == "sequence":
        ratios = [float(np.prod(ratios))] * len(ratios)
    for w in ratios:
        inside = w <= cap and w >= 1 / cap
        found.append((w if inside else 0.0) if settings.get("correction_mode") == "mask" else min(w, cap))
    return torch.tensor(found)


def aggregated(losses, aggregation):
    if aggregation == "sequence_mean":
        return torch.stack([loss.mean() for loss in losses]).mean()
    total = torch.cat(losses).sum()
    n = sum(map(len, losses)) if aggregation == "token_mean" else len(losses) * MAX_REPLY
    return total / n


@pytest.mark.parametrize("name", VARIANTS)
def test_update_equals_a_loop_over_replies(name):
    settings = VARIANTS[name]
    trained = make_group_algorithm(GRPO, make_gpt2(make_tokenizer()), micro_batch_size=3, **settings)
    utterances = collect(trained)
    assert {bool(u.cut.any()) for u in utterances} == {True, False}
    assert len({len(u.response_ids) for u in utterances}) > 2
    # Away from the rollout, so that some ratios are clipped, and from the reference.
    for parameter in trained.policy.actor_parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    policy = copy.deepcopy(trained.policy.language_model)

    totals = [float(u.rewards.sum()) for u in utterances]
    policy_losses, kl_losses, all_weights, n_clipped = [], [], [], 0
    for members in groups_of(utterances).values():
        rewards = torch.tensor([float(u.rewards.sum()) for u in members])
        scale = {"none": 1.0, "batch": torch.tensor(totals).std() + 1e-4}.get(
            settings.get("scale_rewards", "group"), rewards.std() + 1e-4
        )
        for u, reward in zip(members, rewards, strict=True):
            if settings.get("mask_truncated") and u.cut.all():
                continue
            prompt, reply = u.prompt_ids.tolist(), u.response_ids.tolist()
            log_probs = reply_log_probs(policy, prompt, reply)
            old, advantage = torch.tensor(u.log_probs), float((reward - rewards.mean()) / scale)
            weights = correction(u, settings) if "importance_correction" in settings else torch.ones(len(old))
            policy_losses.append(weights * loss_of_reply(log_probs, old, advantage, settings))
            all_weights += weights.tolist()
            log_ratio = torch.tensor(u.ref_log_probs) - log_probs
            kl_losses.append(weights * (log_ratio.exp() - 1 - log_ratio))
            n_clipped += int(((log_probs - old).exp() - 1).abs().max() > settings.get("clip_range", 0.2))
    assert n_clipped
    if name == "icepop":
        assert 0.0 in all_weights
    if name.startswith("tis"):
        assert settings["correction_cap"] == pytest.approx(max(all_weights)) and min(all_weights) < 0.95
    aggregation = settings.get("loss_aggregation", "token_mean")
    loss = aggregated(policy_losses, aggregation)
    (loss + BETA * aggregated(kl_losses, aggregation)).backward()

    trained.train()
    logged = trained.logger.name_to_value
    assert logged["train/policy_gradient_loss"] == pytest.approx(float(loss.detach()), rel=1e-3, abs=1e-5)
    if settings.get("importance_correction") == "token":
        weights = np.array(all_weights)
        assert logged["train/importance_weight"] == pytest.approx(weights.mean(), rel=1e-5)
        expected = weights.sum() ** 2 / (weights**2).sum() / len(weights)
        assert logged["train/effective_share"] == pytest.approx(expected, rel=1e-5)
    for mine, theirs in zip(trained.policy.actor_parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_clip_fraction_counts_tokens_beyond_either_range(ratio):
    trained = make_group_algorithm(RLOO, make_gpt2(make_tokenizer()), ratio=ratio, clip_range=0.02, clip_range_high=0.1)
    utterances = collect(trained)
    for parameter in trained.policy.actor_parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    policy = copy.deepcopy(trained.policy.language_model)
    beyond = []
    for u in utterances:
        prompt, reply = u.prompt_ids.tolist(), u.response_ids.tolist()
        ratios = (reply_log_probs(policy, prompt, reply).detach() - torch.tensor(u.log_probs)).exp()
        if ratio == "sequence":
            ratios = ratios.log().mean().exp().expand(len(ratios))
        beyond += [not 0.98 <= float(r) <= 1.1 for r in ratios]
    trained.train()
    assert 0 < sum(beyond) < len(beyond)
    assert trained.logger.name_to_value["train/clip_fraction"] == pytest.approx(sum(beyond) / len(beyond))
