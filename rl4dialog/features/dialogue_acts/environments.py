"""Environments and algorithms of turn-level runs: checks, then everything is built."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog import catalog
from rl4dialog.core.config_blocks import ComponentConfig
from rl4dialog.core.errors import ConfigError, RL4DialogError, raised
from rl4dialog.core.protocols import Partner
from rl4dialog.core.registry import Registry
from rl4dialog.data.pool import SPLITS, Data
from rl4dialog.envs.vectorize import vectorize, worker_count
from rl4dialog.features.dialogue_acts.config import DIALOGUE_ACTS, TURN_GOALS, TurnLevelConfig
from rl4dialog.features.dialogue_acts.gym_wrappers import NumberedEpisodes, make_resumable
from rl4dialog.features.dialogue_acts.turn_goals.vec_env import TurnGoalVecEnv, greedy_order
from rl4dialog.features.personas.persona_ranking import PersonaRanking
from rl4dialog.tasks.turn_goals import chosen_goals
from rl4dialog.training.building.conversations import check_partners_data, resolve_partner
from rl4dialog.training.building.policy import check_fits, check_own
from rl4dialog.training.building.texts import build_pool
from rl4dialog.training.memory import MIB

_N_FOR_ORDER = 200  # conversations in which the goals of each turn are compared to find a fixed order
_DEFAULT_ESTIMATOR = ComponentConfig(id="bag_of_words")


@dataclass(frozen=True)
class GoalParts:
    """What the environments of all splits share."""

    data: Data
    args: dict[str, Any]  # arguments of `TurnGoalVecEnv`; its functions load models once, at their first call


def _check_turn_goals(config: TurnLevelConfig, run: str) -> None:
    """Check goals, datapool, partner and reward. Nothing is loaded."""
    pool, partner, speaker, reward = config.datapool, config.partner, config.speaker, config.reward_fn
    assert pool is not None and partner is not None and speaker is not None and reward is not None
    goals = chosen_goals(config.env.args["goals"], "env.args.goals")
    if speaker.id == "scripted":
        catalog.SpeakerRegistry.get("scripted").check(goals)
    if "split" in pool.args:
        raise ConfigError("datapool.args.split: every run reads all three splits; remove it")
    for key, registry, chosen, argument, what in (
        ("datapool", catalog.DataPoolRegistry, pool, "world", "needs a task"),
        ("partner", catalog.PartnerRegistry, partner, "world", "needs a task"),
        ("partner", catalog.PartnerRegistry, partner, "own_side", "speaks with the model that a run trains"),
        ("partner", catalog.PartnerRegistry, partner, "built", "has the partners of a run on text"),
    ):
        registry.check(chosen.id, chosen.args, f"{key}.args")
        if registry.takes(chosen.id, argument):
            raise ConfigError(f"{key}.id: {chosen.id} cannot be combined with {run}: it {what}, and there is none")
    catalog.RewardFunctionRegistry.check(reward.id, reward.args, "reward_fn.args")
    if not catalog.RewardFunctionRegistry.takes(reward.id, "pays_now"):
        due = "of conversations and are due after every turn (they have an argument pays_now); use persona_ranking"
        raise ConfigError(f"reward_fn.id: {reward.id} cannot be combined with {run}, whose rewards are {due}")


def _build_goal_parts(config: TurnLevelConfig) -> GoalParts:
    """Load the samples; a sample that does not suit the partner is a ``DataError`` of the partner's function."""
    pool, partner, speaker, reward = config.datapool, config.partner, config.speaker, config.reward_fn
    assert pool is not None and partner is not None and speaker is not None and reward is not None
    data = Data({split: build_pool(pool.id, {**pool.args, "split": split}) for split in SPLITS}, None)
    estimator = config.estimator or _DEFAULT_ESTIMATOR
    personas = data.personas("partner_persona")
    ranking = catalog.RewardFunctionRegistry.get(reward.id, reward.args, personas=data.personas, pays_now=True)

    def build_partner(**lengths: int) -> Any:
        built = resolve_partner(partner, **lengths)
        if isinstance(built, Partner) and built.checks_samples:
            check_partners_data(built, data, data.pools)
        return built

    args: dict[str, Any] = {
        **config.env.args,
        "speaker": functools.cache(functools.partial(catalog.SpeakerRegistry.get, speaker.id, speaker.args)),
        "partner": functools.cache(build_partner),
        "estimator": functools.cache(
            functools.partial(catalog.EstimatorRegistry.get, estimator.id, estimator.args, personas=personas)
        ),
        "turn_reward": ranking,
        "outcomes": ranking.ranks if isinstance(ranking, PersonaRanking) else None,
    }
    return GoalParts(data, args)


def _build_goal_envs(split: str, n_envs: int, parts: GoalParts, is_evaluation: bool = False) -> TurnGoalVecEnv:
    """Build the environments of a split; those of evaluations have numbered episodes, transcripts and all players."""

    @functools.cache
    def best_order() -> list[int]:
        samples = parts.data.samples("train")
        n_compared = min(_N_FOR_ORDER, len(samples))
        return greedy_order(TurnGoalVecEnv(**parts.args, samples=samples, n_envs=n_compared, is_numbered=True))

    more: dict[str, Any] = {"is_numbered": True, "keeps_transcripts": True, "best_order": best_order}
    envs = TurnGoalVecEnv(
        **parts.args, samples=parts.data.samples(split), n_envs=n_envs, **(more if is_evaluation else {})
    )
    envs.parts = parts
    return envs


_PARTS = {"nlu": catalog.NluRegistry, "tracker": catalog.TrackerRegistry, "nlg": catalog.NlgRegistry}
# Blocks for `turn_goals` only, with an id to begin with if they are required; rewards exist elsewhere too.
_OF_GOALS = {
    "datapool": "get_acquainted",
    "speaker": "scripted",
    "partner": "facts",
    "reward_fn": "persona_ranking",
    "estimator": None,
}


def check_turn_level(config: TurnLevelConfig) -> None:
    """Check the ids and arguments of algorithm, policy and environment. No environment is built."""
    policy, is_about_goals = config.alg.policy, config.env.id == TURN_GOALS
    run = f"env.id: {config.env.id}"
    check_fits("alg.id", config.alg.id, catalog.TurnAlgorithmRegistry, catalog.AlgorithmRegistry, run)
    check_fits("alg.policy.id", policy.id, catalog.TurnPolicyRegistry, catalog.PolicyRegistry, run)
    chosen: list[tuple[str, Registry, str, dict[str, Any]]] = [
        ("alg.args", catalog.TurnAlgorithmRegistry, config.alg.id, config.alg.args),
        ("alg.policy.args", catalog.TurnPolicyRegistry, policy.id, policy.args),
    ]
    if config.env.id in catalog.EnvRegistry:
        chosen.append(("env.args", catalog.EnvRegistry, config.env.id, config.env.args))
    else:
        _spec(config.env.id)
    _check_blocks(config, run)
    of_kind = {"task": catalog.TaskRegistry, "warm_start": catalog.TurnWarmStartRegistry, **_PARTS}
    if is_about_goals:
        of_kind |= {"speaker": catalog.SpeakerRegistry, "estimator": catalog.EstimatorRegistry}
    else:
        of_kind["reward_fn"] = catalog.TurnRewardRegistry
    for key, registry in of_kind.items():
        if (block := getattr(config, key)) is not None:
            chosen.append((f"{key}.args", registry, block.id, block.args))
    for where, registry, id, args in chosen:
        check_own(registry, id, args, where)
    if is_about_goals:
        _check_turn_goals(config, run)


def _check_blocks(config: TurnLevelConfig, run: str) -> None:
    accepted, is_about_goals = _parameters(config.env.id), config.env.id == TURN_GOALS
    for key, known in _OF_GOALS.items():
        if is_about_goals and getattr(config, key) is None and known:
            raise ConfigError(f"the key {key!r} is missing, which {run} needs (such as id: {known})")
        if not is_about_goals and key != "reward_fn" and getattr(config, key) is not None:
            raise ConfigError(f"{key} cannot be combined with {run}; it is for env.id: {TURN_GOALS}")
    for key in _PARTS:
        if getattr(config, key) is not None and key not in accepted:
            raise ConfigError(f"{key} cannot be combined with {run}, which has no dialogue acts")
    if config.reward_fn is not None and "turn_reward" not in accepted:
        raise ConfigError(f"reward_fn cannot be combined with {run}, which pays its own reward")
    if (config.task is not None) != ("task" in accepted):
        known = ", ".join(catalog.TaskRegistry.ids())
        missing = f"the key 'task' is missing, which {run} needs (known: {known})"
        raise ConfigError(missing if config.task is None else f"task cannot be combined with {run}, which has none")


def build_turn_level_algorithm(config: TurnLevelConfig, **changes: Any) -> Any:
    """Build the environments, the policy and the algorithm, with changes of arguments that the algorithm has."""
    registry, id = catalog.TurnAlgorithmRegistry, config.alg.id
    algorithm, defaults = registry.resolve(id), registry.defaults(id)
    accepted = {name: value for name, value in changes.items() if name in defaults}
    build_policy = catalog.TurnPolicyRegistry.get(config.alg.policy.id, config.alg.policy.args)
    vec_env, fingerprint = _build_train_envs(config)
    try:
        policy, policy_kwargs = build_policy(vec_env.observation_space)
        arguments = {"policy_kwargs": policy_kwargs, "seed": config.seed, **config.alg.args, **accepted}
        built = algorithm(policy, vec_env, **arguments)
        if isinstance(built, MaskablePPO) and not is_masking_supported(vec_env):
            raise ValueError("the environment has no method action_masks; use ppo")
        built.policy.made_for = fingerprint
    except (AssertionError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        vec_env.close()
        hint = "; env.args.action: composite makes actions discrete" if config.env.id == DIALOGUE_ACTS else ""
        problem = f"or with these alg.args and alg.policy.args: {error}{hint if 'MultiBinary' in str(error) else ''}"
        raise ConfigError(f"alg.id: {id} cannot be combined with env.id: {config.env.id}, {problem}") from error
    return built


def warm_start(config: TurnLevelConfig, algorithm: Any) -> None:
    """Fit the policy to demonstrations before RL, if the config wants it."""
    if config.warm_start is not None:
        catalog.TurnWarmStartRegistry.get(config.warm_start.id, config.warm_start.args)(algorithm)


def has_goal_splits(config: TurnLevelConfig) -> bool:
    """Whether evaluations of ``val`` and ``test`` need different environments."""
    return bool({"goal_split", "samples"} & set(_parameters(config.env.id)))


def build_evaluation_envs(
    config: TurnLevelConfig, split: str, trained: VecEnv | None = None, n_envs: int | None = None
) -> Any:
    """Build evaluation environments in this process, at most one per episode; ``trained`` have their models."""
    n_envs = n_envs or min(config.env.n_envs, config.train_evaluation.n_eval_episodes)
    if config.env.id == TURN_GOALS:
        parts = trained.parts if isinstance(trained, TurnGoalVecEnv) else _build_goal_parts(config)
        return _build_goal_envs(split, n_envs, parts, is_evaluation=True)
    make = _env_factory(config, split, keeps_transcripts=True)

    def numbered(first: int) -> gym.Env:
        return NumberedEpisodes(make(), first, n_envs)

    return vectorize([functools.partial(numbered, first) for first in range(n_envs)], "dummy")


def _env_factory(config: TurnLevelConfig, split: str, keeps_transcripts: bool = False) -> Callable[[], gym.Env]:
    """Return what builds an environment of the run, in any process."""
    env, reward = config.env, config.reward_fn
    if env.id not in catalog.EnvRegistry:
        return functools.partial(gym.make, _spec(env.id), **env.args)
    build = catalog.EnvRegistry.resolve(env.id)
    provided: dict[str, Any] = {"goal_split": split, "keeps_transcripts": keeps_transcripts}
    if config.task is not None:
        provided |= {"task": catalog.TaskRegistry.resolve(config.task.id), "task_args": config.task.args}
    for key, registry in _PARTS.items():
        part = getattr(config, key)
        if part is not None:
            provided[key] = functools.partial(registry.get, part.id, part.args)
    if reward is not None:
        provided["turn_reward"] = catalog.TurnRewardRegistry.get(reward.id, reward.args)
    accepted = _parameters(env.id)
    return functools.partial(build, **env.args, **{key: value for key, value in provided.items() if key in accepted})


def _parameters(env_id: str) -> Collection[str]:
    """Arguments of an environment of the catalog; none of others."""
    return inspect.signature(catalog.EnvRegistry.resolve(env_id)).parameters if env_id in catalog.EnvRegistry else ()


def _build_train_envs(config: TurnLevelConfig) -> tuple[VecEnv, str]:
    """Build the environments; also returns the fingerprint of an environment that has one."""
    env = config.env
    if env.id == TURN_GOALS:
        envs = _build_goal_envs("train", env.n_envs, _build_goal_parts(config))
        return envs, envs.fingerprint
    make = functools.partial(make_resumable, _env_factory(config, "train"))
    try:
        first = make()  # in this process, where its errors are shown as they are
        fingerprint = first.get_wrapper_attr("fingerprint") if first.has_wrapper_attr("fingerprint") else ""
        first.close()
    except RL4DialogError:
        raise
    except Exception as error:
        reason = raised(error)
        raise ConfigError(f"env.id: {env.id} cannot be built with these env.args: {reason}") from error
    return vectorize([make] * env.n_envs, env.vec_env, env.n_workers), fingerprint


def _spec(id: str) -> Any:
    """The entry of an id in gymnasium's registry; imports the module before its colon, if any."""
    module, _, name = id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gym.spec(name)
    except (gym.error.Error, ImportError) as error:
        known = ", ".join(catalog.EnvRegistry.ids())
        problem = f"is neither in the catalog ({known}) nor registered with gymnasium: {error}"
        cure = "To use a custom environment, list its module under 'imports:'"
        raise ConfigError(f"env.id: {id} {problem}. {cure}") from error


def turn_level_rows(config: TurnLevelConfig) -> Iterator[tuple[str, str]]:
    _check_env(config)
    algorithm = build_turn_level_algorithm(config)
    algorithm.env.close()
    env, n_timesteps = config.env, algorithm.timesteps_per_iteration
    yield "observations", str(algorithm.observation_space)
    yield "actions", str(algorithm.action_space)
    yield "environments", f"{env.n_envs}"
    yield "worker processes", str(worker_count(env.n_envs, env.n_workers, env.vec_env) or "none")
    yield "iterations", f"{config.n_iters:,}"
    yield "timesteps per iteration", f"{n_timesteps:,}"
    yield "timesteps", f"{n_timesteps * config.n_iters:,}"
    buffer = getattr(algorithm, "replay_buffer", None)
    if buffer is not None:
        n_updates = n_timesteps if algorithm.gradient_steps < 0 else algorithm.gradient_steps
        n_before = min(config.n_iters, algorithm.learning_starts // n_timesteps)
        values = [vars(buffer), *(value for value in vars(buffer).values() if isinstance(value, dict))]
        n_bytes = sum(getattr(array, "nbytes", 0) for arrays in values for array in arrays.values())
        yield "iterations before training", f"{n_before:,}"
        yield "optimizer steps", f"{n_updates * (config.n_iters - n_before):,}"
        yield "replay buffer", f"{n_bytes / MIB:,.0f} MiB when it is full"
    yield "policy parameters", f"{sum(each.numel() for each in algorithm.policy.parameters()):,}"
    yield "episodes of an evaluation", f"{config.train_evaluation.n_eval_episodes}"


def _check_env(config: TurnLevelConfig) -> None:
    if config.env.id == TURN_GOALS:
        return  # vectorized from the start
    envs = build_evaluation_envs(config, "val")
    try:
        check_env(envs.envs[0], warn=False)
    except (AssertionError, ValueError) as error:
        what = "is not a valid environment for stable-baselines3"
        raise ConfigError(f"env.id: {config.env.id} {what}: {error}") from error
    finally:
        envs.close()
