"""Policies whose weights are shared by two processes."""

from unittest.mock import Mock, patch

import torch
from tiny import make_env, make_gpt2, make_policy, make_tokenizer
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from two_processes import in_two_processes

from rl4dialog.functional.distributed import copy_all, reshard
from rl4dialog.policies.saving import CRITIC_FILE, gathered, states_beside
from rl4dialog.policies.sharding import shard_policy

TOKENIZER = make_tokenizer()


def n_gathers(gather_weights, n_tokens):
    """How often layers are gathered for replies of this length, and what share of a layer is held afterwards."""
    env = make_env(TOKENIZER, vocab_size=len(TOKENIZER), max_episode_length=n_tokens)
    policy = make_policy(
        env, make_gpt2(TOKENIZER), generation_kwargs={"min_length": n_tokens, "max_new_tokens": n_tokens}
    )
    policy.gather_weights = gather_weights
    shard_policy(policy)
    gather = _fsdp_param_group.foreach_all_gather
    with patch.object(_fsdp_param_group, "foreach_all_gather", Mock(side_effect=gather)) as counted:
        ids = torch.full((2, 3), 5)
        replies = policy.generate({"prompt_ids": ids, "prompt_mask": torch.ones_like(ids, dtype=torch.bool)})
    assert replies.n_tokens == 2 * n_tokens
    weight = policy.language_model.transformer.h[0].mlp.c_fc.weight
    return counted.call_count, weight.to_local().numel() / weight.numel()


def loaded_critic():
    """The lowest number of each of a critic's tensors after all were loaded as ones, while the root was gathered."""
    env = make_env(TOKENIZER, vocab_size=len(TOKENIZER), max_episode_length=2)
    policy = make_policy(env, make_gpt2(TOKENIZER), critic="separate")
    shard_policy(policy)
    policy.compute(lambda _: None)
    critic = states_beside(policy)[CRITIC_FILE]
    copy_all(critic, {name: torch.ones(tensor.shape) for name, tensor in critic.items()})
    reshard(policy)
    return {name: float(tensor.min()) for name, tensor in gathered(states_beside(policy)[CRITIC_FILE]).items()}


# Both in one pair of processes: a second fork would have the first one's place in torch's mesh.
def test_layers_are_gathered_once_for_all_tokens_if_they_fit_and_shards_are_loaded(tmp_path):
    def of_both(_):
        n = [[n_gathers(gather_weights, n_tokens) for n_tokens in (2, 8)] for gather_weights in (True, False)]
        return *n, loaded_critic()

    (whole, by_layer, critic), (*_, other) = in_two_processes(of_both, tmp_path)
    assert {share for _, share in whole + by_layer} == {0.5}
    assert 0 < whole[0][0] == whole[1][0] < by_layer[0][0] < by_layer[1][0]
    assert critic == other == dict.fromkeys(critic, 1.0) and len(critic) > 10
