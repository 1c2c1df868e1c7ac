"""Saving and loading a policy: the language model in transformers' format, and the rest beside it as safetensors."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from rl4dialog.core.errors import ModelError
from rl4dialog.policies.base import LMActorCriticPolicy

CRITIC_FILE = "critic.safetensors"
MASK_FILE = "mask.safetensors"


def save_policy(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Write the language model and its tokenizer into a folder, and what else the policy learns: critic and mask."""
    policy.language_model.save_pretrained(folder)
    policy.end_of_turn.tokenizer.save_pretrained(folder)
    for file, state in _states(policy).items():
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in state.items()}, folder / file)


def load_policy_weights(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Load what :func:`save_policy` wrote into a policy of the same architecture.

    Raises:
        ModelError: If a file is missing, or belongs to another kind of policy.
    """
    saved = policy.auto_class.from_pretrained(folder)
    policy.language_model.load_state_dict(saved.state_dict())
    for file, expected in _states(policy).items():
        path = Path(folder) / file
        if not path.is_file():
            raise ModelError(f"{path} is missing: the folder holds a language model, but not all that belongs to it")
        state = load_file(path)
        if state.keys() != expected.keys():
            first = sorted(state.keys() ^ expected.keys())[0]
            raise ModelError(
                f"{path} does not fit a policy with critic {policy.critic_kind!r} (first difference: {first})"
            )
        policy.load_state_dict(state, strict=False)


def _states(policy: LMActorCriticPolicy) -> dict[str, dict[str, Tensor]]:
    """What stands beside the language model, by file."""
    critic_ids = {id(parameter) for parameter in policy.critic_parameters()}
    critic: dict[str, Tensor] = {
        name: parameter for name, parameter in policy.named_parameters() if id(parameter) in critic_ids
    }
    mask = policy.mask_state()
    return {file: state for file, state in ((CRITIC_FILE, critic), (MASK_FILE, mask)) if state}
