"""Batches of replies from numbers, and their numbers row by row."""

from dataclasses import fields
from types import SimpleNamespace

import torch
from tiny import make_tokenizer

from rl4dialog.functional.replies import Replies


def one_row(prompt_ids, response_ids, episode=0, group=0, **numbers):
    """One row; numbers per token are given without padding, `last_value` as it is, and `turn` of one or all tokens."""
    replies = Replies.from_ids([prompt_ids], [response_ids])
    replies.episode, replies.group = torch.tensor([episode]), torch.tensor([group])
    replies.last_value = torch.tensor([numbers.pop("last_value", 0.0)])
    replies.turn = replies.response_mask * torch.as_tensor(numbers.pop("turn", 0))
    for name, values in numbers.items():
        setattr(replies, name, torch.as_tensor(values).float()[None])
    return replies


def batch_with_repeats():
    """Six replies of different lengths to two prompts of different lengths, in the vocabulary of ``make_tokenizer``."""
    n_tokens, generator = len(make_tokenizer()), torch.Generator().manual_seed(0)
    prompts = torch.randint(3, n_tokens, (2, 5), generator=generator)
    lengths = torch.tensor([4, 1, 3, 2, 4, 3])
    rows = torch.tensor([0, 1, 0, 1, 1, 0])
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, :2] = False
    responses = torch.randint(3, n_tokens, (6, 4), generator=generator)
    return Replies(prompts[rows], mask[rows], responses, torch.arange(4) < lengths[:, None])


def rows_of(replies):
    """The rows of a batch or buffer: ids and numbers of each as arrays without padding."""
    replies = getattr(replies, "replies", replies)
    rows = []
    for i in range(len(replies)):
        row = SimpleNamespace()
        for field in fields(replies):
            tensor = getattr(replies, field.name)
            if tensor is not None and not field.name.endswith("_mask"):
                mask = replies.prompt_mask if field.name == "prompt_ids" else replies.response_mask
                setattr(row, field.name, tensor[i].item() if tensor.dim() == 1 else tensor[i][mask[i]].numpy())
        rows.append(row)
    return rows


def evaluated(policy, replies):
    """Log-probabilities, values and entropies of replies, each (B, T) and 0 where nothing is."""
    values, log_probs, entropies = policy.evaluate_actions(replies.observations, replies.flat("response_ids"))
    return replies.scattered(log_probs), replies.scattered(values), replies.scattered(entropies)
