"""Checks of a run whose replies vLLM generates, and what generates them."""

from __future__ import annotations

from rl4dialog.core.config import OnPolicyConfig, TextConfig
from rl4dialog.features.vllm.backend import VLLMBackend, check_settings, import_vllm
from rl4dialog.features.vllm.server import VLLMServerBackend
from rl4dialog.functional.distributed import n_processes
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.training.building.policy import policy_class
from rl4dialog.training.building.settings import Row, Settings


class VLLMSettings(Settings):
    """What conditions of these runs read."""

    is_causal: bool
    adapter_folder: str
    ahead: bool
    has_lora: bool


# fmt: off
CONDITIONS: dict[str, tuple[Row[VLLMSettings], ...]] = {
    "error": (
        (lambda s: s.ahead and not s.is_corrected,
         "generation.ahead: the first replies of a rollout are of the weights before the update; set "
         "alg.args.importance_correction: token or sequence, which corrects for it"),
        (lambda s: not s.has_rollouts,
         "generation.backend: {backend} is not supported with alg.id: {alg_id}; use transformers"),
        (lambda s: s.backend == "vllm" and s.has_fsdp,
         "generation.backend: vllm is not supported with FSDP; use a launcher config without it"),
        (lambda s: not s.is_causal,
         "generation.backend: {backend} is not supported with policy {policy_id!r}, only with "
         "decoder-only models without a mask"),
        (lambda s: s.adapter_folder and not s.has_lora,
         "generation.adapter_folder is for adapters, but the config has no lora; add it, or remove adapter_folder"),
        (lambda s: s.warm_start and s.adapter_folder,
         "generation.adapter_folder: the server does not get the weights of warm_start; make it a supervised run, and "
         "serve its model"),
        (lambda s: s.ahead and s.n_processes > 1,
         "generation.ahead is not supported in {n_processes} processes; remove it"),
        (lambda s: s.value_rank_states and s.backend == "vllm_server" and s.n_processes > 1,
         "train_evaluation.value_rank_states is not supported in {n_processes} processes with generation.backend: "
         "vllm_server; remove it"),
        (lambda s: s.learns == "both",
         "{place}.args.learns: both is not supported with generation.backend: {backend}"),
    ),
}
# fmt: on


def own_conditions(config: TextConfig) -> tuple[dict[str, tuple[Row[VLLMSettings], ...]], VLLMSettings]:
    """The rows, and the settings that they read."""
    policy, generation = policy_class(config), config.generation
    values = {"is_causal": issubclass(policy, CausalLMActorCriticPolicy) and not policy.maskable}
    if isinstance(config, OnPolicyConfig):
        values |= {"adapter_folder": generation.adapter_folder, "ahead": generation.ahead}
        values["has_lora"] = config.lora is not None
    return CONDITIONS, VLLMSettings(values)


def check_settings_of_run(config: TextConfig) -> None:
    for block in config.generation_blocks:
        check_settings(GenerationSettings.from_kwargs(block.kwargs, block.where), block.where)


def check_engine(config: TextConfig) -> None:
    check_settings_of_run(config)
    import_vllm(config.generation.tensor_parallel_size, config.generation.sleep)


def build_engine(policy: LMActorCriticPolicy, config: OnPolicyConfig, max_length: int) -> VLLMBackend:
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[config.precision]
    of_model = policy.language_model, policy.end_of_turn, max_length
    return VLLMBackend(*of_model, dtype, config.seed, **config.generation.options())


def build_client(policy: LMActorCriticPolicy, config: OnPolicyConfig, max_length: int) -> VLLMServerBackend:
    built = VLLMServerBackend(policy.language_model, policy.end_of_turn, max_length, **config.generation.options())
    policy.lockstep = n_processes() > 1  # the first process asks for the replies of all
    return built
