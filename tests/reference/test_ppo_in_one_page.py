"""The page that explains PPO computes the toolkit's numbers: log-probabilities, rewards, advantages, new weights."""

import copy
import runpy

import pytest
import torch
from collected import collect, make
from pages import EXAMPLES
from tiny import make_gpt2, make_tokenizer

from rl4dialog.rollouts.kl_controllers import FixedKLController

PAGE = runpy.run_path(str(EXAMPLES / "ppo_in_one_page.py"))


def score_at_end(prev_observation, action, current_observation, done, meta_info):
    return 0.3 * len(current_observation.context_ids) if done else 0.0


def test_one_page_computes_the_same_iteration():
    from rl4dialog.core.reward_parts import RewardPart

    settings = PAGE["Settings"](kl_coeff=0.2, gamma=0.97, gae_lambda=0.9, learning_rate=1e-3, n_epochs=2)
    ours = make(
        n_steps=24,
        env_kwargs={"reward_parts": [RewardPart("words", 1.0, score_at_end)]},
        batch_size=10**6,
        kl_controller=FixedKLController(settings.kl_coeff),
        **{name: getattr(settings, name) for name in ("gamma", "gae_lambda", "learning_rate", "n_epochs", "vf_coef")},
    )
    # Policy, reference and critic differ, as after some iterations.
    torch.manual_seed(1)
    policy, head = ours.policy._policy_model, ours.policy._value_head
    with torch.no_grad():
        for parameter in [*policy.parameters(), *head.parameters()]:
            parameter.add_(0.05 * torch.randn_like(parameter))

    page = PAGE["PPO"](copy.deepcopy(policy), make_tokenizer(), None, settings)
    page.reference.load_state_dict(ours.policy._reference_model.state_dict())
    page.critic.load_state_dict(head.trunk.state_dict())
    page.value_head.load_state_dict(head.output.state_dict())

    replies = collect(ours)
    mask = replies.response_mask
    batch = {
        "prompt_ids": replies.prompt_ids,
        "prompt_mask": replies.prompt_mask.long(),
        "reply_ids": replies.response_ids,
        "mask": mask,
        "scores": 0.3 * mask.sum(dim=1),
    }
    page.estimate(batch)
    names = ("log_probs", "ref_log_probs", "advantages", "returns")
    for name, its in zip(names, ("old_log_probs", *names[1:]), strict=True):
        torch.testing.assert_close(batch[its][mask], getattr(replies, name)[mask], rtol=1e-4, atol=1e-5, msg=name)

    ours.train()
    for _ in range(settings.n_epochs):
        page.update(batch)
    for its, own in ((page.policy, policy), (page.critic, head.trunk), (page.value_head, head.output)):
        for (name, weight), expected in zip(its.named_parameters(), own.parameters(), strict=True):
            torch.testing.assert_close(weight, expected, rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("eos", [True, False])
def test_replies_of_one_page_end_with_their_first_end(eos):
    tokenizer = make_tokenizer(pad_is_eos=eos)
    model = make_gpt2(tokenizer)
    page = PAGE["PPO"](model, tokenizer, lambda prompt, reply: 1.0, PAGE["Settings"](max_new_tokens=12))
    torch.manual_seed(0)
    batch = page.generate(["a b", "c"] * 20)
    ids, mask = batch["reply_ids"], batch["mask"]
    ends = [(row == tokenizer.eos_token_id).nonzero() for row in ids]
    expected = [int(found[0]) + 1 if len(found) else ids.shape[1] for found in ends]
    assert mask.sum(dim=1).tolist() == expected and len({*expected}) > 1


@pytest.mark.long
def test_one_page_learns(tmp_path, capsys):
    tokenizer = make_tokenizer()
    make_gpt2(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    settings = PAGE["Settings"](n_iterations=15, learning_rate=2e-3, max_new_tokens=8)
    PAGE["main"](str(tmp_path), settings)
    rewards = [float(line.split()[3].rstrip(",")) for line in capsys.readouterr().out.splitlines()]
    assert len(rewards) == 15 and sum(rewards[-3:]) > sum(rewards[:3]) + 0.5
