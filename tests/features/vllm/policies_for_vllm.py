"""Tiny policies whose replies vLLM generates, their prompts, and a step that changes their weights."""

import torch
from tiny import make_env, make_gpt2, make_policy, make_tokenizer

TOKENIZER = make_tokenizer()
N_PROMPT, N_REPLY = 6, 8


def policy_without_backend(model=None, end_of_turn=None, **kwargs):
    env = make_env(TOKENIZER, vocab_size=len(TOKENIZER), max_episode_length=N_REPLY)
    return make_policy(env, model or make_gpt2(TOKENIZER), end_of_turn, **kwargs)


def prompts(n):
    """Prompts of 1 to 6 tokens, padded on the left."""
    mask = torch.arange(N_PROMPT) >= N_PROMPT - (1 + torch.arange(n) % N_PROMPT)[:, None]
    ids = torch.randint(3, len(TOKENIZER), (n, N_PROMPT), generator=torch.Generator().manual_seed(0))
    return {"prompt_ids": ids * mask, "prompt_mask": mask}


def shake(policy, size=0.1):
    """Change all trained weights without a word to the backend."""
    with torch.no_grad():
        for parameter in policy.actor_parameters():
            parameter.add_(size * torch.randn_like(parameter))


def update(policy, size=0.1):
    """An optimizer step that changes all trained weights a lot."""
    policy.weights_will_change()
    shake(policy, size)
