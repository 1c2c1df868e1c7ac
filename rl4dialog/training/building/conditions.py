"""The table of settings that cannot do what they are for, which load, plan, the start of a run and the doctor read."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rl4dialog import catalog
from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.algorithms.schedules import as_schedule
from rl4dialog.core.config import (
    OnPolicyConfig,
    PolicyRunConfig,
    RunConfig,
    TextConfig,
)
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import Partner
from rl4dialog.core.registry import import_object
from rl4dialog.core.reward_parts import RewardPart, names_needing
from rl4dialog.functional.distributed import n_processes
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.graph_sampler import eager_reason
from rl4dialog.scores.conversation import OutcomeReward, PartnerReward
from rl4dialog.training.building.conversations import abilities, chosen_partners, plays_itself, why_unmeasured
from rl4dialog.training.building.policy import algorithm_class, all_arguments, own_policy_args, policy_class
from rl4dialog.training.building.settings import Row, Settings, rows_met
from rl4dialog.training.building.switching import OF_PPO
from rl4dialog.training.processes import is_sharded

_PLAIN_POLICIES = ("causal_lm_actor_critic_policy", "seq2seq_lm_actor_critic_policy")
_OF_ENV = ("bootstrap_truncated", "max_turns", "terminate_on_eos", "max_partner_length", "max_prompt_length", "once")

# Rows of a condition and a message, by level. No command accepts an `error`. `--dry_run` and new runs refuse `refuse`,
# for which the doctor fails; it warns of `warn`. All are notes when a config is loaded, and a `note` is nothing else.
# A condition reads `Settings`.
# fmt: off
CONDITIONS: dict[str, tuple[Row[Settings], ...]] = {
    "error": (
        # -- runs in several processes
        (lambda s: s.n_processes > 1 and not s.data_parallel,
         "alg.id: {alg_id} trains in one process only, not in {n_processes}"),
        (lambda s: s.n_envs % s.n_processes,
         "env.n_envs is {n_envs}, which is not divisible by {n_processes} processes"),
        (lambda s: s.has_fsdp and not s.shardable,
         "alg.id: {alg_id} is not supported with FSDP; start it with plain data parallelism"),
        (lambda s: s.beams and s.has_fsdp,
         "{beams}, but beam search is not supported with FSDP; remove num_beams"),
        (lambda s: s.has_fsdp and s.not_with_fsdp,
         "{not_with_fsdp[0]} is not supported with FSDP; use a launcher config without it"),
        # -- algorithm and policy
        (lambda s: s.masks != s.has_mask,
         "alg.id: {alg_id} does not support policy {policy_id!r}; use {fitting_policy!r}"),
        (lambda s: s.guided,
         "alg.policy.id: {policy_id} is for algorithms that learn from logs, such as ilql"),
        (lambda s: s.needs_critic and s.chosen_critic == "none",
         "alg.policy.args.critic is none, but alg.id: {alg_id} needs a critic"),
        (lambda s: s.needs_critic and s.vf_coef == 0,
         "alg.args.vf_coef is 0, so the critic would never be trained; without one, use alg.id: reinforce with "
         "alg.args.credit: turn (or token), baseline: none and normalize_advantage: true, which is PPO with advantages "
         "that are rewards to go"),
        (lambda s: s.only_of_ppo,
         "alg.policy.args.{only_of_ppo} is not supported with alg.id: {alg_id}, only with ppo and nlpo; remove it"),
        (lambda s: s.critic_reads == "secret" and not s.needs_critic,
         "alg.policy.args.critic_reads has no effect: alg.id: {alg_id} has no critic; remove it"),
        # -- how replies are generated
        (lambda s: s.beams and s.max_turns > 1,
         "{beams}, which is not supported with env.args.max_turns: {max_turns}, only in evaluations of single replies"),
        (lambda s: not s.corrected.do_sample,
         "alg.args.importance_correction needs {own_block}.do_sample: true; greedy replies have no distribution"),
        (lambda s: not s.samples_outside and not s.corrected.truncates,
         "alg.args.importance_correction has no effect: without filters such as {own_block}.top_k; remove it"),
        (lambda s: s.post_processed and s.has_partner,
         "{post_processed}.post_processing_fn is not supported in conversations with env.args.partner; remove it"),
        (lambda s: s.backend == "graph" and s.graph_refusal,
         "generation.backend: graph is not possible here, because {graph_refusal}; remove it"),
        # -- the task
        (lambda s: s.task_readers and not s.has_task,
         "the key 'task' is missing, which {task_readers[0]} needs (known: {known_tasks})"),
        (lambda s: s.has_task and not s.task_readers,
         "task cannot be combined with datapool.id: {pool_id} and this partner; use task_dialogues and agenda_user"),
        # -- partners, each at its place
        (lambda s: not s.can_open,
         "env.args.first_speaker is partner, but partner {partner_id!r} has no first utterance; use sample or agent"),
        (lambda s: s.rule and s.of_partner != s.of_datapool,
         "{place}.args.{rule} is {of_partner}, but datapool.args.{rule} is {of_datapool}; set the same"),
        (lambda s: s.evaluation_partner and not s.has_partner,
         "train_evaluation.partner replaces env.args.partner in evaluations, but there is none"),
        (lambda s: s.plays_itself and not s.has_rollouts,
         "{place}.id: {partner_id} is not supported with alg.id: {alg_id}, which has no rollouts; use language_model"),
        (lambda s: s.learns == "both" and s.toolbox,
         "{place}.args.learns: both is not supported with env.args.toolbox"),
        (lambda s: s.learns == "both" and s.own_sampling,
         "{place}.args.generation_kwargs: with learns: both, both sides sample alike; remove it"),
        (lambda s: s.learns == "both" and s.in_evaluations,
         "{place}.args.learns: nothing is trained in evaluations; remove it"),
        (lambda s: s.learns == "both" and s.policy_id not in _PLAIN_POLICIES,
         f"{{place}}.args.learns: both needs one of the policies {', '.join(_PLAIN_POLICIES)}; the partner speaks "
         "without the mask or values of {policy_id}"),
        (lambda s: s.learns == "both" and s.bootstrap_truncated,
         "{place}.args.learns: both is not supported with env.args.bootstrap_truncated: true"),
        (lambda s: s.learns == "both" and s.critic_reads == "secret",
         "{place}.args.learns: both is not supported with alg.policy.args.critic_reads: secret"),
        (lambda s: not s.has_secret and s.critic_reads == "secret",
         "alg.policy.args.critic_reads is secret, but the partner {partner_id!r} has no secret; use history"),
        (lambda s: s.copies_every and s.in_evaluations,
         "{place}.args.snapshot_every: evaluations have no copies; remove it, or {place} for the initial policy"),
        # -- others
        (lambda s: s.once and not s.has_rollouts,
         "env.args.once has no effect with alg.id: {alg_id}, which has no rollouts; remove it"),
        (lambda s: s.once and s.n_generations > 1,
         "env.args.once: alg.args.n_generations is {n_generations}, so each sample is talked about as often; remove "
         "one of them, or use an algorithm without groups"),
        (lambda s: s.value_rank_states and s.unmeasured,
         "train_evaluation.value_rank_states measures the critic, but {unmeasured}; remove it"),
        (lambda s: s.critic_warmup_iters > s.n_iters,
         "alg.args.critic_warmup_iters is {critic_warmup_iters}, more than the {n_iters} iterations; lower it"),
        (lambda s: s.mask_truncated and not s.terminate_on_eos,
         "alg.args.mask_truncated leaves out all replies with env.args.terminate_on_eos: false; remove one of the two"),
        (lambda s: s.critic_from and not s.needs_critic,
         "alg.policy.args.critic_from has no effect: alg.id: {alg_id} has no critic; remove it"),
        (lambda s: s.reference == "none" and s.coeff,
         "alg.kl_div.coeff is {coeff:g}, but alg.policy.args.reference is none; set coeff: 0 or reference: initial"),
        (lambda s: s.reference == "none" and s.offload_reference,
         "alg.policy.args.offload_reference is true, but alg.policy.args.reference is none; remove one of them"),
        (lambda s: s.reference in ("ema", "reset") and not s.coeff,
         "alg.policy.args.reference: {reference} has no effect on training with alg.kl_div.coeff: 0; remove it"),
    ),
    "refuse": (
        (lambda s: s.too_long, "{too_long[0]}.min_length is {too_long[1]:,}, but replies have at most "
         "{too_long[2]:,} tokens (env.args.max_episode_length); lower it"),
        (lambda s: s.reference_decay == 1,
         "alg.policy.args.reference_decay is 1, so the reference never moves; use 0.99, or reference: initial"),
    ),
    "warn": (
        (lambda s: s.reference_every >= s.n_iters,
         "alg.policy.args.reference_every is {reference_every}, and the run has only {n_iters} iterations; lower it"),
        (lambda s: s.patience > (s.n_iters - 1) // s.eval_every,
         "callback 'early_stopping' can never stop the run: its patience is {patience} evaluations; lower patience"),
        (lambda s: s.keep_best and s.eval_every > s.n_iters,
         "train_evaluation.keep_best can choose only between the first model and the last one: eval_every is "
         "{eval_every}, n_iters {n_iters}; lower the first"),
        (lambda s: s.credit == "turn" and s.max_turns == 1,
         "alg.args.credit: turn is for conversations, but env.args.max_turns is 1; raise it, or use credit: token"),
        (lambda s: s.partner_timeout > s.reward_timeout,
         "env.args.partner.args.timeout_s is {partner_timeout:g}, but reward_fn.timeout_s ends all attempts together "
         "after {reward_timeout:g} seconds; lower it"),
        (lambda s: s.weightless_rewards,
         "reward_fn.{weightless_rewards[0]} has the weight 0, so it is never paid; raise it, or remove this reward"),
    ),
    "note": (
        (lambda s: isinstance(s.learning_rate, Mapping) and s.n_iters > 1
            and as_schedule(s.learning_rate, "learning_rate")(0) == 0,
         "alg.args.learning_rate is 0 in the last of the {n_iters} iterations, which trains nothing; raise its end"),
        (lambda s: s.lora_dropout,
         "lora.lora_dropout has no effect: dropout is off, so that rollouts and updates compute the same"),
        (lambda s: s.eval_every > s.n_iters and s.eval_every != 10,  # the default
         "train_evaluation.eval_every is {eval_every}, more than the {n_iters} iterations; lower it"),
        (lambda s: s.mask_every > s.n_iters,
         "alg.policy.args.target_update_iterations is {mask_every}, more than the {n_iters} iterations; lower it"),
        (lambda s: not s.needs_critic and s.chosen_critic != "none",
         "alg.policy.args.critic has no effect: alg.id: {alg_id} has no critic"),
        (lambda s: s.target_kl_of_penalty and not s.coeff,
         "alg.kl_div.target_kl has no effect: alg.kl_div.coeff is 0, and stays 0 when it is multiplied"),
        (lambda s: s.turn_factor and s.max_turns == 1 and not s.bootstrap_truncated,
         "alg.args.{turn_factor} has no effect: env.args.max_turns is 1"),
        (lambda s: s.pay == "turn" and s.max_turns == 1,
         "reward_fn.pay: turn has no effect: env.args.max_turns is 1"),
        (lambda s: s.baseline == "prompt" and s.n_iters * s.n_steps * s.n_envs < s.n_prompts,
         "alg.args.baseline: prompt needs prompts that come back, but the run has fewer tokens than the {n_prompts:,} "
         "prompts of datapool.args.n_train; lower it, or use running"),
        (lambda s: s.opening and s.first_speaker != "partner",
         "env.args.partner.args.opening has no effect without env.args.first_speaker: partner"),
        (lambda s: s.snapshot_every >= s.n_iters,
         "partner 'self_play' makes no copies: snapshot_every is {snapshot_every}, and n_iters {n_iters}"),
        (lambda s: s.turns_of_games != s.max_turns > 1,
         "datapool.args.max_turns is {turns_of_games}, but env.args.max_turns is {max_turns}"),
        (lambda s: s.latest_share == 1,
         "partner 'self_play': with latest_share: 1 only the newest copy is an opponent, and no older one of the pool"),
        (lambda s: s.max_partner_length >= s.max_prompt_length,
         "env.args.max_partner_length is {max_partner_length:,}, but prompts have only {max_prompt_length:,} tokens"),
        (lambda s: s.critic_reads != "secret" and s.max_secret_length != 256,  # the default
         "env.args.max_secret_length has no effect without alg.policy.args.critic_reads: secret"),
        (lambda s: s.pool_note, "{pool_note}"),
        (lambda s: s.has_partner and s.max_turns == 1,
         "env.args.max_turns is 1: the partner answers once, and the model never reads it"),
    ),
}

# Errors of rewards and a partner, whose conditions read what the rewards need, once they are built.
OF_REWARDS: tuple[Row[Settings], ...] = (
    (lambda s: s.takes and not s.has_partner,
     "reward 'partner' pays what a partner's replies carry, but there is no env.args.partner"),
    (lambda s: s.outcomes and not s.has_partner,
     "reward {outcomes[0][1]!r} pays a partner's outcome, but there is no env.args.partner"),
    (lambda s: s.names and s.first != "sample" and not (s.first == "partner" and s.can.gives_references),
     "reward {names} compares replies with references, but with env.args.first_speaker: {first} the first reply of a "
     "conversation has none; use first_speaker: sample or another reward"),
    (lambda s: s.names and s.max_turns > 1 and not s.can.gives_references,
     "reward {names} compares replies with references, but after the first reply of a conversation, "
     "{place} gives none. Use partner replay, another reward, or env.args.max_turns: 1"),
    (lambda s: s.takes and not s.can.pays,
     "reward 'partner' pays what the replies of {place} carry, which never pays"),
    (lambda s: s.can.pays and not s.takes,
     "the replies of {place} carry rewards, which nothing uses; add the reward 'partner', alone or in 'composite'"),
    (lambda s: s.lacks_tools,
     "reward {lacks_tools!r} reads calls of tools, but there is no env.args.toolbox"),
    (lambda s: s.unknown,
     "reward {unknown[1]!r} pays the outcome {unknown[0]!r}, but {place} reports {known}"),
)
# fmt: on


def conditions_met(config: RunConfig) -> dict[str, str]:
    """Levels of the conditions that a config with valid arguments meets, by message; the most severe first."""
    rows, own = import_object(config.conditions)(config) if config.conditions else ({}, Settings())
    tables: list[tuple[Mapping[str, Sequence[Row[Any]]], Settings]] = [(CONDITIONS, own), (rows, own)]
    if isinstance(config, TextConfig) and config.generation.chosen.conditions:
        tables.append(import_object(config.generation.chosen.conditions)(config))
    values, found = _values(config), dict[str, str]()
    scopes = [{**values, **more} for more in ({}, *_of_partners(config))]
    for level in CONDITIONS:
        for scope, (table, settings) in itertools.product(scopes, tables):
            for message in rows_met(table.get(level, ()), settings.over(scope)):
                found.setdefault(message, level)
    return found


def check_rewards(config: TextConfig, parts: Sequence[RewardPart]) -> None:
    """Check that the rewards get from the partners what they need."""
    functions = {part.name: part.function for part in parts}
    outcomes = [(key, name) for name, f in functions.items() if isinstance(f, OutcomeReward) for key in f.weights]
    values: dict[str, Any] = {"outcomes": outcomes, "names": names_needing(parts, "references") or None}
    values["takes"] = any(isinstance(function, PartnerReward) for function in functions.values())
    scopes: list[dict[str, Any]] = []
    reads_calls = next((name for name, each in functions.items() if getattr(each, "needs_calls", False)), None)
    for chosen, where in chosen_partners(config):
        assert config.env is not None
        can, args = abilities(chosen), config.env.args
        of_tools = () if args.toolbox is None else catalog.ToolboxRegistry.resolve(args.toolbox.id).outcomes
        known = [*can.outcomes, *of_tools]
        scope = {"can": can, "place": f"{where}.id: {chosen.id}", "known": ", ".join(known) or "none"}
        scope["unknown"] = next((each for each in outcomes if each[0] not in known), None)
        scope["lacks_tools"] = reads_calls if args.toolbox is None else None
        scopes.append({**scope, "first": args.first_speaker, "max_turns": args.max_turns})
    for scope in scopes or [{"has_partner": False, "lacks_tools": reads_calls}]:
        for message in rows_met(OF_REWARDS, Settings({**values, **scope})):
            raise ConfigError(message)


def refuse_useless(config: RunConfig) -> None:
    """Refuse a run that cannot do what a setting of it is for."""
    if found := [message for message, level in conditions_met(config).items() if level in ("error", "refuse")]:
        raise ConfigError("; ".join(found))


def _values(config: RunConfig) -> dict[str, Any]:
    """Settings by the last part of their key, with defaults, and what follows from them; ``None`` for none."""
    evaluation = config.train_evaluation
    values: dict[str, Any] = {"n_processes": n_processes(), "has_fsdp": is_sharded()}
    values |= {"data_parallel": True, "shardable": False}
    values |= {"alg_id": config.alg.id, "keep_best": evaluation.keep_best, "eval_every": evaluation.eval_every}
    values["n_iters"] = config.n_iters or None  # a run that only evaluates meets no condition on its length
    for callback in config.callbacks:
        if callback.id == "early_stopping":
            values["patience"] = {**catalog.CallbackRegistry.defaults(callback.id), **callback.args}["patience"]
    kinds: dict[type[Any], Callable[[Any], dict[str, Any]]] = {
        TextConfig: _of_text,
        PolicyRunConfig: _of_policy,
        OnPolicyConfig: _of_rollouts,
    }
    for kind, values_of in kinds.items():
        if isinstance(config, kind):
            values |= values_of(config)
    return values


def _of_text(config: TextConfig) -> dict[str, Any]:
    policy, pool, partners = policy_class(config), config.datapool, chosen_partners(config)
    values: dict[str, Any] = {"policy_id": config.policy_id, "has_rollouts": config.has_rollouts}
    values |= {"backend": config.generation.backend, "samples_outside": bool(config.generation.chosen.build)}
    values["warm_start"] = config.warm_start
    for block in config.generation_blocks:
        settings = GenerationSettings.from_kwargs(block.kwargs, block.where)
        values["graph_refusal"] = values.get("graph_refusal") or eager_reason(
            "graph", "cuda", settings, policy.graph_refusal()
        )
        if config.env is not None and settings.min_length > (limit := config.env.args.max_episode_length):
            values["too_long"] = block.where, settings.min_length, limit
        if settings.num_beams > 1:
            values["beams"] = f"{block.where}.num_beams is {settings.num_beams}"
        if block.kwargs.get("post_processing_fn") is not None:
            values["post_processed"] = block.where
    values |= {"evaluation_partner": config.train_evaluation.partner, "has_partner": bool(partners)}
    if config.env is not None:
        values |= {name: getattr(config.env.args, name) for name in (*_OF_ENV, "max_secret_length", "toolbox")}
    readers = [(catalog.DataPoolRegistry, pool.id, "datapool")]
    readers += [(catalog.PartnerRegistry, chosen.id, place) for chosen, place in partners]
    found = [f"{place}.id: {id}" for registry, id, place in readers if registry.takes(id, "world")]
    values |= {"task_readers": found, "has_task": config.task is not None, "pool_id": pool.id}
    values["known_tasks"] = ", ".join(catalog.TaskRegistry.ids())
    if note_on := getattr(catalog.DataPoolRegistry.resolve(pool.id), "note_on", None):
        values["pool_note"] = note_on(pool.args)
    return values


def _of_policy(config: PolicyRunConfig) -> dict[str, Any]:
    algorithm = algorithm_class(config)
    values = {**all_arguments(config), "value_rank_states": config.train_evaluation.value_rank_states}
    values |= {"unmeasured": why_unmeasured(config), "lora_dropout": (config.lora or {}).get("lora_dropout")}
    values |= {"data_parallel": algorithm.data_parallel, "shardable": algorithm.shardable}
    values |= {"critic_from": config.alg.policy.args.critic_from}
    return values


def _of_rollouts(config: OnPolicyConfig) -> dict[str, Any]:
    algorithm, policy = algorithm_class(config), policy_class(config)
    own, args, block = own_policy_args(config), all_arguments(config), config.own_generation_block
    plain = config.alg.policy.id.removeprefix("maskable_")
    values: dict[str, Any] = {"n_envs": config.env.n_envs}
    values |= {"masks": algorithm.maskable, "has_mask": policy.maskable, "guided": policy.guided}
    values["fitting_policy"] = f"maskable_{plain}" if algorithm.maskable else plain
    values |= {"needs_critic": algorithm.needs_critic, "chosen_critic": own.get("critic"), "own_block": block.where}
    values["is_corrected"] = args.get("importance_correction", "none") != "none"
    if values["is_corrected"]:
        values["corrected"] = GenerationSettings.from_kwargs(block.kwargs, block.where)
    if str(args.get("mask_type", "")).startswith("learned"):
        values["mask_every"] = args["target_update_iterations"]
    values |= {"coeff": config.alg.kl_div.coeff, "target_kl_of_penalty": config.alg.kl_div.target_kl}
    if not issubclass(algorithm, PPO):
        values["only_of_ppo"] = next((name for name in OF_PPO if name in own), None)
    values |= {"first_speaker": config.env.args.first_speaker, "pay": config.reward_fn.pay}
    if partner := config.env.args.partner:
        values |= {name: partner.args.get(name) for name in ("opening", "snapshot_every", "latest_share")}
        values["partner_timeout"] = {**catalog.PartnerRegistry.defaults(partner.id), **partner.args}.get("timeout_s")
        values["reward_timeout"] = config.reward_fn.timeout_s
    values["turn_factor"] = next((key for key in ("turn_gamma", "turn_gae_lambda") if key in config.alg.args), None)
    values["weightless_rewards"] = _weightless(config.reward_fn.id, config.reward_fn.args, "args")
    values["turns_of_games"] = config.datapool.args.get("max_turns")
    pool = config.datapool
    values["n_prompts"] = {**catalog.DataPoolRegistry.defaults(pool.id), **pool.args}.get("n_train")
    used = {
        "env.args.bootstrap_truncated": config.env.args.bootstrap_truncated,
        "train_evaluation.value_rank_states": config.train_evaluation.value_rank_states is not None,
        "alg.policy.args.compile": own.get("compile", False),
        "alg.policy.args.offload_reference": own.get("offload_reference", False),
    }
    return {**values, "not_with_fsdp": [key for key, is_used in used.items() if is_used]}


def _of_partners(config: RunConfig) -> Iterator[dict[str, Any]]:
    if not isinstance(config, TextConfig):
        return
    for chosen, place in chosen_partners(config):
        values = {"place": place, "partner_id": chosen.id, "in_evaluations": place.startswith("train_evaluation")}
        if plays_itself(chosen):
            keys = {"learns": "learns", "own_sampling": "generation_kwargs", "copies_every": "snapshot_every"}
            values |= {"plays_itself": True, **{name: chosen.args.get(key) for name, key in keys.items()}}
        if config.env is not None and config.env.args.first_speaker == "partner":
            values["can_open"] = abilities(chosen).can_open
        if not values["in_evaluations"] and isinstance(config, OnPolicyConfig) and config.critic_reads == "secret":
            can = abilities(chosen)
            found = can if inspect.isclass(can) else type(can)
            values["has_secret"] = getattr(found, "secret", None) is not Partner.secret
        yield values
        # A partner and the datapool of its games play by the same rules.
        pools = {**catalog.DataPoolRegistry.defaults(config.datapool.id), **config.datapool.args}
        partners = {**catalog.PartnerRegistry.defaults(chosen.id), **chosen.args}
        is_same = chosen.id == config.datapool.id
        for rule in getattr(catalog.PartnerRegistry.resolve(chosen.id), "rules", ()) if is_same else ():
            yield {"place": place, "rule": rule, "of_partner": partners[rule], "of_datapool": pools[rule]}


def _weightless(id: str, args: dict[str, Any], where: str) -> list[str]:
    """Paths of the parts of a composite reward that are never paid."""
    found = []
    for i, block in enumerate(args["rewards"] if id == "composite" else []):
        if block.get("weight", 1) == 0:
            found.append(f"{where}.rewards[{i}] ({block['id']})")
        found += _weightless(block["id"], block.get("args") or {}, f"{where}.rewards[{i}].args")
    return found
