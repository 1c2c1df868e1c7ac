"""Settings that cannot do what they are for: conditions on arguments, with defaults filled in, and derived numbers.

Conditions on keys alone are in ``core/conditions.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from rl4dialog.catalog import AlgorithmRegistry, CallbackRegistry, TurnAlgorithmRegistry
from rl4dialog.core.conditions import CONDITIONS as OF_KEYS
from rl4dialog.core.conditions import Condition, Met, conditions_met, config_values
from rl4dialog.core.config import OnPolicyConfig, PolicyRunConfig, RunConfig, SupervisedConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.reward_model_config import RewardModelConfig
from rl4dialog.core.turn_level_config import TURN_GOALS, TurnLevelConfig
from rl4dialog.tasks.turn_goals.goals import TurnGoal, chosen_goals
from rl4dialog.training.building.policy import all_arguments, own_policy_args

CONDITIONS = (
    # -- nothing is learned ---------------------------------------------------------------------------------------
    Condition(
        "refuse",
        lambda learning_starts, n_timesteps: learning_starts >= n_timesteps,
        "alg.args.learning_starts is {learning_starts:,}, but the run has only {n_timesteps:,} timesteps (n_iters * "
        "train_freq * n_envs), so nothing is ever trained; lower it, or raise train_evaluation.n_iters",
    ),
    Condition(
        "refuse",
        lambda gradient_steps: gradient_steps == 0,
        "alg.args.gradient_steps is 0, so nothing is ever trained; use 1, or -1 for as many as timesteps",
    ),
    Condition(
        "refuse",
        lambda estimator_warmup_iters, n_iters: estimator_warmup_iters >= n_iters,
        "alg.args.estimator_warmup_iters is {estimator_warmup_iters}, and the run has only {n_iters} iterations, so "
        "the policy is never trained; lower it, or raise train_evaluation.n_iters",
    ),
    Condition(
        "error",
        lambda critic_warmup_iters, n_iters: critic_warmup_iters > n_iters,
        "alg.args.critic_warmup_iters is {critic_warmup_iters}, more than the {n_iters} iterations of "
        "train_evaluation.n_iters, so the policy is never trained; lower it, or make both equal to train only the "
        "critic",
    ),
    Condition(
        "warn",
        lambda learning_rate: learning_rate == 0,
        "alg.args.learning_rate is 0, so nothing is learned; raise it",
    ),
    Condition(
        "error",
        lambda mask_truncated, terminate_on_eos: mask_truncated and not terminate_on_eos,
        "alg.args.mask_truncated leaves out all replies with env.args.terminate_on_eos: false, because none of them "
        "ends before the length limit; remove one of the two",
    ),
    # -- replay buffers and minibatches ---------------------------------------------------------------------------
    Condition(
        "refuse",
        lambda buffer_size, batch_size: buffer_size < batch_size,
        "alg.args.buffer_size is {buffer_size:,}, less than alg.args.batch_size = {batch_size:,}, so every minibatch "
        "repeats the same timesteps; raise it",
    ),
    Condition(
        "warn",
        lambda buffer_size, n_collected: buffer_size < n_collected,
        "alg.args.buffer_size is {buffer_size:,}, but an iteration has train_freq * n_envs = {n_collected:,} "
        "timesteps, so some are overwritten before they are learned from; raise it",
    ),
    Condition(
        "warn",
        lambda batch_size, n_rollout_steps: batch_size > n_rollout_steps,
        "alg.args.batch_size is {batch_size:,}, but an iteration collects only n_steps * n_envs = {n_rollout_steps:,} "
        "timesteps, which are one smaller minibatch; lower it",
    ),
    # -- targets and copies that never move -----------------------------------------------------------------------
    Condition(
        "refuse",
        lambda target_update_interval, n_target_updates, n_timesteps: n_target_updates == 0,
        "alg.args.target_update_interval is {target_update_interval:,}, but the run has only {n_timesteps:,} "
        "timesteps, so the target network never moves; lower it, or raise train_evaluation.n_iters",
    ),
    Condition(
        "refuse",
        lambda tau, train_freq: tau == 0,
        "alg.args.tau is 0, so the target network never moves; use 1 for copies, or a small rate such as 0.005",
    ),
    Condition(
        "refuse",
        lambda polyak_rate: polyak_rate == 0,
        "alg.args.polyak_rate is 0, so the targets of the values never move; use a small rate such as 0.005",
    ),
    Condition(
        "refuse",
        lambda reference_decay: reference_decay == 1,
        "alg.policy.args.reference_decay is 1, so the reference never moves; use a share such as 0.99, or reference: "
        "initial",
    ),
    Condition(
        "warn",
        lambda reference_every, n_iters: reference_every >= n_iters,
        "alg.policy.args.reference_every is {reference_every}, and the run has only {n_iters} iterations, so the "
        "reference stays the initial policy; lower it, or use reference: initial",
    ),
    Condition(
        "warn",
        lambda target_update_iterations, mask_type, n_iters: (
            target_update_iterations > n_iters and mask_type.startswith("learned")
        ),
        "alg.policy.args.target_update_iterations is {target_update_iterations}, more than the {n_iters} iterations of "
        "the run, so the mask policy stays the initial policy; lower it",
    ),
    # -- later than the run ---------------------------------------------------------------------------------------
    Condition(
        "warn",
        lambda patience, eval_every, n_iters: patience > (n_iters - 1) // eval_every,
        "callback 'early_stopping' can never stop the run: its patience is {patience} evaluations, and {n_iters} "
        "iterations have fewer with eval_every: {eval_every}; lower patience or eval_every",
    ),
    Condition(
        "warn",
        lambda every_n, n_iters: every_n > n_iters,
        "callback 'every_n_iterations' is never called: its n is {every_n}, more than the {n_iters} iterations of the "
        "run; lower it",
    ),
    Condition(
        "warn",
        lambda warmup_steps, max_steps: warmup_steps >= max_steps > 0,
        "alg.training_args.warmup_steps is {warmup_steps}, and the run has only max_steps = {max_steps}, so the "
        "learning rate never reaches its value; lower it",
    ),
    # -- arguments that others disable ----------------------------------------------------------------------------
    Condition(
        "warn",
        lambda credit, max_turns: credit == "turn" and max_turns == 1,
        "alg.args.credit: turn is for conversations, but env.args.max_turns is 1: each reply gets the credit of its "
        "whole reward; raise max_turns, or use credit: token",
    ),
    Condition(
        "error",
        lambda critic_from, needs_critic: not needs_critic,
        "alg.policy.args.critic_from has no effect: alg.id: {alg_id} has no critic; remove it",
    ),
    Condition(
        "note",
        lambda chosen_critic, needs_critic: not needs_critic and chosen_critic != "none",
        "alg.policy.args.critic has no effect: alg.id: {alg_id} has no critic",
    ),
    Condition(
        "error",
        lambda reference, coeff: reference == "none" and coeff,
        "alg.kl_div.coeff is {coeff:g}, but alg.policy.args.reference is none, so there is no KL to penalize; set the "
        "coefficient to 0, or reference to initial",
    ),
    Condition(
        "error",
        lambda reference, offload_reference: reference == "none" and offload_reference,
        "alg.policy.args.offload_reference is true, but alg.policy.args.reference is none, so there is nothing to "
        "offload; remove one of them",
    ),
    Condition(
        "error",
        lambda reference, coeff: reference in ("ema", "reset") and not coeff,
        "alg.policy.args.reference: {reference} has no effect on training with alg.kl_div.coeff: 0; remove it",
    ),
    # -- goals of turns -------------------------------------------------------------------------------------------
    Condition(
        "refuse",
        lambda goals: len(goals) == 1,
        "env.args.goals has only the goal {goals[0].name!r}, so the agent has nothing to choose; add another goal",
    ),
    Condition(
        "refuse",
        lambda equal_goals: bool(equal_goals),
        "env.args.goals: {equal_goals[0].name!r} and {equal_goals[1].name!r} have the same name, questions or words, "
        "so they are one goal; remove one of them",
    ),
    Condition(
        "refuse",
        lambda empty_goals, wordless_goals: bool(empty_goals),
        "env.args.goals: {empty_goals[0].name!r} has words, but none is a content word, so no reply ever shows the "
        "goal; add others",
    ),
    Condition(
        "refuse",
        lambda wordless_goals: len(wordless_goals) > 1,
        "env.args.goals: {wordless_goals[0].name!r} and {wordless_goals[1].name!r} have no words, so no reply tells "
        "which of them it follows; add words to all goals but one",
    ),
)


def all_conditions_met(config: RunConfig) -> list[Met]:
    """Return the conditions of all tables that a config with valid arguments meets."""
    return conditions_met((*OF_KEYS, *CONDITIONS), {**config_values(config), **_values(config)})


def refuse_useless(config: RunConfig) -> None:
    """Refuse a run that cannot do what a setting of it is for.

    Raises:
        ConfigError: If it meets a condition that says so. The message lists all of them.
    """
    if found := [met.message for met in all_conditions_met(config) if met.level in ("refuse", "error")]:
        raise ConfigError("; ".join(found))


def _values(config: RunConfig) -> dict[str, Any]:
    values: dict[str, Any] = dict(_of_callbacks(config))
    if isinstance(config, TurnLevelConfig):
        values |= _of_turn_level(config)
    if isinstance(config, PolicyRunConfig):
        values |= all_arguments(config)
        if config.env is not None:
            values |= {name: getattr(config.env.args, name) for name in ("max_turns", "terminate_on_eos")}
    if isinstance(config, OnPolicyConfig):
        values["needs_critic"] = AlgorithmRegistry.resolve(config.alg.id).needs_critic
        values["critic_from"] = config.alg.policy.args.critic_from
        values["chosen_critic"] = own_policy_args(config).get("critic")
    if isinstance(config, (SupervisedConfig, RewardModelConfig)):
        values |= {name: config.alg.training_args.get(name) for name in ("warmup_steps", "max_steps")}
    return values


def _of_callbacks(config: RunConfig) -> Iterator[tuple[str, Any]]:
    for callback in config.callbacks:
        args = {**CallbackRegistry.defaults(callback.id), **callback.args}
        for id, argument, name in (("early_stopping", "patience", "patience"), ("every_n_iterations", "n", "every_n")):
            if callback.id == id:
                yield name, args[argument]


def _of_turn_level(config: TurnLevelConfig) -> dict[str, Any]:
    values = {**TurnAlgorithmRegistry.defaults(config.alg.id), **config.alg.args}
    n_envs = config.env.n_envs
    if "train_freq" in values:
        values["n_collected"] = values["train_freq"] * n_envs
        values["n_timesteps"] = values["n_collected"] * config.n_iters or None
        if "exploration_fraction" in values:  # DQN and its kind count steps, and others updates
            every = max(values["target_update_interval"] // n_envs, 1)
            values["n_target_updates"] = values["train_freq"] * config.n_iters // every
    elif "n_epochs" in values:
        values["n_rollout_steps"] = values["n_steps"] * n_envs
    if config.env.id == TURN_GOALS:
        values |= _of_goals(chosen_goals(config.env.args["goals"], "env.args.goals"))
    return values


def _of_goals(goals: tuple[TurnGoal, ...]) -> dict[str, Any]:
    def are_equal(one: TurnGoal, other: TurnGoal) -> bool:
        same_name = " ".join(one.name.lower().split()) == " ".join(other.name.lower().split())
        return same_name or (one.questions == other.questions != ()) or (one.content == other.content != frozenset())

    return {
        "goals": goals,
        "equal_goals": next((pair for pair in combinations(goals, 2) if are_equal(*pair)), ()),
        "empty_goals": [goal for goal in goals if goal.words and not goal.content],
        "wordless_goals": [goal for goal in goals if not goal.words],
    }
