"""Settings of turn-level runs that cannot do what they are for, as in the core's table of conditions."""

from __future__ import annotations

from itertools import combinations

from rl4dialog import catalog
from rl4dialog.features.dialogue_acts.config import DIALOGUE_ACTS, TURN_GOALS, TurnLevelConfig
from rl4dialog.tasks.turn_goals import TurnGoal, chosen_goals
from rl4dialog.training.building.settings import Row, Settings

_TARGET = (
    "alg.args.target_update_interval is {target_update_interval:,}, but the run has only {n_timesteps:,} timesteps; "
    "lower it"
)


class TurnLevelSettings(Settings):
    """What conditions of turn-level runs read."""

    vec_env: str
    n_timesteps: int
    batch_size: int
    buffer_size: int
    learning_starts: int
    train_freq: int
    gradient_steps: int
    tau: float
    target_update_interval: int
    chosen_interval: int
    n_target_updates: int
    exploration_initial_eps: float
    exploration_final_eps: float
    n_turns: int
    max_turns_of_task: int
    n_composites: int
    action: str
    estimator_warmup_iters: int
    goals: list[TurnGoal]
    equal_goals: str
    empty_goals: list[TurnGoal]
    wordless_goals: list[TurnGoal]


# fmt: off
CONDITIONS: dict[str, tuple[Row[TurnLevelSettings], ...]] = {
    "error": (
        (lambda s: s.n_processes > 1,
         "alg.id: {alg_id} learns at turn level, in one process only, not in {n_processes}; set env.n_envs, whose "
         "environments are vectorized: the network reads all their turns in one batch"),
        (lambda s: s.goals and s.vec_env != "dummy",
         "env.vec_env: {vec_env} cannot be combined with env.id: turn_goals, all in the main process; remove it"),
    ),
    "refuse": (
        (lambda s: s.learning_starts >= s.n_timesteps,
         "alg.args.learning_starts is {learning_starts:,}, but the run has only {n_timesteps:,} timesteps; lower it"),
        (lambda s: s.gradient_steps == 0,
         "alg.args.gradient_steps is 0, so nothing is ever trained; use 1, or -1 for as many as timesteps"),
        (lambda s: s.estimator_warmup_iters >= s.n_iters,
         "alg.args.estimator_warmup_iters is {estimator_warmup_iters}, but n_iters {n_iters}; lower it"),
        (lambda s: s.buffer_size < s.batch_size,
         "alg.args.buffer_size is {buffer_size:,}, less than alg.args.batch_size = {batch_size:,}; raise it"),
        (lambda s: s.chosen_interval and s.n_target_updates == 0, _TARGET),
        (lambda s: s.train_freq and s.tau == 0,
         "alg.args.tau is 0, so the target network never moves; use 1 for copies, or a small rate such as 0.005"),
        (lambda s: len(s.goals) == 1,
         "env.args.goals has only the goal {goals[0].name!r}, so the agent has nothing to choose; add another goal"),
        (lambda s: s.equal_goals, "env.args.goals: {equal_goals} have the same name, questions or words; remove one"),
        (lambda s: s.empty_goals,
         "env.args.goals: {empty_goals[0].name!r} has words, but none is a content word; add others"),
        (lambda s: len(s.wordless_goals) > 1,
         "env.args.goals: {wordless_goals[0].name!r} and {wordless_goals[1].name!r} have no words; add some to one"),
    ),
    "warn": (
        (lambda s: s.n_target_updates == 0, _TARGET),
        (lambda s: s.n_turns > s.buffer_size,
         "warm_start.args.n_turns is {n_turns:,}, but alg.args.buffer_size is {buffer_size:,}: the first are lost"),
        (lambda s: s.exploration_final_eps > s.exploration_initial_eps,
         "alg.args.exploration_final_eps is {exploration_final_eps:g}, so the agent explores more and more; lower it"),
    ),
    "note": (
        (lambda s: s.max_turns_of_task == 1,
         "env.args.max_turns is 1: every dialogue ends with the first answer of the agent, whatever the user needs"),
        (lambda s: s.n_composites and s.action != "composite",
         "env.args.n_composites has no effect without env.args.action: composite"),
    ),
}
# fmt: on


def own_conditions(
    config: TurnLevelConfig,
) -> tuple[dict[str, tuple[Row[TurnLevelSettings], ...]], TurnLevelSettings]:
    """The rows, and the settings that they read."""
    values = {**catalog.TurnAlgorithmRegistry.defaults(config.alg.id), **config.alg.args, "vec_env": config.env.vec_env}
    values["shardable"] = True  # more processes than one are refused anyway
    values |= {"n_composites": config.env.args.get("n_composites"), "action": config.env.args.get("action", "")}
    if config.env.id == DIALOGUE_ACTS:
        values["max_turns_of_task"] = config.env.args.get("max_turns")
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
        equal = (f"{a.name!r} and {b.name!r}" for a, b in combinations(goals, 2) if _are_equal(a, b))
        values["equal_goals"] = next(equal, None)
        values["empty_goals"] = [goal for goal in goals if goal.words and not goal.content]
        values["wordless_goals"] = [goal for goal in goals if not goal.words]
    return CONDITIONS, TurnLevelSettings(values)


def _are_equal(one: TurnGoal, other: TurnGoal) -> bool:
    names = [" ".join(goal.name.lower().split()) for goal in (one, other)]
    return names[0] == names[1] or one.questions == other.questions != () or one.content == other.content != frozenset()
