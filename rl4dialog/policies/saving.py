"""Saving and loading of policies: the language model in transformers' format, all other parts as safetensors.

Sharded weights are gathered first, so all processes of a run must call these functions together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from rl4dialog.core.errors import ModelError
from rl4dialog.core.pretrained import load_model
from rl4dialog.core.run_format import current_critic
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.functional.distributed import copy_all, full_tensor, reshard
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.lora import ADAPTER_FOLDER, LoRA
from rl4dialog.policies.sharding import whole_weights


def weights_hash(model: nn.Module) -> str:
    """Hash of all parameters and buffers of a model, independent of their device."""
    return tensors_hash(model.state_dict())


def model_key(model: PreTrainedModel) -> list[Any]:
    """Weights and settings of a language model, as JSON values: without where, and by which version, it was saved."""
    settings = [json.loads(config.to_json_string()) for config in (model.config, model.generation_config)]
    for each in settings:
        for key in ("_name_or_path", "transformers_version"):
            each.pop(key, None)
    return [weights_hash(model), *settings]


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Hash of tensors and their names, independent of their order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        # As bytes, because numpy lacks some of torch's types, such as bfloat16.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


MODEL_FOLDER = "model"
CRITIC_FILE = "critic.safetensors"
# Named as the keys of a policy's `states()`.
MASK_FILE = "mask.safetensors"
TARGET_FILE = "target.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"


def save_policy(policy: LMActorCriticPolicy, folder: Path | None) -> None:
    """Save language model and tokenizer to ``model/``, the rest beside it; a process without a folder only gathers."""
    # Gather everything before writing, so that no process waits for one that failed to write.
    weights = whole_weights(policy)
    states = {file: gathered(state) for file, state in states_beside(policy).items()}
    states[OPTIMIZER_FILE] = gathered(optimizer_tensors(policy.optimizer))
    if folder is None:
        return
    save_language_model(policy.language_model, folder / MODEL_FOLDER, policy.lora, weights)
    policy.end_of_turn.tokenizer.save_pretrained(folder / MODEL_FOLDER)
    for file, state in states.items():
        save_file(state, folder / file)


def save_language_model(
    model: PreTrainedModel, folder: Path, lora: LoRA | None = None, weights: dict[str, Tensor] | None = None
) -> None:
    """Save a language model, or gathered weights of a sharded one; adapters are merged, and also saved alone."""
    if lora is not None and weights is not None:
        lora, weights = lora.whole(weights), None
    (model if lora is None else lora.merged()).save_pretrained(folder, state_dict=weights)
    if lora is not None:
        lora.save_pretrained(folder / ADAPTER_FOLDER)


def load_policy_weights(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Load weights saved by :func:`save_policy` into a policy of the same architecture."""
    folder = Path(folder)
    load_language_model_weights(policy.language_model, folder / MODEL_FOLDER, policy.auto_class, policy.lora)
    for file in states_beside(policy):
        load_state_beside(policy, folder, file)
    policy.weights_will_change()


def load_language_model_weights(model: PreTrainedModel, folder: Path, auto_class: Any, lora: LoRA | None) -> None:
    """Load weights of `save_language_model` into a model of the same architecture; if it has adapters, only these."""
    if lora is not None:
        lora.load(folder / ADAPTER_FOLDER)
        return
    hint = "Use another checkpoint."
    saved = load_model(auto_class, str(folder), "language model", hint, with_values=True, dtype=torch.float32)
    copy_all(model.state_dict(), saved.state_dict())


def load_state_beside(policy: LMActorCriticPolicy, folder: Path, file: str) -> None:
    """Load one file next to the language model, :data:`CRITIC_FILE` or :data:`MASK_FILE`, into a policy."""
    expected, path = states_beside(policy).get(file, {}), folder / file
    state = loaded_tensors(path, ": the folder has a language model, but not the rest of the policy")
    if state.keys() != expected.keys() == (earlier := current_critic(state)).keys():
        state = earlier
    if differing := sorted(state.keys() ^ expected.keys()):
        kind = f"critic {policy.critic_kind!r} (first difference: {differing[0]})"
        raise ModelError(f"{path} does not fit a policy with {kind}")
    copy_all(expected, state)


def loaded_tensors(path: Path, why: str = "") -> dict[str, Tensor]:
    """Tensors of a safetensors file; ``why`` it is needed is for the message if it is missing."""
    if not path.is_file():
        raise ModelError(f"{path} is missing{why}")
    return load_file(path)


_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg")
"""Tensors of torch's optimizers that have the shape of their parameter."""


def load_optimizer(optimizer: Optimizer, folder: Path) -> None:
    """Load the tensors of :func:`optimizer_tensors` from :data:`OPTIMIZER_FILE`. Learning rates are left unchanged."""
    path = Path(folder) / OPTIMIZER_FILE
    restore_optimizer(optimizer, loaded_tensors(path), path)


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Restore the state of :func:`optimizer_tensors` in an optimizer of the same parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states: dict[int, dict[str, Any]] = {}
    names: dict[int, set[str]] = {}
    for key, value in tensors.items():
        index, *outer, name = key.split(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            raise ModelError(f"{path} belongs to a model with more than {len(parameters)} trained parameters")
        parameter = parameters[int(index)]
        names.setdefault(int(index), set()).add(key.partition(".")[2])
        is_moment = name in _MOMENTS and not outer
        if is_moment and not (value.shape == parameter.shape and value.isfinite().all()):
            what = f"{key} has the shape {tuple(value.shape)}, and its parameter {tuple(parameter.shape)}"
            raise ModelError(f"{path} is damaged: {what}, or it is not finite")
        if isinstance(parameter, DTensor) and value.shape == parameter.shape:
            value = distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
        state = states.setdefault(int(index), {})
        for each in outer:
            state = state.setdefault(each, {})
        state[name] = value.item() if value.dtype == torch.int64 and not value.shape else value
    # Adafactor and 8-bit optimizers, which have other tensors, have different ones for large parameters.
    is_alike = set().union(*names.values()) <= {*_MOMENTS, "step"}
    if is_alike and len({frozenset(each) for each in names.values()}) > 1:
        raise ModelError(f"{path} is damaged: it lacks a part of the state of some parameters")
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """State of an optimizer by parameter number and name."""
    states = optimizer.state_dict()["state"]
    # bitsandbytes stores quantized values in a nested mapping.
    return {key: torch.as_tensor(value) for key, value in flatten(states).items() if not isinstance(value, Mapping)}


def states_beside(policy: LMActorCriticPolicy) -> dict[str, dict[str, Tensor]]:
    """State dicts saved next to the language model, by file."""
    reshard(policy)
    critic_ids = {id(parameter) for parameter in policy.critic_parameters()}
    critic: dict[str, Tensor] = {name: each for name, each in policy.named_parameters() if id(each) in critic_ids}
    others = {f"{what}.safetensors": state for what, state in policy.states().items()}
    return {CRITIC_FILE: critic, **others} if critic else others


def gathered(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gathered tensors in main memory that share no storage, as safetensors requires."""
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        gathered = full_tensor(tensor.detach()).cpu().contiguous()
        found[name] = gathered.clone() if gathered.data_ptr() in places else gathered
        places.add(gathered.data_ptr())
    return found
