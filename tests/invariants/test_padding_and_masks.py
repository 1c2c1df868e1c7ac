"""Padding, masks and positions change no number that is logged or trained on."""

import copy

import numpy as np
import pytest
import torch
from rows import evaluated
from tiny import MODELS, make_env, make_policy, make_tokenizer, next_token

from rl4dialog.functional.masks import left_aligned
from rl4dialog.functional.replies import Replies
from rl4dialog.text.end_of_turn import EndOfTurn

PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10, 3]]
REPLIES = [[11, 12, 0], [13, 14, 15, 16], [17]]


def batch_of(rows, pad=1, extra_left=0, extra_right=0):
    n_prompt = max(len(PROMPTS[i]) for i in rows) + extra_left
    n_reply = max(len(REPLIES[i]) for i in rows) + extra_right
    prompt_ids, reply_ids = torch.full((len(rows), n_prompt), pad), torch.full((len(rows), n_reply), pad)
    prompt_mask = torch.zeros(len(rows), n_prompt, dtype=torch.bool)
    reply_mask = torch.zeros(len(rows), n_reply, dtype=torch.bool)
    for row, i in enumerate(rows):
        prompt_ids[row, n_prompt - len(PROMPTS[i]) :] = torch.tensor(PROMPTS[i])
        prompt_mask[row, n_prompt - len(PROMPTS[i]) :] = True
        reply_ids[row, : len(REPLIES[i])] = torch.tensor(REPLIES[i])
        reply_mask[row, : len(REPLIES[i])] = True
    return Replies(prompt_ids, prompt_mask, reply_ids, reply_mask)


@pytest.fixture(params=["separate", "shared"])
def policy(request, tokenizer, model):
    return make_policy(make_env(tokenizer), model, critic=request.param)


def everything(policy, batch):
    with torch.no_grad():
        numbers = [*evaluated(policy, batch), policy.reference_log_probs(batch)]
        numbers.append(policy.predict_sequence_values(batch))
    return [tensor[batch.response_mask] for tensor in numbers]


def test_log_prob_at_t_is_of_token_t_given_all_before_it(policy):
    batch = batch_of([0, 1, 2])
    log_probs, values, entropy = evaluated(policy, batch)
    lm = policy.language_model
    for row in range(3):
        for t, token in enumerate(REPLIES[row]):
            logits, hidden = next_token(lm, PROMPTS[row], REPLIES[row][:t])
            expected = logits[: len(policy.end_of_turn.tokenizer)].log_softmax(-1)  # T5 has more rows
            assert float(log_probs[row, t]) == pytest.approx(float(expected[token]), abs=1e-5)
            assert float(entropy[row, t]) == pytest.approx(float(-(expected.exp() * expected).sum()), abs=1e-5)
            # At first the separate critic's trunk is a copy of the policy's.
            assert float(values[row, t]) == pytest.approx(float(policy._value_head(hidden)), abs=1e-5)


def test_padding_columns_change_nothing(policy):
    plain = everything(policy, batch_of([0, 1, 2]))
    for padded in (batch_of([0, 1, 2], extra_left=4), batch_of([0, 1, 2], extra_right=3)):
        for a, b in zip(plain, everything(policy, padded), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["t5", "bart"])
def test_side_of_an_encoders_padding_changes_nothing(tokenizer, architecture):
    policy, left = make_policy(make_env(tokenizer), MODELS[architecture](tokenizer)), batch_of([0, 1, 2])
    right = Replies(*left_aligned(left.prompt_ids, left.prompt_mask), left.response_ids, left.response_mask)
    for a, b in zip(everything(policy, left), everything(policy, right), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_one_by_one_equals_batched(policy):
    together = everything(policy, batch_of([0, 1, 2]))
    alone = [everything(policy, batch_of([i])) for i in range(3)]
    for k, tensor in enumerate(together):
        torch.testing.assert_close(tensor, torch.cat([a[k] for a in alone]), rtol=1e-5, atol=1e-5)


def test_pad_equal_to_eos_changes_no_loss_or_gradient(tokenizer, model):
    gradients = []
    for pad_is_eos in (False, True):
        tok = make_tokenizer(pad_is_eos=pad_is_eos)
        policy = make_policy(make_env(tok), copy.deepcopy(model))
        torch.manual_seed(0)
        torch.nn.init.normal_(policy._value_head.output.weight, std=0.2)
        batch = batch_of([0, 1, 2], pad=tok.pad_token_id)
        log_probs, values, entropy = evaluated(policy, batch)
        (log_probs.sum() + values.sum() + entropy.sum()).backward()
        gradients.append([p.grad for p in policy.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_first_eos_is_trained_and_what_follows_it_is_not(policy):
    batch = batch_of([0, 1])
    log_probs, _, _ = evaluated(policy, batch)
    assert log_probs[0, 2] != 0, "the end-of-sequence token is a token like any other"
    assert log_probs[0, 3] == 0


def test_token_level_api_ignores_padding_too(policy, tokenizer):
    env = make_env(tokenizer, max_prompt_length=5, max_episode_length=4)
    wide = make_env(tokenizer, max_prompt_length=12, max_episode_length=9)
    for i in range(4):
        narrow_obs, wide_obs = env.reset(seed=i)[0], wide.reset(seed=i)[0]
        for action in (5, 7):
            a, b = (
                policy._logits_and_values({k: torch.as_tensor(v[None]) for k, v in obs.items()})
                for obs in (narrow_obs, wide_obs)
            )
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
            narrow_obs, wide_obs = env.step(action)[0], wide.step(action)[0]


@pytest.mark.parametrize("architecture", MODELS)
def test_sampler_and_trainer_log_probs_agree(tokenizer, architecture):
    env = make_env(tokenizer, max_episode_length=12)
    policy = make_policy(
        env,
        MODELS[architecture](tokenizer),
        EndOfTurn(tokenizer, [0, 5, 8]),
        generation_kwargs={"temperature": 0.7, "top_k": 6},
    )
    obs = {k: torch.as_tensor(np.stack([env.reset(seed=i)[0][k] for i in range(8)])) for k in env.observation_space}
    utterances = policy.generate(obs)
    assert len(set(utterances.response_mask.sum(dim=1).tolist())) > 1, "replies of different lengths leave the batch"
    log_probs, _, _ = evaluated(policy, utterances)
    torch.testing.assert_close(log_probs, utterances.log_probs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(policy.reference_log_probs(utterances), log_probs, rtol=1e-5, atol=1e-6)
    assert (utterances.truncated_mass[utterances.response_mask] > 0).all(), "top_k cuts off some probability"
