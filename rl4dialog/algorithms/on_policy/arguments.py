"""Types and bounds of stable-baselines3's arguments, which are looser or missing there."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import torch
from pydantic import AfterValidator, Field, InstanceOf
from stable_baselines3.common.type_aliases import Schedule

from rl4dialog.algorithms.schedules import ScheduleSettings
from rl4dialog.core.arguments import Count, Fraction, NonNegative, Positive


def existing_device(name: str) -> str:
    """Check that a device exists on this machine and return its name."""
    if name == "auto":
        return name
    try:
        device = torch.device(name)
        n_devices = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
        if (device.index or 0) < n_devices[device.type]:
            return name
    except (RuntimeError, KeyError):
        raise ValueError("Input should be auto, cpu, cuda, cuda:<number> or mps") from None
    raise ValueError("Input should be a device of this machine, such as cpu, or auto")


class CommonArguments(TypedDict, total=False):
    """Arguments of all algorithms in stable-baselines3 and sb3-contrib, on-policy or off-policy."""

    policy: Any
    env: Any
    policy_kwargs: dict[str, Any] | None
    learning_rate: NonNegative | Schedule
    n_steps: Count
    batch_size: Count
    gamma: Fraction
    use_sde: Literal[False]
    sde_sample_freq: Annotated[int, Field(ge=-1)]
    stats_window_size: Count
    verbose: Literal[0, 1, 2]
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None
    device: Annotated[str, AfterValidator(existing_device)] | InstanceOf[torch.device]
    _init_setup_model: bool


class OnPolicyArguments(CommonArguments, total=False):
    """Arguments of on-policy algorithms in stable-baselines3 and sb3-contrib. No algorithm has all of them."""

    n_epochs: Count
    gae_lambda: Fraction
    clip_range: Positive | Schedule
    clip_range_vf: Positive | Schedule | None
    normalize_advantage: bool
    ent_coef: NonNegative
    vf_coef: NonNegative
    max_grad_norm: Positive
    target_kl: Positive | None
    rms_prop_eps: Positive
    use_rms_prop: bool
    tensorboard_log: str | None


class TextArguments(OnPolicyArguments, total=False):
    """The same for algorithms on text, where some can have a schedule in the config."""

    learning_rate: NonNegative | Schedule | ScheduleSettings  # type: ignore[misc]
    clip_range: Positive | Schedule | ScheduleSettings  # type: ignore[misc]
    clip_range_vf: Positive | Schedule | ScheduleSettings | None  # type: ignore[misc]
