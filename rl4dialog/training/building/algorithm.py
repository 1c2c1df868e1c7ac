"""Builds the algorithm of an RL run, with its environments and policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl4dialog.catalog import AlgorithmRegistry, InfoFnRegistry
from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import ConfigError, GenerationError
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.registry import import_object
from rl4dialog.envs.vectorize import check_workers, make_vec_env
from rl4dialog.functional.distributed import n_processes, process_index
from rl4dialog.policies.models import embedding_rows
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.kl_controllers import build_kl_controller
from rl4dialog.training.building.conversations import AnyPartner, build_partner, build_task_rewards, env_kwargs
from rl4dialog.training.building.language_model import build_auxiliary_examples
from rl4dialog.training.building.policy import policy_class, policy_kwargs, set_sampler
from rl4dialog.training.building.rewards import build_reward_normalizer
from rl4dialog.training.processes import is_sharded
from rl4dialog.training.supervised import SupervisedLoss

if TYPE_CHECKING:
    from rl4dialog.training.assembly import Assembly


def build_algorithm(parts: Assembly, config: OnPolicyConfig) -> Any:
    """Build the environments, the policy and the algorithm, with a config that may differ from that of the parts."""
    env, kl, reward, texts, scorer = config.env, config.alg.kl_div, config.reward_fn, parts.texts, parts.scorer
    assert scorer is not None
    partner, kwargs = partner_and_env_kwargs(parts, config)
    n_envs = env.n_envs // n_processes()
    once_among = (process_index() * n_envs, env.n_envs) if env.args.once else None
    vec_env = make_vec_env(kwargs, n_envs, env.vec_env, env.n_workers, reward.timeout_s, once_among)
    service = partner if isinstance(partner, PartnerService) else None
    algorithm = AlgorithmRegistry.resolve(config.alg.id)
    of_policy = policy_kwargs(parts, config)
    if not algorithm.needs_critic:
        of_policy["critic"] = "none"
    if service is not None:
        of_policy["max_reply_length"] = texts.lengths.reply
    supervised = {}
    if config.alg.args.get("supervised_coef"):
        examples = build_auxiliary_examples(config, texts, parts.initial_model.config).train
        supervised["supervised_loss"] = SupervisedLoss(examples, int(texts.tokenizer.pad_token_id))
    try:
        built = algorithm(
            policy_class(config),
            vec_env,
            policy_kwargs=of_policy,
            seed=config.seed,
            kl_controller=build_kl_controller(kl.coeff, kl.target_kl, kl.type, kl.horizon),
            collector=RolloutCollector(
                build_task_rewards(scorer),
                mask_failed_rewards=reward.on_error == "mask",
                bootstrap_truncated=env.args.bootstrap_truncated,
                normalizer=build_reward_normalizer(reward),
                log_infos=config.logging.log_infos,
                info_fns={each.id: InfoFnRegistry.get(each.id, each.args) for each in config.logging.info_fns},
                max_turns=env.args.max_turns,
                partner=service,
                has_partner=partner is not None,
                mask_failed_partners=env.args.partner_on_error == "mask",
                partner_timeout_s=reward.timeout_s,
                keeps_dialogues=config.logging.conversations,
            ),
            normalize_rewards=kl.norm_reward,
            sharded=is_sharded(),
            **supervised,
            **config.alg.args,
        )
        policy = built.policy
        set_sampler(policy, config)
        if build := config.generation.chosen.build:
            policy.backend = import_object(build)(policy, config, texts.lengths.prompt + texts.lengths.reply)
        if service is not None:
            service.begin_run(policy)
    except (AssertionError, TypeError, ValueError) as error:
        vec_env.close()
        raise ConfigError(f"alg.args do not fit {config.alg.id!r}: {error}") from error
    except GenerationError:
        vec_env.close()
        raise
    return built


def check_env_workers(parts: Assembly, config: OnPolicyConfig) -> str:
    """Check that the environments can be sent to workers, if the run uses any; returns where they run."""
    return check_workers(partner_and_env_kwargs(parts, config)[1], config.env.vec_env)


def partner_and_env_kwargs(parts: Assembly, config: OnPolicyConfig) -> tuple[AnyPartner | None, dict[str, Any]]:
    texts, chosen, scorer = parts.texts, config.env.args.conversation_partner, parts.scorer
    assert scorer is not None
    of_model: dict[str, Any] = {"end_of_turn": parts.end_of_turn, "vocab_size": embedding_rows(parts.initial_model)}
    partner = None if chosen is None else build_partner(chosen, config, texts, **of_model)
    kwargs = env_kwargs(config, texts, list(texts.data.pools["train"]), scorer.parts, partner)
    of_rollouts = {"shares_dialogues": kwargs["shares_dialogues"] or config.logging.conversations}
    return partner, {**kwargs, **of_model, **of_rollouts, "max_secret_length": texts.lengths.secret or None}
