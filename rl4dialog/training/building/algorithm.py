"""Builds the algorithm of an RL run, with its environments and policy."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from rl4dialog.catalog import AlgorithmRegistry
from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import ConfigError, GenerationError
from rl4dialog.core.protocols import PartnerService
from rl4dialog.envs.vectorize import check_workers, close, make_vec_env
from rl4dialog.functional.distributed import n_processes
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.generation import GenerationBackend
from rl4dialog.policies.models import embedding_rows
from rl4dialog.policies.vllm_backend import VLLMBackend
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.kl_controllers import build_kl_controller
from rl4dialog.scores.scoring import Scorer
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.building.conversations import AnyPartner, build_partner, build_task_rewards, env_kwargs
from rl4dialog.training.building.language_model import build_auxiliary_examples
from rl4dialog.training.building.policy import build_end_of_turn, own_policy_args, policy_class
from rl4dialog.training.building.rewards import build_reward_normalizer
from rl4dialog.training.building.texts import Lengths, Texts
from rl4dialog.training.processes import sharding
from rl4dialog.training.supervised.fine_tuning import SupervisedLoss


def build_algorithm(
    config: OnPolicyConfig,
    texts: Texts,
    model: PreTrainedModel,
    end_of_turn: EndOfTurn,
    scorer: Scorer,
) -> Any:
    """Build the environments, the policy and the algorithm."""
    env = config.env
    chosen = env.args.conversation_partner
    partner = None if chosen is None else build_partner(chosen, config, texts, end_of_turn, embedding_rows(model))
    vec_env = make_vec_env(
        _env_kwargs(config, texts, model, end_of_turn, scorer, partner),
        env.n_envs // n_processes(),
        env.vec_env,
        env.n_workers,
        config.reward_fn.timeout_s,
    )
    kl, reward = config.alg.kl_div, config.reward_fn
    algorithm, policy_args = AlgorithmRegistry.resolve(config.alg.id), own_policy_args(config)
    if not algorithm.needs_critic:
        policy_args["critic"] = "none"
    supervised = {}
    if config.alg.args.get("supervised_coef"):
        examples = build_auxiliary_examples(config, texts, model.config).train
        supervised["supervised_loss"] = SupervisedLoss(examples, int(texts.tokenizer.pad_token_id))
    try:
        built = algorithm(
            policy_class(config),
            vec_env,
            policy_kwargs={
                **policy_args,
                **({"max_reply_length": texts.lengths.reply} if isinstance(partner, PartnerService) else {}),
                "model": model,
                "end_of_turn": end_of_turn,
                "precision": config.precision,
                "lora": config.lora,
            },
            seed=config.seed,
            kl_controller=build_kl_controller(kl.coeff, kl.target_kl, kl.type, kl.horizon),
            collector=RolloutCollector(
                build_task_rewards(scorer),
                mask_failed_rewards=reward.on_error == "mask",
                bootstrap_truncated=env.args.bootstrap_truncated,
                normalizer=build_reward_normalizer(reward),
                log_infos=config.logging.log_infos,
                max_turns=env.args.max_turns,
                partner=partner if isinstance(partner, PartnerService) else None,
                has_partner=partner is not None,
                mask_failed_partners=env.args.partner_on_error == "mask",
                partner_timeout_s=reward.timeout_s,
                keeps_dialogues=config.logging.conversations,
            ),
            normalize_rewards=kl.norm_reward,
            sharding=sharding(),
            **supervised,
            **config.alg.args,
        )
        built.policy.backend = _build_backend(config, built.policy, texts.lengths)
        if isinstance(partner, PartnerService):
            partner.begin_run(built.policy)
    except (AssertionError, TypeError, ValueError) as error:
        close(vec_env)
        raise ConfigError(f"alg.args do not fit {config.alg.id!r}: {error}") from error
    except GenerationError:
        close(vec_env)
        raise
    return built


def check_env_workers(config: OnPolicyConfig, texts: Texts, model: PreTrainedModel, scorer: Scorer) -> str:
    """Check that the environments can be sent to workers, if the run uses any; returns where they run."""
    end_of_turn = build_end_of_turn(config, texts.tokenizer, texts.data.turn_marker, model)
    chosen = config.env.args.conversation_partner
    partner = None if chosen is None else build_partner(chosen, config, texts, end_of_turn, embedding_rows(model))
    return check_workers(_env_kwargs(config, texts, model, end_of_turn, scorer, partner), config.env.vec_env)


def _env_kwargs(
    config: OnPolicyConfig,
    texts: Texts,
    model: PreTrainedModel,
    end_of_turn: EndOfTurn,
    scorer: Scorer,
    partner: AnyPartner | None,
) -> dict[str, Any]:
    samples = list(texts.data.pools["train"])
    of_model = {"end_of_turn": end_of_turn, "vocab_size": embedding_rows(model)}
    kwargs = {**env_kwargs(config, texts, samples, scorer.parts, partner), **of_model}
    return {**kwargs, "shares_dialogues": kwargs["shares_dialogues"] or config.logging.conversations}


def _build_backend(config: OnPolicyConfig, policy: LMActorCriticPolicy, lengths: Lengths) -> GenerationBackend | None:
    """Build the external generation backend, if the run uses one."""
    settings = config.generation.model_dump()
    if settings.pop("backend") == "transformers":
        return None
    return VLLMBackend(
        policy.language_model,
        policy.end_of_turn,
        lengths.prompt + lengths.reply,
        {"fp32": "float32", "bf16": "bfloat16"}[config.precision],
        config.seed,
        **settings,
    )
