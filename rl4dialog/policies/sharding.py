"""Sharding of a policy's weights, gradients and optimizer state over the processes of a run (FSDP2).

Zhao et al. 2023, arXiv 2304.11277. Every layer is gathered when it is used, so all processes must use the same layers
in the same order. Rollouts, evaluations and updates therefore run in lockstep.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.gradient_steps import layers_of

# All methods that run a model. The root's own weights (embeddings, heads, value head) are gathered around these.
_OF_REPLIES = ("generate", "sequence_log_probs", "predict_sequence_values", "reference_log_probs", "compute")
_OF_SB3 = ("forward", "evaluate_actions", "get_distribution", "predict_values")


def shard_policy(policy: LMActorCriticPolicy) -> None:
    """Shard a policy, which must be identical in all processes, and create a new optimizer for it."""
    if policy.lora is not None:
        policy.lora.keep_structure()
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
    policy.lockstep = True
    policy.share_prompts = False  # sharing prompts would make the number of passes differ between processes
    policy.make_optimizer(float(policy.optimizer.param_groups[0]["lr"]))


def whole_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """State dict of a sharded model, gathered in main memory. All processes must call this."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options)  # type: ignore[return-value]
