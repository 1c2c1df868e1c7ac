"""Sharding of a policy's weights, gradients and optimizer state over the processes of a run (FSDP2).

Zhao et al. 2023, arXiv 2304.11277. Every layer is gathered when it is used, so all processes must use the same layers
in the same order. Rollouts, evaluations and updates therefore run in lockstep. For replies, which use every layer for
each token, all layers are gathered once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel

from rl4dialog.functional.distributed import is_main_process
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.gradient_steps import layers_of
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.models import fill, without_weights

# All methods that run a model. The root's own weights (embeddings, heads, value head) are gathered around these.
_OF_REPLIES = ("generate", "sequence_log_probs", "predict_sequence_values", "log_probs_under", "compute")
_OF_SB3 = ("forward", "evaluate_actions", "get_distribution", "predict_values")


def shard_policy(policy: LMActorCriticPolicy) -> None:
    """Shard a policy, which must be identical in all processes, and create a new optimizer for it."""
    structure = without_weights(policy.language_model) if policy.lora is None else None
    if policy.lora is not None:
        policy.lora.keep_structure()
    policy._moving_reference = None  # made again of shards
    mesh = init_device_mesh(policy.device.type, (dist.get_world_size(),))
    for layer in layers_of(policy):
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            # Losses are parts of one mean, so gradients are summed.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    for name in (*_OF_REPLIES, *_OF_SB3):
        register_fsdp_forward_method(policy, name)
    policy.keeping_gathered = partial(_keeping_gathered, policy)  # type: ignore[method-assign]
    policy.whole_model = partial(_whole_model, policy, structure)  # type: ignore[method-assign]
    policy.make_reference()
    policy.sharded = policy.lockstep = True
    policy.share_prompts = False  # sharing prompts would make the number of passes differ between processes
    policy.make_optimizer(float(policy.optimizer.param_groups[0]["lr"]))


@contextmanager
def _keeping_gathered(policy: LMActorCriticPolicy) -> Iterator[None]:
    layers = [each for each in layers_of(policy) if isinstance(each, FSDPModule)] if policy.gather_weights else []
    for layer in layers:
        layer.set_reshard_after_forward(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.set_reshard_after_forward(True)
            layer.reshard()


def _whole_model(policy: LMActorCriticPolicy, structure: PreTrainedModel | None) -> PreTrainedModel | None:
    lora, weights = whole_lora(policy), None if structure is None else whole_weights(policy)
    if not is_main_process():
        return None
    if lora is not None:
        return lora.merged().to(policy.device)  # type: ignore[arg-type]
    assert structure is not None and weights is not None
    model = copy.deepcopy(structure)
    fill(model, weights)
    return model.to(policy.device)  # type: ignore[arg-type]


def whole_weights(policy: LMActorCriticPolicy) -> dict[str, Tensor] | None:
    """State dict of a sharded language model, in main memory of the first process; ``None`` if it is not sharded.

    All processes must call this.
    """
    if not policy.sharded:
        return None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(policy.language_model, options=options)  # type: ignore[return-value]


def whole_lora(policy: LMActorCriticPolicy) -> LoRA | None:
    """Adapters with their model, gathered in the first process if they are sharded. All processes must call this."""
    if policy.lora is None or not policy.sharded:
        return policy.lora
    weights = whole_weights(policy)
    return policy.lora.whole(weights) if weights else policy.lora
