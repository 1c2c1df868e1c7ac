"""Types and bounds of the arguments of stable-baselines3's off-policy algorithms."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from pydantic import AfterValidator, Field, InstanceOf
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import Schedule
from torch import device as Device

from rl4dialog.algorithms.on_policy.arguments import existing_device
from rl4dialog.core.arguments import Count, Fraction, NonNegative, NonNegativeInt, Positive


class OffPolicyArguments(TypedDict, total=False):
    """Arguments of off-policy algorithms in stable-baselines3 and sb3-contrib. No algorithm has all of them."""

    policy: Any
    env: Any
    policy_kwargs: dict[str, Any] | None
    learning_rate: NonNegative | Schedule
    buffer_size: Count
    learning_starts: NonNegativeInt
    batch_size: Count
    tau: Fraction
    gamma: Fraction
    train_freq: Count
    gradient_steps: Annotated[int, Field(ge=-1)]
    n_steps: Count
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
    use_sde: Literal[False]
    sde_sample_freq: Annotated[int, Field(ge=-1)]
    use_sde_at_warmup: Literal[False]
    stats_window_size: Count
    verbose: Literal[0, 1, 2]
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None
    device: Annotated[str, AfterValidator(existing_device)] | InstanceOf[Device]
    _init_setup_model: bool
