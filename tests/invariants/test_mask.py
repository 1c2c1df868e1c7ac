"""A maskable policy says only what its mask leaves, and the mask follows the trained policy."""

import copy

import numpy as np
import pytest
import torch
from collected import collect, make
from covering import covering, quick
from rows import evaluated, rows_of
from tiny import MODELS, make_env, make_gpt2, make_policy, make_t5, make_tokenizer, maskable_class_of, reply_log_probs

from rl4dialog.algorithms.on_policy.ppo import NLPO, PPO
from rl4dialog.core.errors import ConfigError
from rl4dialog.rollouts.kl_controllers import FixedKLController
from rl4dialog.text.end_of_turn import EndOfTurn

TOP_P = {"top_mask": 0.6, "mask_type": "learned_top_p"}
TOP_K = {"top_mask": 5, "mask_type": "learned_top_k"}
MASKS = {
    "learned_top_p": TOP_P,
    "learned_top_k": TOP_K,
    "reference_top_p": {"top_mask": 0.6, "mask_type": "reference_top_p"},
    "reference_top_k": {"top_mask": 5, "mask_type": "reference_top_k"},
}
MODELS_AND_MASKS = pytest.mark.parametrize(("model", "mask"), covering(MODELS, MASKS), indirect=["model"])


def masked_policy(model, tokenizer, **kwargs):
    env = make_env(tokenizer, max_episode_length=8, end_of_turn=EndOfTurn(tokenizer, [0, 8]))
    policy = make_policy(env, copy.deepcopy(model), policy_class=maskable_class_of(model), **kwargs)
    with torch.no_grad():  # the trained policy and its mask are no longer the same
        for parameter in policy.actor_parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return policy


def observations(policy, n):
    env = make_env(policy.end_of_turn.tokenizer, max_episode_length=8)
    return {k: torch.as_tensor(np.stack([env.reset(seed=i)[0][k] for i in range(n)])) for k in env.observation_space}


@MODELS_AND_MASKS
def test_masked_tokens_are_never_sampled_and_the_others_have_all_probability(model, tokenizer, mask):
    policy = masked_policy(model, tokenizer, **MASKS[mask])
    obs = observations(policy, 10)
    many = {name: array.repeat_interleave(1000, dim=0) for name, array in obs.items()}
    probabilities = policy.get_distribution(obs).distribution.probs
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(10))
    kept = probabilities > 0
    assert (kept.sum(dim=1) < probabilities.shape[1]).all()
    if "top_k" in mask:
        assert (kept.sum(dim=1) <= 5 + 2).all() and (kept.sum(dim=1) >= 5).all()
    first = policy.generate(many).response_ids[:, 0].reshape(10, 1000)
    assert kept.gather(1, first).all(), "10,000 draws"


@MODELS_AND_MASKS
def test_sampler_trainer_and_token_api_agree_under_the_mask(model, tokenizer, mask):
    policy = masked_policy(model, tokenizer, **MASKS[mask], generation_kwargs={"temperature": 0.8})
    obs = observations(policy, 12)
    utterances = policy.generate(obs)
    assert len(set(utterances.response_mask.sum(dim=1).tolist())) > 1, "replies of different lengths leave the batch"
    log_probs, _, entropy = evaluated(policy, utterances)
    torch.testing.assert_close(log_probs, utterances.log_probs, rtol=1e-4, atol=1e-4)
    assert (utterances.log_probs >= utterances.unmasked_log_probs - 1e-5).all()
    assert torch.isfinite(entropy).all() and torch.isfinite(log_probs).all()
    tokens = policy.evaluate_actions(obs, utterances.response_ids[:, 0])
    torch.testing.assert_close(tokens.log_prob, log_probs[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(tokens.entropy, entropy[:, 0], rtol=1e-4, atol=1e-4)
    assert tokens.values.shape == (12,)


@pytest.mark.parametrize("n_least", [1, 4, 9])
def test_top_p_mask_leaves_at_least_so_many_tokens_and_every_end(tokenizer, n_least):
    policy = masked_policy(make_gpt2(tokenizer), tokenizer, top_mask=1e-6, min_tokens_to_keep=n_least)
    logits = torch.randn(20, len(tokenizer), generator=torch.Generator().manual_seed(0))
    allowed = policy.allowed_tokens(logits)
    assert allowed[:, [0, 8]].all()
    best = logits.topk(n_least).indices
    assert allowed.gather(1, best).all()
    assert (allowed.sum(dim=1) <= n_least + 2).all()


def test_top_p_mask_is_the_smallest_set_that_reaches_the_mass(tokenizer):
    policy = masked_policy(make_gpt2(tokenizer), tokenizer, top_mask=0.6)
    probabilities = torch.zeros(1, len(tokenizer)) + 1e-6
    probabilities[0, [3, 4, 5, 6]] = torch.tensor([0.4, 0.3, 0.2, 0.1])
    assert policy.allowed_tokens(probabilities.log())[0].nonzero().flatten().tolist() == [0, 3, 4, 8]


def test_minimum_length_leaves_something_to_say(tokenizer):
    policy = masked_policy(make_gpt2(tokenizer), tokenizer, top_mask=1e-6, generation_kwargs={"min_length": 8})
    utterances = policy.generate(observations(policy, 30))
    assert (utterances.response_mask.sum(dim=1) == 8).all()
    assert (utterances.log_probs > -50).all(), "nothing that is masked was said"


def make_algorithm(cls, **policy_kwargs):
    return make(cls, n_envs=4, policy_kwargs=policy_kwargs, batch_size=16, n_epochs=2, learning_rate=1e-2)


def test_mask_of_the_sampler_changes_with_a_sync_and_not_before():
    algorithm = make_algorithm(NLPO, **TOP_K, target_update_iterations=2)
    policy = algorithm.policy
    obs = observations(policy, 6)

    def sampled_from():
        (editor,) = policy._step_editors(obs, policy.settings)
        return editor.edit(torch.zeros(6, policy.language_model.config.vocab_size), None, torch.zeros(6, 1))

    before = sampled_from()
    algorithm.learn(64)
    assert torch.equal(sampled_from(), before)
    algorithm.learn(64, reset_num_timesteps=False)
    assert not torch.equal(sampled_from(), before)
    with policy.mask_model() as mask_model:
        pairs = list(zip(mask_model.parameters(), policy.language_model.parameters(), strict=True))
    for mine, trained in pairs:
        assert torch.equal(mine, trained)


def test_reference_mask_never_changes_and_costs_no_copy():
    mask = {"top_mask": 5, "mask_type": "reference_top_k", "target_update_iterations": 1}
    algorithm = make_algorithm(NLPO, **mask)
    before = copy.deepcopy(algorithm.policy._reference_model.state_dict())
    algorithm.learn(128)
    with algorithm.policy.mask_model() as mask_model:
        assert mask_model is algorithm.policy._reference_model
    for name, weight in mask_model.state_dict().items():
        assert torch.equal(weight, before[name])


def test_kl_is_that_of_the_policy_without_its_mask_and_ratios_are_taken_under_it():
    algorithm = make_algorithm(NLPO, **TOP_K)
    algorithm.kl_controller = FixedKLController(0.5)
    policy = algorithm.policy
    with torch.no_grad():  # away from the reference
        for parameter in policy.actor_parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    collect(algorithm)
    kls, gains = [], []
    policy.requires_grad_(False)
    for u in rows_of(algorithm.rollout_buffer):
        prompt, reply = u.prompt_ids.tolist(), u.response_ids.tolist()
        pair = (policy.language_model, policy._reference_model)
        of_both = [reply_log_probs(model, prompt, reply).tolist() for model in pair]
        for t, (unmasked, reference) in enumerate(zip(*of_both, strict=True)):
            assert u.task_rewards[t] - u.rewards[t] == pytest.approx(0.5 * (unmasked - reference), abs=1e-4)
            kls.append(unmasked - reference)
            gains.append(u.log_probs[t] - unmasked)
    assert algorithm.logger.name_to_value["rollout/kl"] == pytest.approx(np.mean(kls), abs=1e-4)
    assert min(gains) > -1e-4 and max(gains) > 0.1, "a mask makes what it leaves more probable"


def test_nlpo_with_a_mask_that_keeps_everything_is_ppo_bit_for_bit():
    ppo = make_algorithm(PPO).learn(128)
    nlpo = make_algorithm(NLPO, top_mask=1.0, target_update_iterations=1).learn(128)
    masked = nlpo.policy.state_dict()
    for name, weight in ppo.policy.state_dict().items():
        assert torch.equal(weight, masked[name]), name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"top_mask": 1.5}, "top_mask must be above 0 and at most 1"),
        ({"top_mask": 0.5, "mask_type": "learned_top_k"}, "top_mask must be a whole number"),
        ({"mask_type": "reference_top_p", "reference": "none"}, "mask_type: reference_top_p .*args.reference is none"),
    ],
)
def test_mask_arguments_that_make_no_sense(arguments, words):
    policy_class = maskable_class_of(make_gpt2(make_tokenizer()))
    for check in (policy_class.check_arguments, lambda given: policy_class(**given)):
        with pytest.raises(ConfigError, match=words):
            check(arguments)


@pytest.mark.parametrize(
    ("model", "precision", "mask"), covering(("gpt2", "t5"), ("fp32", "bf16"), MASKS), indirect=["model"]
)
def test_what_was_sampled_stays_in_its_mask(model, tokenizer, precision, mask):
    """Though the pass that trains finds another mask than the sampler, as rounding makes it do, or here new weights."""
    policy = masked_policy(model, tokenizer, precision=precision, **MASKS[mask])
    obs = {name: array.repeat_interleave(8, dim=0) for name, array in observations(policy, 15).items()}
    utterances = policy.generate(obs)
    with torch.no_grad(), policy.mask_model() as mask_model:
        for parameter in mask_model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    real = utterances.response_mask
    log_probs, _, entropy = evaluated(policy, utterances)
    assert (log_probs - utterances.log_probs).abs().max() < 5
    # In bf16, passes with and without gradients round differently.
    close = {"rtol": 0.0, "atol": {"fp32": 1e-4, "bf16": 0.5}[precision]}
    torch.testing.assert_close(policy.sequence_log_probs(utterances), log_probs, **close)
    as_sb3 = policy.evaluate_actions(
        {**obs, "response_ids": utterances.response_ids, "response_mask": real}, utterances.response_ids[real]
    )
    torch.testing.assert_close(as_sb3[1], log_probs[real], **close)
    # The entropy is that of the distribution which the log-probability is of.
    assert torch.isfinite(entropy).all() and (entropy >= 0).all()
    surely = log_probs[real] > -1e-6
    assert (entropy[real][surely] < 1e-3).all()
    policy_probs = policy.get_distribution({**obs, "response_ids": utterances.response_ids, "response_mask": real})
    outside = policy_probs.log_prob(utterances.response_ids[real]) < -50
    assert outside.any(), "the masks differ"
    assert (entropy[real][outside] > 0).all(), "with the token that was sampled there are two at least"


@pytest.mark.parametrize("make_model", quick(make_gpt2, of=[make_gpt2, make_t5]))
def test_nlpo_in_bf16_stops_for_no_mask(make_model, monkeypatch):
    """The rounding of one pass differs from that of another, by 2 % here, so that it does so in every run."""
    algorithm = make(
        NLPO,
        n_steps=32,
        env_kwargs={"n_samples": 20, "max_episode_length": 8},
        model=make_model(make_tokenizer()),
        n_envs=8,
        policy_kwargs={"precision": "bf16", **TOP_P},
        **{"batch_size": 256, "n_epochs": 2, "learning_rate": 1e-6, "target_kl": 0.02},
    )
    random, allowed_tokens = torch.Generator().manual_seed(3), algorithm.policy.allowed_tokens

    def rounded_otherwise(logits):
        return allowed_tokens(logits + 0.02 * torch.randn(logits.shape, generator=random))

    monkeypatch.setattr(algorithm.policy, "allowed_tokens", rounded_otherwise)
    algorithm.learn(1)
    logged = algorithm.logger.name_to_value
    assert 0 <= logged["train/first_approx_kl"] < 5e-3
    assert 0 <= logged["train/approx_kl"] < 5e-3
    assert abs(logged["rollout/kl"]) < 0.01
