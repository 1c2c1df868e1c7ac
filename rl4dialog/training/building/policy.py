"""Class, arguments and ends of replies of a run's policy, and the settings with which evaluations generate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch.cuda import is_bf16_supported
from transformers import PreTrainedModel

from rl4dialog.catalog import PolicyRegistry, PostProcessorRegistry
from rl4dialog.core.config import GenerationBlock, PolicyRunConfig, TextConfig, is_of_text, start_from
from rl4dialog.core.config_blocks import inner_component
from rl4dialog.core.errors import ConfigError, GenerationError
from rl4dialog.core.registry import Registry, import_object
from rl4dialog.core.run_format import why_removed
from rl4dialog.core.types import Sample
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.generation import without_beams
from rl4dialog.policies.models import embedding_rows
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids

if TYPE_CHECKING:
    from rl4dialog.training.assembly import Assembly

_logger = logging.getLogger(__name__)


def policy_class(config: TextConfig) -> type[LMActorCriticPolicy]:
    """Class of the run's policy. For a supervised run, a policy that can generate with its model."""
    return PolicyRegistry.resolve(config.policy_id)  # type: ignore[no-any-return]


def algorithms(config: PolicyRunConfig) -> Registry:
    return import_object(config.algorithms)  # type: ignore[no-any-return]


def algorithm_class(config: PolicyRunConfig) -> Any:
    return algorithms(config).resolve(config.alg.id)


def is_guided(config: TextConfig) -> bool:
    """Whether values guide the language model of the run's policy; without them, it is another policy."""
    if not isinstance(config, PolicyRunConfig) or not policy_class(config).guided:
        return False
    return "guidance" not in algorithm_class(config).policy_arguments()  # such a policy has values in training only


def own_policy_args(config: PolicyRunConfig) -> dict[str, Any]:
    """Policy arguments, without those of the model and those without effect."""
    others = {"model_name", "apply_model_parallel", "prompt_truncation_side", "critic_from"}
    return config.alg.policy.args.model_dump(exclude=others)


def check_chosen(config: PolicyRunConfig) -> None:
    check_own(algorithms(config), config.alg.id, config.alg.args, "alg.args")
    check_own(PolicyRegistry, config.alg.policy.id, own_policy_args(config), "alg.policy.args")


def check_fits(key: str, id: str, registry: Registry, other: Registry, run: str) -> None:
    """Check that an algorithm or a policy is not one of another kind of run, which has another registry."""
    if id not in registry and (id in other or (key == "alg.id" and is_of_text(id))):
        another = f", or {start_from(id)}" if key == "alg.id" else ""
        raise ConfigError(f"{key}: {id} cannot be combined with {run}; use one of {', '.join(registry.ids())}{another}")


def check_own(registry: Registry, id: str, args: Mapping[str, Any], where: str) -> None:
    """Check a component whose other arguments, which it cannot be given, come from the rest of the config."""
    if names := registry.provided.intersection(args):
        raise ConfigError(f"{where}.{min(names)} is set by other parts of the config; remove it")
    for name, value in args.items():
        if (why := why_removed(id, f"{where}.{name}", value)) and not registry.takes(id, name):
            raise ConfigError(why)
    registry.check(id, args, where)


def all_arguments(config: PolicyRunConfig) -> dict[str, Any]:
    """Arguments of a run's policy and algorithm, with defaults filled in."""
    policy, algorithm = PolicyRegistry.defaults(config.alg.policy.id), algorithms(config).defaults(config.alg.id)
    return {**policy, **(config.alg.policy.args.model_extra or {}), **algorithm, **config.alg.args}


def policy_kwargs(parts: Assembly, config: PolicyRunConfig) -> dict[str, Any]:
    own = {**own_policy_args(config), "precision": config.precision, "lora": config.lora}
    return {**own, "model": parts.initial_model, "end_of_turn": parts.end_of_turn}


def build_end_of_turn(parts: Assembly, model: PreTrainedModel) -> EndOfTurn:
    """Build the detection of reply ends: all end-of-sequence ids, and the turn marker of the dialogue format."""
    env = parts.config.env
    if env is not None and not env.args.terminate_on_eos:
        return EndOfTurn(parts.tokenizer, ())
    ids = end_of_sequence_ids(parts.tokenizer, model.config, model.generation_config)
    return EndOfTurn(parts.tokenizer, ids, parts.turn_marker)


def build_inference_policy(parts: Assembly, model: PreTrainedModel, **changes: Any) -> LMActorCriticPolicy:
    """Wrap a language model, which is not copied, in a policy with the run's generation settings.

    Changes replace arguments of the policy. By default ``critic`` is ``none``, ``lora`` is not set, and only NLPO,
    whose mask may need it, has a reference.
    """
    config, end_of_turn, policy = parts.config, build_end_of_turn(parts, model), policy_class(parts.config)
    env: Any = placeholder_env(parts, model, end_of_turn)
    unused = {"reference": "initial" if policy.maskable else "none"}
    if not policy.guided:
        unused["critic"] = "none"
    args = {**inference_arguments(config), **unused, "precision": config.precision, **changes}
    args |= {"model": model, "end_of_turn": end_of_turn}
    if args.get("critic") == "none":  # what the run's config says of its critic has no meaning then
        of_critic = ("critic_lr_factor", "critic_reads")
        args = {name: value for name, value in args.items() if name not in of_critic}
    built = policy(env.observation_space, env.action_space, lambda _: 0.0, **args)
    set_sampler(built, config)
    return built


def set_sampler(policy: LMActorCriticPolicy, config: TextConfig) -> None:
    """Let a policy on its device sample as ``generation.backend`` says, if it is to do so."""
    if policy.precision == "bf16" and policy.device.type == "cuda" and not is_bf16_supported(False):
        what = "precision: bf16 is emulated on this GPU, which has no bfloat16 arithmetic; fp32 is faster"
        _logger.warning(what)
    backend, policy.gather_weights = config.generation.backend, config.generation.gather_weights
    policy.sampler = "transformers" if config.generation.chosen.build else backend
    if backend == "graph" and (reason := policy.eager_reason(policy.settings)) is not None:
        raise GenerationError(f"generation.backend: graph is not possible here, because {reason}; remove it")


def placeholder_env(parts: Assembly, model: PreTrainedModel, end_of_turn: EndOfTurn) -> TextGenEnv:
    """An environment that has only the spaces of a run."""
    lengths, anything = parts.lengths, [Sample(0, "", [])]
    return TextGenEnv(end_of_turn, anything, [], lengths.prompt, lengths.reply, embedding_rows(model))


OF_REFERENCE = frozenset({"reference", "offload_reference", "reference_decay", "reference_every"})
"""Policy arguments about its reference."""


def inference_arguments(config: TextConfig) -> dict[str, Any]:
    """Policy arguments that matter without training."""
    if not isinstance(config, PolicyRunConfig):
        return {"generation_kwargs": without_beams(config.own_generation_block.kwargs)}
    for_training = {"optimizer_class", "optimizer_kwargs", "weight_decay", "gradient_checkpointing", "compile"}
    for_training |= OF_REFERENCE
    if not policy_class(config).guided:
        for_training |= {"critic", "critic_reads"}
    return {name: value for name, value in own_policy_args(config).items() if name not in for_training}


def evaluation_kwargs(config: TextConfig) -> dict[str, Any]:
    """Generation settings of evaluations: greedy unless sampling is enabled, and without beams under NLPO's mask."""
    given = config.evaluation_block.kwargs
    kwargs = {"do_sample": False} | {key: value for key, value in given.items() if value is not None}
    return without_beams(kwargs) if policy_class(config).maskable else kwargs


def build_post_processor(block: GenerationBlock) -> Callable[[str], str] | None:
    """Build the ``post_processing_fn`` of a ``generation_kwargs`` block."""
    chosen, where = block.kwargs.get("post_processing_fn"), f"{block.where}.post_processing_fn"
    if chosen is None:
        return None
    component = inner_component(chosen, where)
    PostProcessorRegistry.check(component.id, component.args, f"{where}.args")
    return PostProcessorRegistry.get(component.id, component.args)  # type: ignore[no-any-return]
