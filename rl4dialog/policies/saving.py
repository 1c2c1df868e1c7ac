"""Saving and loading a policy: the language model in transformers' format, the critic beside it as safetensors."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from rl4dialog.core.errors import ModelError
from rl4dialog.policies.base import LMActorCriticPolicy

CRITIC_FILE = "critic.safetensors"


def save_policy(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Write the language model, its tokenizer and the critic into a folder."""
    policy.language_model.save_pretrained(folder)
    policy.end_of_turn.tokenizer.save_pretrained(folder)
    save_file(_critic_state(policy), folder / CRITIC_FILE)


def load_policy_weights(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Load what :func:`save_policy` wrote into a policy of the same architecture.

    Raises:
        ModelError: If the critic's file is missing, or belongs to another kind of critic.
    """
    saved = policy.auto_class.from_pretrained(folder)
    policy.language_model.load_state_dict(saved.state_dict())
    path = Path(folder) / CRITIC_FILE
    if not path.is_file():
        raise ModelError(f"{path} is missing: the folder holds a language model but no value head to go with it")
    state, expected = load_file(path), _critic_state(policy)
    if state.keys() != expected.keys():
        missing = sorted(expected.keys() - state.keys()) or sorted(state.keys() - expected.keys())
        raise ModelError(f"{path} does not fit a {policy.critic_kind!r} critic (first difference: {missing[0]})")
    policy.load_state_dict(state, strict=False)


def _critic_state(policy: LMActorCriticPolicy) -> dict[str, Tensor]:
    critic_ids = {id(parameter) for parameter in policy.critic_parameters()}
    return {n: p.detach().clone().contiguous() for n, p in policy.named_parameters() if id(p) in critic_ids}
