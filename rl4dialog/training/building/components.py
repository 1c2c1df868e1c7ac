"""Checks all ids and arguments of a config before anything is loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import is_deepspeed_available

from rl4dialog.catalog import (
    AlgorithmRegistry,
    DataPoolRegistry,
    PartnerRegistry,
    PolicyRegistry,
    TaskRegistry,
    TurnAlgorithmRegistry,
    TurnPolicyRegistry,
)
from rl4dialog.core.config import (
    OfflineConfig,
    OnPolicyConfig,
    RewardModelConfig,
    RunConfig,
    SupervisedConfig,
    TextConfig,
    TurnLevelConfig,
)
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.plugins import load_entry_points, load_imports
from rl4dialog.data.judged_texts import JudgedTexts
from rl4dialog.data.mixture import Mixture, checked_pools
from rl4dialog.functional.distributed import n_processes
from rl4dialog.policies import vllm_engine
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.generation import NOT_IN_ROLLOUTS, GenerationSettings
from rl4dialog.policies.lora import check_settings
from rl4dialog.runs.run_logger import check_outputs
from rl4dialog.training.building.algorithm_checks import check_algorithm
from rl4dialog.training.building.callbacks import check_callback, check_without_rollouts
from rl4dialog.training.building.conditions import conditions_met
from rl4dialog.training.building.generation import build_post_processor
from rl4dialog.training.building.offline_checks import check_offline
from rl4dialog.training.building.partner import check_partner, chosen_partners
from rl4dialog.training.building.policy import check_chosen, own_policy_args, policy_class
from rl4dialog.training.building.reward_model import check_model_names
from rl4dialog.training.building.toolkit import metrics_and_rewards
from rl4dialog.training.building.turn_level import check_fits, check_turn_level
from rl4dialog.training.processes import sharding
from rl4dialog.training.supervised.fine_tuning import IGNORED_ARGS, build_training_arguments


def import_and_check(config: RunConfig, config_path: str | Path) -> None:
    """Load plugins and a config's imports, and check all ids and arguments.

    Raises:
        ConfigError: If an import fails, or as for :func:`check_components`.
    """
    load_entry_points()
    load_imports(config.imports, Path(config_path).resolve().parent)
    check_components(config)


def check_components(config: RunConfig) -> None:
    """Check all ids and arguments before anything is loaded, and note settings that cannot do what they are for.

    Raises:
        ConfigError: If an id or an argument is unknown, a required argument is missing, or arguments contradict each
            other.
    """
    check_outputs(config.logging.outputs)
    for i, component in enumerate(config.callbacks):
        check_callback(component.id, component.args, f"callbacks[{i}].args")
    _CHECKS[type(config)](config)
    for message, level in conditions_met(config).items():
        if level == "error":
            raise ConfigError(message)
        if message not in config.warnings:
            config.warnings.append(message)


def _check_datapool(config: TextConfig | RewardModelConfig) -> None:
    pool = config.datapool
    _check_pool(pool.id, pool.args, "datapool", isinstance(config, RewardModelConfig))


def _check_pool(id: str, args: Mapping[str, Any], where: str, for_reward_model: bool) -> None:
    """Check a datapool, and those within a mixture."""
    if "split" in args:
        raise ConfigError(f"{where}.args.split: every run reads all three splits; remove it")
    DataPoolRegistry.check(id, args, f"{where}.args")
    pool_class = DataPoolRegistry.resolve(id)
    if for_reward_model and not hasattr(pool_class, "judged"):
        raise ConfigError(
            f"{where}.id: {id} has no judgements for alg.id: reward_model; use rated_dialogues or feedback"
        )
    if not for_reward_model and isinstance(pool_class, type) and issubclass(pool_class, JudgedTexts):
        raise ConfigError(f"{where}.id: {id} has no prompts; it is for alg.id: reward_model")
    if isinstance(pool_class, type) and issubclass(pool_class, Mixture):
        for number, part in enumerate(checked_pools(args["pools"])):
            place = f"{where}.args.pools[{number}]"
            if DataPoolRegistry.takes(part.id, "world"):
                raise ConfigError(f"{place}.id: {part.id} needs a task, so it cannot be part of a mixture")
            _check_pool(part.id, part.args, place, for_reward_model)


def _check_task(config: TextConfig) -> None:
    """Check that there is a task where one is needed, and only there, and check its id and arguments."""
    read_by = [f"datapool.id: {config.datapool.id}"] if DataPoolRegistry.takes(config.datapool.id, "world") else []
    for chosen, where in chosen_partners(config):
        if PartnerRegistry.takes(chosen.id, "world"):
            read_by.append(f"{where}.id: {chosen.id}")
    if config.task is None:
        if read_by:
            known = ", ".join(TaskRegistry.ids())
            raise ConfigError(f"the key 'task' is missing, which {read_by[0]} needs (known: {known})")
        return
    if not read_by:
        raise ConfigError(
            f"task cannot be combined with datapool.id: {config.datapool.id} and this partner, which read no task; use "
            f"datapool task_dialogues and partner agenda_user, or remove it"
        )
    TaskRegistry.check(config.task.id, config.task.args, "task.args")


def _check_text(config: TextConfig) -> None:
    _check_datapool(config)
    check_partner(config)
    _check_task(config)
    for registry, id, args, where in metrics_and_rewards(config):
        registry.check(id, args, where)
        config.warnings.extend(note for note in registry.without_effect(id, args) if note not in config.warnings)
    for block in config.generation_blocks:
        in_rollouts = block.where.startswith("alg.policy")
        settings = GenerationSettings.from_kwargs(block.kwargs, block.where, NOT_IN_ROLLOUTS if in_rollouts else None)
        if build_post_processor(block) is not None and config.env is not None and config.env.args.conversation_partner:
            raise ConfigError(
                f"{block.where}.post_processing_fn changes single replies after they are generated, which is not "
                f"supported in conversations with env.args.partner; remove it"
            )
        if settings.num_beams > 1:
            _check_beams(config, f"{block.where}.num_beams is {settings.num_beams}")
    if config.generation.backend == "vllm":
        _check_vllm(config)


def _check_supervised(config: SupervisedConfig) -> None:
    _check_text(config)
    if config.lora is not None:
        check_settings(config.lora)
    _check_epochs(config, config.training_args)


def _check_reward_model(config: RewardModelConfig) -> None:
    _check_datapool(config)
    check_model_names(config)
    _check_epochs(config, config.alg.training_args)


def _check_epochs(config: SupervisedConfig | RewardModelConfig, training_args: dict[str, Any]) -> None:
    """Check a run that transformers' `Trainer` trains."""
    if n_processes() > 1:
        raise ConfigError(f"alg.id: {config.alg.id} trains in one process only, not in {n_processes()}")
    for i, component in enumerate(config.callbacks):
        check_without_rollouts(component.id, component.args, f"callbacks[{i}]")
    with tempfile.TemporaryDirectory() as folder:
        build_training_arguments(training_args, folder, config.seed, with_val=True)
    ignored = [name for name in IGNORED_ARGS if name in config.alg.training_args]
    config.warnings.extend(f"alg.training_args.{name} has no effect here and is ignored" for name in ignored)


def _check_on_policy(config: OnPolicyConfig) -> None:
    run = f"env.id: {config.env.id}"
    check_fits("alg.id", config.alg.id, AlgorithmRegistry, TurnAlgorithmRegistry, run)
    check_fits("alg.policy.id", config.alg.policy.id, PolicyRegistry, TurnPolicyRegistry, run)
    _check_text(config)
    check_chosen(config, AlgorithmRegistry)
    algorithm, policy = AlgorithmRegistry.resolve(config.alg.id), policy_class(config)
    if sharding() is not None:
        _check_sharding(config)
    if n_processes() > 1 and not algorithm.data_parallel:
        raise ConfigError(f"alg.id: {config.alg.id} trains in one process only, not in {n_processes()}")
    if config.env.n_envs % n_processes():
        raise ConfigError(f"env.n_envs is {config.env.n_envs}, which is not divisible by {n_processes()} processes")
    algorithm.check_arguments(config.alg.args, config.env.n_envs // n_processes())
    policy.check_arguments({**own_policy_args(config), "lora": config.lora})
    if algorithm.maskable != policy.maskable:
        plain, masked = config.alg.policy.id.removeprefix("maskable_"), "maskable_" + config.alg.policy.id
        fitting = masked if algorithm.maskable else plain
        raise ConfigError(f"alg.id: {config.alg.id} does not support policy {config.alg.policy.id!r}; use {fitting!r}")
    if policy.guided:
        raise ConfigError(f"alg.policy.id: {config.alg.policy.id} is for algorithms that learn from logs, such as ilql")
    if algorithm.needs_critic and own_policy_args(config).get("critic") == "none":
        raise ConfigError(f"alg.policy.args.critic is none, but alg.id: {config.alg.id} needs a critic")
    check_algorithm(config)


def _check_beams(config: TextConfig, what: str) -> None:
    """Check that evaluations can use beam search."""
    if config.env is not None and config.env.args.max_turns > 1:
        raise ConfigError(
            f"{what}, which is not supported with env.args.max_turns: {config.env.args.max_turns}: beam search is "
            f"only for the evaluation of single replies; remove num_beams"
        )
    if sharding() is not None:
        raise ConfigError(f"{what}, but beam search is not supported with sharded weights; remove num_beams")


def _check_sharding(config: OnPolicyConfig) -> None:
    """Check that the run supports the sharding of the launcher's config."""
    if sharding() == "deepspeed":
        if not is_deepspeed_available():
            raise ConfigError("the launcher's config selects DeepSpeed, which is not installed: pip install deepspeed")
        if config.alg.args.get("target_kl") is not None:
            raise ConfigError("alg.args.target_kl is not supported with DeepSpeed, which cannot abandon a minibatch")
        return
    for key, is_used in (
        ("lora", config.lora is not None),
        ("generation.backend: vllm", config.generation.backend == "vllm"),
        ("env.args.bootstrap_truncated", config.env.args.bootstrap_truncated),
        ("env.args.partner", config.env.args.conversation_partner is not None),
        ("metric causal_perplexity", any(m.id == "causal_perplexity" for m in config.train_evaluation.metrics)),
        (
            "a reference that follows the policy (alg.policy.args.reference)",
            own_policy_args(config).get("reference") in ("ema", "reset"),
        ),
        ("alg.policy.args.offload_reference", own_policy_args(config).get("offload_reference", False)),
    ):
        if is_used:
            raise ConfigError(f"{key} is not supported with FSDP; use a launcher config without it")


def _check_vllm(config: TextConfig) -> None:
    """Check that vLLM is installed and supports this run."""
    if not config.has_rollouts:
        raise ConfigError(f"generation.backend: vllm is not supported with alg.id: {config.alg.id}; use transformers")
    policy = policy_class(config)
    if not issubclass(policy, CausalLMActorCriticPolicy) or policy.maskable:
        raise ConfigError(
            f"generation.backend: vllm is not supported with policy {config.policy_id!r}, only with decoder-only "
            f"models without a mask (causal_lm_actor_critic_policy)"
        )
    for block in config.generation_blocks:
        vllm_engine.check_settings(GenerationSettings.from_kwargs(block.kwargs, block.where), block.where)
    vllm_engine.import_vllm(config.generation.tensor_parallel_size)


def _check_offline(config: OfflineConfig) -> None:
    check_offline(config)
    _check_text(config)


_CHECKS: dict[type[RunConfig], Callable[[Any], None]] = {
    OnPolicyConfig: _check_on_policy,
    OfflineConfig: _check_offline,
    SupervisedConfig: _check_supervised,
    RewardModelConfig: _check_reward_model,
    TurnLevelConfig: check_turn_level,
}
