"""Saving and loading a policy: the language model in transformers' format, and the rest beside it as safetensors."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from rl4dialog.core.errors import ModelError
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.lora import ADAPTER_FOLDER, LoRA

CRITIC_FILE = "critic.safetensors"
MASK_FILE = "mask.safetensors"


def save_policy(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Write the language model and its tokenizer into a folder, and what else the policy learns: critic and mask."""
    save_language_model(policy.language_model, folder, policy.lora)
    policy.end_of_turn.tokenizer.save_pretrained(folder)
    for file, state in _states(policy).items():
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in state.items()}, folder / file)


def save_language_model(
    model: PreTrainedModel, folder: Path, lora: LoRA | None = None, weights: dict[str, Tensor] | None = None
) -> None:
    """Write a language model into a folder.

    Args:
        model: The model.
        folder: Where.
        lora: Its adapters; they are merged, and stand in ``adapter/`` in peft's format too.
        weights: In place of the model's own, where those are spread over processes.
    """
    (model if lora is None else lora.merged()).save_pretrained(folder, state_dict=weights)
    if lora is not None:
        lora.save_pretrained(folder / ADAPTER_FOLDER)


def load_policy_weights(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Load what :func:`save_policy` wrote into a policy of the same architecture.

    Raises:
        ModelError: If a file is missing, or belongs to another kind of policy.
    """
    if policy.lora is not None:
        policy.lora.load(Path(folder) / ADAPTER_FOLDER)
    else:
        policy.language_model.load_state_dict(policy.auto_class.from_pretrained(folder).state_dict())
    policy.weights_will_change()
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
