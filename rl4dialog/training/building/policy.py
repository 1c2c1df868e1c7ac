"""Class, arguments and ends of replies of a run's policy, and the settings with which evaluations generate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium import spaces
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.catalog import AlgorithmRegistry, OfflineAlgorithmRegistry, PolicyRegistry, PostProcessorRegistry
from rl4dialog.core.config import GenerationBlock, OfflineConfig, PolicyRunConfig, TextConfig
from rl4dialog.core.config_blocks import inner_component
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.registry import Registry
from rl4dialog.core.types import Sample
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.generation import without_beams
from rl4dialog.policies.models import embedding_rows
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.training.building.texts import Lengths


def policy_class(config: TextConfig) -> type[LMActorCriticPolicy]:
    """Class of the run's policy. For a supervised run, a policy that can generate with its model."""
    return PolicyRegistry.resolve(config.policy_id)  # type: ignore[no-any-return]


def is_guided(config: TextConfig) -> bool:
    """Whether values guide the language model of the run's policy; without them, it is another policy."""
    policy = policy_class(config)
    if not (policy.guided or policy.reranked):
        return False
    # AWAC's policy has values in training only.
    return "guidance" not in OfflineAlgorithmRegistry.resolve(config.alg.id).policy_arguments()


def own_policy_args(config: PolicyRunConfig) -> dict[str, Any]:
    """Policy arguments, without those of the model and those without effect."""
    args = config.alg.policy.args.model_dump()
    for name in ("model_name", "apply_model_parallel", "prompt_truncation_side", "critic_from"):
        args.pop(name, None)
    return args


def check_chosen(config: PolicyRunConfig, registry: Registry) -> None:
    """Check ids and arguments of a run's algorithm and policy."""
    alg = config.alg
    for where, known, id, args in (
        ("alg.args", registry, alg.id, alg.args),
        ("alg.policy.args", PolicyRegistry, alg.policy.id, own_policy_args(config)),
    ):
        for name in args:
            if name in known.provided:
                raise ConfigError(f"{where}.{name} is set by other parts of the config; remove it")
        known.check(id, args, where)


def all_arguments(config: PolicyRunConfig) -> dict[str, Any]:
    """Arguments of a run's policy and algorithm, with defaults filled in."""
    registry = OfflineAlgorithmRegistry if isinstance(config, OfflineConfig) else AlgorithmRegistry
    policy, algorithm = PolicyRegistry.defaults(config.alg.policy.id), registry.defaults(config.alg.id)
    return {**policy, **(config.alg.policy.args.model_extra or {}), **algorithm, **config.alg.args}


def build_end_of_turn(
    config: TextConfig, tokenizer: PreTrainedTokenizerBase, turn_marker: str | None, model: PreTrainedModel
) -> EndOfTurn:
    """Build the detection of reply ends: all end-of-sequence ids, and the turn marker of the dialogue format."""
    if config.env is not None and not config.env.args.terminate_on_eos:
        return EndOfTurn(tokenizer, ())
    ids = end_of_sequence_ids(tokenizer, model.config, model.generation_config)
    return EndOfTurn(tokenizer, ids, turn_marker)


def build_inference_policy(
    config: TextConfig,
    tokenizer: PreTrainedTokenizerBase,
    turn_marker: str | None,
    model: PreTrainedModel,
    lengths: Lengths,
    **changes: Any,
) -> LMActorCriticPolicy:
    """Wrap a language model, which is not copied, in a policy with the run's generation settings.

    Changes replace arguments of the policy. By default ``critic`` is ``none``, ``lora`` is not set, and only NLPO,
    whose mask may need it, has a reference.
    """
    end_of_turn = build_end_of_turn(config, tokenizer, turn_marker, model)
    anything = [Sample(0, "", [])]
    env = TextGenEnv(end_of_turn, anything, [], lengths.prompt, lengths.reply, embedding_rows(model))
    assert isinstance(env.observation_space, spaces.Dict)
    policy = policy_class(config)
    unused = {"reference": "initial" if policy.maskable else "none"}
    if not policy.guided:
        unused["critic"] = "none"
    return policy(
        env.observation_space,
        env.action_space,
        lambda _: 0.0,
        model=model,
        end_of_turn=end_of_turn,
        **{**inference_arguments(config), **unused, "precision": config.precision, **changes},
    )


def inference_arguments(config: TextConfig) -> dict[str, Any]:
    """Policy arguments that matter without training."""
    if not isinstance(config, PolicyRunConfig):
        return {"generation_kwargs": without_beams(config.own_generation_block.kwargs)}
    guided = policy_class(config).guided
    for_training = (
        *(() if guided else ("critic",)),
        *("optimizer_class", "optimizer_kwargs", "weight_decay"),
        *("gradient_checkpointing", "reference", "offload_reference", "reference_decay", "reference_every"),
    )
    return {name: value for name, value in own_policy_args(config).items() if name not in for_training}


def evaluation_kwargs(config: TextConfig) -> dict[str, Any]:
    """Generation settings of a run's evaluations. Decoding is greedy unless sampling is enabled.

    Beam search is not available under NLPO's mask (see the config's notes) or in conversations.
    """
    given = config.evaluation_block.kwargs
    kwargs = {"do_sample": False} | {key: value for key, value in given.items() if value is not None}
    return without_beams(kwargs) if policy_class(config).maskable else kwargs


def build_evaluation_post_processor(config: TextConfig) -> Callable[[str], str] | None:
    """Build the post-processor of evaluation replies, from the ``generation_kwargs`` that generate them."""
    return build_post_processor(config.evaluation_block)


def build_post_processor(block: GenerationBlock) -> Callable[[str], str] | None:
    """Build the ``post_processing_fn`` of a ``generation_kwargs`` block."""
    chosen, where = block.kwargs.get("post_processing_fn"), f"{block.where}.post_processing_fn"
    if chosen is None:
        return None
    component = inner_component(chosen, where)
    PostProcessorRegistry.check(component.id, component.args, f"{where}.args")
    return PostProcessorRegistry.get(component.id, component.args)  # type: ignore[no-any-return]
