"""The table of settings that cannot do what they are for, which load, plan, the start of a run and the doctor read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import combinations
from typing import Any

from rl4dialog.catalog import AlgorithmRegistry, CallbackRegistry, PartnerRegistry, TurnAlgorithmRegistry
from rl4dialog.core.config import TURN_GOALS, OnPolicyConfig, PolicyRunConfig, RunConfig, TurnLevelConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.tasks.turn_goals.goals import TurnGoal, chosen_goals
from rl4dialog.training.building.policy import all_arguments, own_policy_args

_OF_ENV = ("max_turns", "terminate_on_eos", "max_partner_length", "max_prompt_length")
_TARGET = (
    "alg.args.target_update_interval is {target_update_interval:,}, but the run has only {n_timesteps:,} timesteps, so "
    "the target network never moves; lower it, or raise train_evaluation.n_iters"
)

# Rows of a condition and a message, by level. No command accepts an `error`. `--dry_run` and new runs refuse `refuse`,
# for which the doctor fails; it warns of `warn`. All are notes when a config is loaded, and a `note` is nothing else.
# The parameters of a condition name the values that it reads (see `_values`), and it is about runs that have them all.
# fmt: off
CONDITIONS: dict[str, tuple[tuple[Callable[..., Any], str], ...]] = {
    "error": (
        (lambda critic_warmup_iters, n_iters: critic_warmup_iters > n_iters,
         "alg.args.critic_warmup_iters is {critic_warmup_iters}, more than the {n_iters} iterations of "
         "train_evaluation.n_iters, so the policy is never trained; lower it, or make both equal to train only the "
         "critic"),
        (lambda mask_truncated, terminate_on_eos: mask_truncated and not terminate_on_eos,
         "alg.args.mask_truncated leaves out all replies with env.args.terminate_on_eos: false, because none of them "
         "ends before the length limit; remove one of the two"),
        (lambda critic_from, needs_critic: not needs_critic,
         "alg.policy.args.critic_from has no effect: alg.id: {alg_id} has no critic; remove it"),
        (lambda reference, coeff: reference == "none" and coeff,
         "alg.kl_div.coeff is {coeff:g}, but alg.policy.args.reference is none, so there is no KL to penalize; set the "
         "coefficient to 0, or reference to initial"),
        (lambda reference, offload_reference: reference == "none" and offload_reference,
         "alg.policy.args.offload_reference is true, but alg.policy.args.reference is none, so there is nothing to "
         "offload; remove one of them"),
        (lambda reference, coeff: reference in ("ema", "reset") and not coeff,
         "alg.policy.args.reference: {reference} has no effect on training with alg.kl_div.coeff: 0; remove it"),
    ),
    "refuse": (
        (lambda learning_starts, n_timesteps: learning_starts >= n_timesteps,
         "alg.args.learning_starts is {learning_starts:,}, but the run has only {n_timesteps:,} timesteps (n_iters * "
         "train_freq * n_envs), so nothing is ever trained; lower it, or raise train_evaluation.n_iters"),
        (lambda gradient_steps: gradient_steps == 0,
         "alg.args.gradient_steps is 0, so nothing is ever trained; use 1, or -1 for as many as timesteps"),
        (lambda estimator_warmup_iters, n_iters: estimator_warmup_iters >= n_iters,
         "alg.args.estimator_warmup_iters is {estimator_warmup_iters}, and the run has only {n_iters} iterations, so "
         "the policy is never trained; lower it, or raise train_evaluation.n_iters"),
        (lambda buffer_size, batch_size: buffer_size < batch_size,
         "alg.args.buffer_size is {buffer_size:,}, less than alg.args.batch_size = {batch_size:,}, so every minibatch "
         "repeats timesteps; raise it"),
        (lambda n_target_updates, chosen_interval: n_target_updates == 0, _TARGET),
        (lambda tau, train_freq: tau == 0,
         "alg.args.tau is 0, so the target network never moves; use 1 for copies, or a small rate such as 0.005"),
        (lambda polyak_rate: polyak_rate == 0,
         "alg.args.polyak_rate is 0, so the targets of the values never move; use a small rate such as 0.005"),
        (lambda reference_decay: reference_decay == 1,
         "alg.policy.args.reference_decay is 1, so the reference never moves; use 0.99, or reference: initial"),
        (lambda goals: len(goals) == 1,
         "env.args.goals has only the goal {goals[0].name!r}, so the agent has nothing to choose; add another goal"),
        (lambda equal_goals: equal_goals,
         "env.args.goals: {equal_goals[0].name!r} and {equal_goals[1].name!r} have the same name, questions or words, "
         "so they are one goal; remove one of them"),
        (lambda empty_goals: empty_goals,
         "env.args.goals: {empty_goals[0].name!r} has words, but none is a content word, so no reply ever shows the "
         "goal; add others"),
        (lambda wordless_goals: len(wordless_goals) > 1,
         "env.args.goals: {wordless_goals[0].name!r} and {wordless_goals[1].name!r} have no words, so no reply tells "
         "which of them it follows; add words to all goals but one"),
    ),
    "warn": (
        (lambda n_target_updates: n_target_updates == 0, _TARGET),
        (lambda reference_every, n_iters: reference_every >= n_iters,
         "alg.policy.args.reference_every is {reference_every}, and the run has only {n_iters} iterations, so the "
         "reference stays the initial policy; lower it, or use reference: initial"),
        (lambda patience, eval_every, n_iters: patience > (n_iters - 1) // eval_every,
         "callback 'early_stopping' can never stop the run: its patience is {patience} evaluations, and {n_iters} "
         "iterations have fewer with eval_every: {eval_every}; lower patience or eval_every"),
        (lambda keep_best, eval_every, n_iters: eval_every > n_iters,
         "train_evaluation.keep_best has no effect: eval_every is {eval_every} and n_iters {n_iters}, so only the last "
         "iteration is evaluated, whose checkpoint is kept anyway; lower eval_every"),
        (lambda credit, max_turns: credit == "turn" and max_turns == 1,
         "alg.args.credit: turn is for conversations, but env.args.max_turns is 1; raise it, or use credit: token"),
        (lambda n_turns, buffer_size: n_turns > buffer_size,
         "warm_start.args.n_turns is {n_turns:,}, but alg.args.buffer_size is {buffer_size:,}: the first are lost"),
        (lambda partner_timeout, reward_timeout: partner_timeout > reward_timeout,
         "env.args.partner.args.timeout_s is {partner_timeout:g}, but reward_fn.timeout_s ends all attempts together "
         "after {reward_timeout:g} seconds; lower it"),
        (lambda exploration_initial_eps, exploration_final_eps: exploration_final_eps > exploration_initial_eps,
         "alg.args.exploration_final_eps is {exploration_final_eps:g}, above exploration_initial_eps = "
         "{exploration_initial_eps:g}, so the agent explores more and more; swap them"),
    ),
    "note": (
        (lambda lora_dropout: lora_dropout,
         "lora.lora_dropout has no effect: dropout is always off, so that a token has the same log-probability in "
         "rollouts and updates"),
        (lambda eval_every, n_iters: eval_every > n_iters and eval_every != 10,  # the default
         "train_evaluation.eval_every is {eval_every}, more than the {n_iters} iterations of the run: the val split is "
         "evaluated only before and after training"),
        (lambda learned_mask_every, n_iters: learned_mask_every > n_iters,
         "alg.policy.args.target_update_iterations is {learned_mask_every}, more than the {n_iters} iterations of "
         "the run, so the mask policy stays the initial policy"),
        (lambda chosen_critic, needs_critic: not needs_critic and chosen_critic != "none",
         "alg.policy.args.critic has no effect: alg.id: {alg_id} has no critic"),
        (lambda target_kl_of_penalty, coeff: not coeff,
         "alg.kl_div.target_kl has no effect: alg.kl_div.coeff is 0, and stays 0 when it is multiplied"),
        (lambda turn_factor, credit: credit != "turn", "alg.args.{turn_factor} has no effect without credit: turn"),
        (lambda pay, max_turns: pay == "turn" and max_turns == 1,
         "reward_fn.pay: turn has no effect: env.args.max_turns is 1"),
        (lambda opening, first_speaker: first_speaker != "partner",
         "env.args.partner.args.opening has no effect without env.args.first_speaker: partner"),
        (lambda snapshot_every, n_iters: snapshot_every >= n_iters,
         "partner 'self_play' makes no copies: snapshot_every is {snapshot_every}, and n_iters {n_iters}"),
        (lambda turns_of_games, max_turns: turns_of_games != max_turns > 1,
         "datapool.args.max_turns is {turns_of_games}, but env.args.max_turns is {max_turns}"),
        (lambda latest_share: latest_share == 1,
         "partner 'self_play': with latest_share: 1 only the newest copy is an opponent, and no older one of the pool"),
        (lambda max_partner_length, max_prompt_length: max_partner_length >= max_prompt_length,
         "env.args.max_partner_length is {max_partner_length:,}, but prompts have only max_prompt_length = "
         "{max_prompt_length:,} tokens"),
        (lambda reward_scale, alg_id: alg_id == "bc" and reward_scale != 1,
         "datapool.args.reward_scale has no effect: alg.id: bc learns from all conversations, whatever their rewards"),
        (lambda n_composites, action: action != "composite",
         "env.args.n_composites has no effect without env.args.action: composite"),
    ),
}
# fmt: on


def conditions_met(config: RunConfig) -> dict[str, str]:
    """Levels of the conditions that a config with valid arguments meets, by message; the most severe first."""
    values = {name: value for name, value in _values(config).items() if value is not None}
    found: dict[str, str] = {}
    for level, rows in CONDITIONS.items():
        for holds, message in rows:
            names = inspect.signature(holds).parameters
            if names.keys() <= values.keys() and holds(*(values[name] for name in names)):
                found.setdefault(message.format(**values), level)
    return found


def refuse_useless(config: RunConfig) -> None:
    """Refuse a run that cannot do what a setting of it is for."""
    if found := [message for message, level in conditions_met(config).items() if level in ("error", "refuse")]:
        raise ConfigError("; ".join(found))


def _values(config: RunConfig) -> dict[str, Any]:
    """Settings by the last part of their key, with defaults, and numbers that follow from them; ``None`` for none."""
    values: dict[str, Any] = {}
    if isinstance(config, TurnLevelConfig):
        values |= _of_turn_level(config)
    if isinstance(config, PolicyRunConfig):
        values |= {**all_arguments(config), "lora_dropout": (config.lora or {}).get("lora_dropout")}
        values["reward_scale"] = config.datapool.args.get("reward_scale")
        if config.env is not None:
            values |= {name: getattr(config.env.args, name) for name in _OF_ENV}
    if isinstance(config, OnPolicyConfig):
        if values.get("mask_type", "").startswith("learned"):
            values["learned_mask_every"] = values["target_update_iterations"]
        values |= {"coeff": config.alg.kl_div.coeff, "target_kl_of_penalty": config.alg.kl_div.target_kl}
        values["needs_critic"] = AlgorithmRegistry.resolve(config.alg.id).needs_critic
        values["critic_from"] = config.alg.policy.args.critic_from
        values["chosen_critic"] = own_policy_args(config).get("critic")
        values |= {"first_speaker": config.env.args.first_speaker, "pay": config.reward_fn.pay}
        if partner := config.env.args.partner:
            values |= {name: partner.args.get(name) for name in ("opening", "snapshot_every", "latest_share")}
            values["partner_timeout"] = {**PartnerRegistry.defaults(partner.id), **partner.args}.get("timeout_s")
            values["reward_timeout"] = config.reward_fn.timeout_s
        values["turn_factor"] = next((key for key in ("turn_gamma", "turn_gae_lambda") if key in config.alg.args), None)
        values["turns_of_games"] = config.datapool.args.get("max_turns")
    for callback in config.callbacks:
        if callback.id == "early_stopping":
            values["patience"] = {**CallbackRegistry.defaults(callback.id), **callback.args}["patience"]
    evaluation = config.train_evaluation
    values |= {"alg_id": config.alg.id, "keep_best": evaluation.keep_best, "eval_every": evaluation.eval_every}
    return {**values, "n_iters": config.n_iters or None}  # a run that only evaluates meets no condition on its length


def _of_turn_level(config: TurnLevelConfig) -> dict[str, Any]:
    values = {**TurnAlgorithmRegistry.defaults(config.alg.id), **config.alg.args}
    values |= {"n_composites": config.env.args.get("n_composites"), "action": config.env.args.get("action", "")}
    values["n_turns"] = config.warm_start and config.warm_start.args.get("n_turns")
    n_steps = values["train_freq"] * config.n_iters if "train_freq" in values else 0
    if n_steps:
        values["n_timesteps"] = n_steps * config.env.n_envs
        if "exploration_fraction" in values:  # DQN and its kind count steps, and others updates
            values["n_target_updates"] = n_steps // max(values["target_update_interval"] // config.env.n_envs, 1)
            values["chosen_interval"] = config.alg.args.get("target_update_interval")
    if config.env.id == TURN_GOALS:
        goals = chosen_goals(config.env.args["goals"], "env.args.goals")
        values["goals"] = goals
        values["equal_goals"] = next((pair for pair in combinations(goals, 2) if _are_equal(*pair)), ())
        values["empty_goals"] = [goal for goal in goals if goal.words and not goal.content]
        values["wordless_goals"] = [goal for goal in goals if not goal.words]
    return values


def _are_equal(one: TurnGoal, other: TurnGoal) -> bool:
    names = [" ".join(goal.name.lower().split()) for goal in (one, other)]
    return names[0] == names[1] or one.questions == other.questions != () or one.content == other.content != frozenset()
