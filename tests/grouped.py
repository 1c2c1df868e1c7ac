"""Algorithms that compare replies to one prompt, on a tiny model."""

import copy

import collected
from collected import make
from rows import rows_of
from tiny import make_tokenizer

from rl4dialog.algorithms.on_policy.critic_free import GroupBased
from rl4dialog.text.end_of_turn import EndOfTurn

BETA = 0.3
"""Coefficient of the KL penalty."""


def make_group_algorithm(algorithm, model, env_kwargs=None, generation_kwargs=None, **kwargs):
    """An algorithm on groups of four replies, which differ in length."""
    of_env = {"end_of_turn": EndOfTurn(make_tokenizer(), [0, 8, 12]), **(env_kwargs or {})}
    groups = {"n_generations": 4} if issubclass(algorithm, GroupBased) else {}
    settings = {**groups, "n_epochs": 1, "batch_size": 10**6, "learning_rate": 1e-2, **kwargs}
    sampling = {"generation_kwargs": generation_kwargs}
    return make(
        algorithm, "none", 8, of_env, copy.deepcopy(model), 8, sampling, BETA, **{"max_grad_norm": 1e9, **settings}
    )


def collect(algorithm, reset=True):
    """The rows of a rollout."""
    return rows_of(collected.collect(algorithm, reset))


def groups_of(utterances):
    """Rows by group."""
    groups = {}
    for utterance in utterances:
        groups.setdefault(utterance.group, []).append(utterance)
    return groups
