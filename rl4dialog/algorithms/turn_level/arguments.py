"""Types and bounds of the arguments of stable-baselines3's off-policy algorithms."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, InstanceOf
from stable_baselines3.common.noise import ActionNoise

from rl4dialog.algorithms.on_policy.arguments import CommonArguments
from rl4dialog.core.arguments import Count, Fraction, NonNegative, NonNegativeInt, Positive


class OffPolicyArguments(CommonArguments, total=False):
    """Arguments of off-policy algorithms in stable-baselines3 and sb3-contrib. No algorithm has all of them."""

    buffer_size: Count
    learning_starts: NonNegativeInt
    tau: Fraction
    train_freq: Count
    gradient_steps: Annotated[int, Field(ge=-1)]
    optimize_memory_usage: Literal[False]
    target_update_interval: Count
    exploration_fraction: Annotated[float, Field(gt=0, le=1)]
    exploration_initial_eps: Fraction
    exploration_final_eps: Fraction
    max_grad_norm: Positive | None
    policy_delay: Count
    target_policy_noise: NonNegative
    target_noise_clip: NonNegative
    top_quantiles_to_drop_per_net: NonNegativeInt
    action_noise: NonNegative | InstanceOf[ActionNoise] | None
    use_sde_at_warmup: Literal[False]
