"""Restores the values of a policy that learned from logged conversations.

``model/`` contains them beside the language model if they guide it. Otherwise, only checkpoints contain them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from rl4dialog.catalog import OfflineAlgorithmRegistry
from rl4dialog.core.config import PolicyRunConfig, TextConfig
from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.lora import ADAPTER_FOLDER
from rl4dialog.policies.saving import CRITIC_FILE, TARGET_FILE, load_state_beside
from rl4dialog.policies.value_guidance import load_value_guidance
from rl4dialog.training.building.policy import is_guided


def policy_with_values(
    around: Callable[..., LMActorCriticPolicy],
    trained: PreTrainedModel,
    initial: Callable[[], PreTrainedModel],
    config: TextConfig,
    model: Path,
    checkpoint: Path | None,
) -> LMActorCriticPolicy:
    """Build a policy with values of tokens, and load them as far as they are saved.

    Args:
        around: Builds the policy from a language model and other arguments of the policy.
        trained: The trained language model.
        initial: Builds the initial one, to which LoRA adapters apply.
        config: Config of the run.
        model: Folder of the trained language model.
        checkpoint: Its checkpoint, if it is from one.
    """
    assert isinstance(config, PolicyRunConfig)
    changes: dict[str, Any] = dict(OfflineAlgorithmRegistry.resolve(config.alg.id).policy_arguments())
    if config.lora is None:
        policy = around(trained, **changes)
    else:
        policy = around(initial(), lora=config.lora, **changes)
        assert policy.lora is not None
        policy.lora.load(model / ADAPTER_FOLDER)
    if checkpoint is not None:
        load_state_beside(policy, checkpoint, CRITIC_FILE)
        load_state_beside(policy, checkpoint, TARGET_FILE)
    elif is_guided(config):
        load_value_guidance(policy, model)
    return policy


def check_without_values(config: TextConfig, run: Path, prior_only: bool, why_lost: str, verb: str) -> None:
    """Check that a run's policy stays the same without values, or that its language model alone is wanted.

    Args:
        config: Config of the run.
        run: The run folder, for the message.
        prior_only: Whether ``--prior_only`` was passed.
        why_lost: Why the values would be lost, as a relative clause.
        verb: What is to be done with the model.
    """
    try:
        guided = is_guided(config)
    except ConfigError as error:
        if not config.imports:
            raise
        raise ConfigError(
            f"the policy {config.policy_id!r} of {run}, or its algorithm, is custom code (imports: "
            f"{', '.join(config.imports)}). Review it, and pass --trust (trust=True in Python) if you trust it"
        ) from error
    if guided and not prior_only:
        raise ConfigError(
            f"the policy of {run} is guided by values, {why_lost}, so without them it would be another policy; pass "
            f"--prior_only to {verb} its language model alone"
        )
    if prior_only and not guided:
        raise ConfigError(f"--prior_only has no meaning for {run}, whose policy is its language model; remove it")


def check_learns_v(config: TextConfig, what: str) -> None:
    """Check that V(s) is among the values of a policy with values of tokens."""
    if not OfflineAlgorithmRegistry.resolve(config.alg.id).has_values:
        raise ModelError(f"alg.id: {config.alg.id} learns no V, so there are no {what}")
