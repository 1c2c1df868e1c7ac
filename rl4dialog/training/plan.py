"""Summary of a run without running it (``--dry_run``). Builds all components except the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.env_checker import check_env
from transformers import PreTrainedModel

from rl4dialog.catalog import OfflineAlgorithmRegistry
from rl4dialog.core.config import (
    TURN_GOALS,
    OfflineConfig,
    OnPolicyConfig,
    RewardModelConfig,
    RunConfig,
    SupervisedConfig,
    TextConfig,
    TurnLevelConfig,
)
from rl4dialog.core.errors import ConfigError
from rl4dialog.data.judged_texts import JudgedTexts, is_comparison
from rl4dialog.envs.vectorize import close, worker_count
from rl4dialog.policies.architecture_check import examine
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.heads import hidden_size
from rl4dialog.policies.models import embedding_rows, ids_without_token, is_listed, language_model_without_weights
from rl4dialog.scores.scoring import Scorer
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.algorithm import check_env_workers
from rl4dialog.training.building.conditions import refuse_useless
from rl4dialog.training.building.conversations import check_conversations, n_weight_copies, plays_itself
from rl4dialog.training.building.language_model import (
    build_auxiliary_examples,
    build_supervised_examples,
    build_warm_start_examples,
)
from rl4dialog.training.building.offline import build_log, check_rewards, learns_scores
from rl4dialog.training.building.policy import all_arguments, build_end_of_turn, policy_class
from rl4dialog.training.building.rewards import MISSING_CLASSIFIER
from rl4dialog.training.building.texts import Texts
from rl4dialog.training.memory import MIB, predict_memory, row_sizes
from rl4dialog.training.policy_trainee import find_initial_critic
from rl4dialog.training.reward_model.models import build_judgements, encode_judged, loss_of
from rl4dialog.training.turn_level.environments import build_evaluation_envs, build_turn_level_algorithm


def add_turn_level_rows(table: Table, config: TurnLevelConfig) -> None:
    """Add spaces, lengths and sizes to a plan."""
    _check_env(config)
    algorithm = build_turn_level_algorithm(config)
    close(algorithm.env)
    env, n_timesteps = config.env, algorithm.timesteps_per_iteration
    n_workers = worker_count(env.n_envs, env.n_workers, env.vec_env)
    table.add_row("observations", str(algorithm.observation_space))
    table.add_row("actions", str(algorithm.action_space))
    table.add_row("environments", f"{env.n_envs}")
    table.add_row("worker processes", str(n_workers or "none"))
    table.add_row("iterations", f"{config.n_iters:,}")
    table.add_row("timesteps per iteration", f"{n_timesteps:,}")
    table.add_row("timesteps", f"{n_timesteps * config.n_iters:,}")
    buffer = getattr(algorithm, "replay_buffer", None)
    if buffer is not None:
        n_updates = n_timesteps if algorithm.gradient_steps < 0 else algorithm.gradient_steps
        n_before = min(config.n_iters, algorithm.learning_starts // n_timesteps)
        table.add_row("iterations before training", f"{n_before:,}")
        table.add_row("optimizer steps", f"{n_updates * (config.n_iters - n_before):,}")
        table.add_row("replay buffer", f"{_size(buffer) / MIB:,.0f} MiB when it is full")
    table.add_row("policy parameters", f"{sum(each.numel() for each in algorithm.policy.parameters()):,}")
    table.add_row("episodes of an evaluation", f"{config.train_evaluation.n_eval_episodes}")


def _check_env(config: TurnLevelConfig) -> None:
    """Check an environment with stable-baselines3's ``check_env``."""
    if config.env.id == TURN_GOALS:
        return  # vectorized from the start
    envs = build_evaluation_envs(config, "val")
    try:
        check_env(envs.envs[0], warn=False)
    except (AssertionError, ValueError) as error:
        raise ConfigError(
            f"env.id: {config.env.id} is not a valid environment for stable-baselines3: {error}"
        ) from error
    finally:
        envs.close()


def _size(buffer: Any) -> int:
    arrays = [
        each for value in vars(buffer).values() for each in (value.values() if isinstance(value, dict) else [value])
    ]
    return sum(getattr(array, "nbytes", 0) for array in arrays)


_MAX_EXAMINED_PARAMETERS = 200_000_000
"""Above this size, initializing random weights takes too long for a dry run."""


def print_plan(config: RunConfig, console: Console | None = None) -> None:
    """Build all components of a run that are not a language model, and print all derived numbers."""
    refuse_useless(config)
    table = Table(title="Plan", show_header=False)
    _ROWS[type(config)](table, config)
    (console or Console()).print(table)


def _add_text_rows(table: Table, config: TextConfig) -> None:
    """Add initial critic, tokenizer, data, rewards, metrics and supervised examples."""
    if isinstance(config, OnPolicyConfig) and (critic := find_initial_critic(config)) is not None:
        table.add_row("initial critic", f"of iteration {critic.iteration} in {config.alg.policy.args.critic_from}")
    parts = Assembly(config, trains_classifier=False)
    texts = parts.texts
    check_conversations(config, texts)
    lengths = texts.lengths
    for split, pool in texts.data.pools.items():
        table.add_row(f"{split} samples", f"{len(pool):,}")
    table.add_row("longest prompt", f"{lengths.prompt} tokens")
    table.add_row("longest reply", f"{lengths.reply} tokens")
    auto_class = policy_class(config).auto_class
    with torch.device("meta"):
        model = language_model_without_weights(
            config.model_name, texts.tokenizer, lengths.prompt, lengths.room, auto_class
        )
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    table.add_row("model parameters", f"{n_parameters:,}")
    n_rows = embedding_rows(model)
    if n_without := len(ids_without_token(texts.tokenizer, n_rows)):
        table.add_row("ids without a token", f"{n_without:,} of {n_rows:,}, which replies never contain")
    scorer = _add_rewards_and_metrics(table, parts)
    table.add_row("architecture", _examined_architecture(model, config.model_name, auto_class, n_parameters))
    _add_examples(table, config, texts, model)
    if isinstance(config, OnPolicyConfig):
        assert scorer is not None
        _add_rl_rows(table, config, texts, check_env_workers(config, texts, model, scorer))
    if isinstance(config, OfflineConfig):
        _add_offline_rows(table, config, texts, model, scorer)


def _add_rewards_and_metrics(table: Table, parts: Assembly) -> Scorer | None:
    """Build metrics and the reward, and return the reward."""
    if parts.scorer is not None:
        table.add_row("rewards", ", ".join(part.name for part in parts.scorer.parts))
    assert parts.metrics is not None  # builds them, which checks their arguments
    table.add_row("metrics", ", ".join(metric.id for metric in parts.config.train_evaluation.metrics) or "none")
    if parts.toolkit.get("classifier") is MISSING_CLASSIFIER:
        table.add_row("intent classifier", "not cached yet; the run, or `rl4dialog prepare`, trains it first")
    return parts.scorer


def _examined_architecture(model: PreTrainedModel, model_name: str, auto_class: Any, n_parameters: int) -> str:
    """Describe the architecture and whether it is supported."""
    name = model.config.model_type
    if is_listed(model.config):
        return f"{name}, tested"
    if n_parameters > _MAX_EXAMINED_PARAMETERS:
        return f"{name}, not tested; it is checked when the weights are loaded"
    examine(auto_class.from_config(model.config, dtype=torch.float32), model_name)
    return f"{name}, checked with random weights"


def _add_examples(table: Table, config: TextConfig, texts: Texts, model: PreTrainedModel) -> None:
    """Add counts of supervised examples; truncated samples are reported while they are built."""
    if config.warm_start is not None:
        table.add_row("warm start", f"{len(build_warm_start_examples(config, texts, model.config).train):,} references")
    if isinstance(config, OnPolicyConfig) and config.alg.args.get("supervised_coef"):
        n_examples = len(build_auxiliary_examples(config, texts, model.config).train)
        table.add_row("supervised loss", f"{n_examples:,} references")
    if isinstance(config, SupervisedConfig):
        table.add_row("examples", f"{len(build_supervised_examples(config, texts, model.config).train):,} references")


def _add_rl_rows(table: Table, config: OnPolicyConfig, texts: Texts, vec_env: str) -> None:
    args = all_arguments(config)
    n_tokens = args["n_steps"] * config.env.n_envs
    table.add_row("iterations", f"{config.n_iters:,}")
    table.add_row("environments", f"{config.env.n_envs}")
    n_workers = worker_count(config.env.n_envs, config.env.n_workers, vec_env)
    table.add_row("worker processes", str(n_workers or "none"))
    table.add_row("agent tokens per iteration", f"at least {n_tokens:,}")
    _add_conversation_rows(table, config, texts, args)
    cut = "those whose last reply is cut at max_episode_length; none at max_turns"
    table.add_row("bootstrapped conversations", cut if config.env.args.bootstrap_truncated else "none")
    if args.get("n_generations"):
        table.add_row("replies per prompt", f"{args['n_generations']}")
    if args.get("batch_size") and args.get("n_epochs"):
        n_batches = max(1, math.floor(n_tokens / args["batch_size"] + 0.5))
        table.add_row("minibatches per epoch", f"about {n_batches} of {args['batch_size']} agent tokens")
        table.add_row("optimizer steps", f"about {n_batches * args['n_epochs'] * config.n_iters:,}")
    memory = predict_memory(config, texts, args)
    for what in ("program", "weights", "gradients", "optimizer", "frozen", "activations", "rollout"):
        n_bytes = getattr(memory, what)
        known = "not predicted for this architecture" if n_bytes is None else f"{n_bytes / MIB:,.0f} MiB"
        table.add_row(f"memory: {what}", known)
    how_well = "about" if memory.activations is not None else "more than"
    table.add_row("memory: peak per process", f"{how_well} {memory.total / MIB:,.0f} MiB")
    block = config.own_generation_block
    settings = GenerationSettings.from_kwargs(block.kwargs, block.where)
    table.add_row("generation backend", config.generation.backend)
    measure = "sampler_kl" if config.generation.backend == "vllm" else "truncated_mass"
    behaviour = (
        f"truncates the policy's distribution (see rollout/{measure})"
        if settings.truncates
        else "the policy's own distribution"
    )
    table.add_row("sampler", behaviour)


def _add_offline_rows(
    table: Table, config: OfflineConfig, texts: Texts, model: PreTrainedModel, scorer: Scorer | None
) -> None:
    """Add the log, and sizes of iterations and of the values of a guided policy."""
    args, algorithm = all_arguments(config), OfflineAlgorithmRegistry.resolve(config.alg.id)
    end_of_turn = build_end_of_turn(config, texts.tokenizer, texts.data.turn_marker, model)
    log = build_log(config, texts, end_of_turn, scorer if learns_scores(config, texts) else None)
    if algorithm.needs_rewards:
        check_rewards(config, log)
    n_tokens = int(log.n_tokens.sum())
    table.add_row("logged conversations", f"{len(log):,} with {n_tokens:,} agent tokens")
    table.add_row(
        "returns in the log", f"{log.returns.min():g} to {log.returns.max():g}, mean {log.returns.mean():.4g}"
    )
    if n := log.n_without_reward:
        table.add_row("without a reward", f"{n:,} of {len(log):,} conversations, whose return is 0")
    table.add_row("iterations", f"{config.n_iters:,}")
    table.add_row("agent tokens per iteration", f"{args['n_steps']:,}")
    n_batches = max(1, math.floor(args["n_steps"] / args["batch_size"] + 0.5))
    table.add_row("minibatches per iteration", f"about {n_batches} of {args['batch_size']:,} agent tokens")
    table.add_row("passes over the log", f"{config.n_iters * args['n_steps'] / n_tokens:.3g}")
    policy = policy_class(config)
    if policy.guided:
        n_hidden = hidden_size(model)
        width = args["head_width"] or 2 * n_hidden
        n_head = (n_hidden + 1) * width + (width + 1) * (1 if policy.reranked else embedding_rows(model))
        n_heads = 2 * args["n_q_heads"]  # with their lagging copies
        table.add_row("parameters of the Q heads", f"{n_heads * n_head:,}: {n_heads} of {n_head:,}, copies included")


def _add_conversation_rows(table: Table, config: OnPolicyConfig, texts: Texts, args: dict[str, Any]) -> None:
    """Add partner and sizes of conversations, if the run has a partner."""
    env, lengths = config.env.args, texts.lengths
    if env.conversation_partner is None:
        return
    rows = row_sizes(config, texts, args)
    table.add_row("conversation partner", env.conversation_partner.id)
    n_copies, has_beginning = n_weight_copies(config)
    if n_copies:
        table.add_row("opponents", f"the initial policy, and at most {n_copies} later copies")
    elif plays_itself(env.conversation_partner):
        table.add_row("opponents", "the current policy" + (", in evaluations the initial policy" * has_beginning))
    table.add_row("turns per conversation", f"at most {env.max_turns}")
    n_tokens = f"at most {env.max_turns * lengths.reply:,} of the agent"
    if env.max_partner_length is not None:
        n_tokens += f" and {env.max_turns * env.max_partner_length:,} of its partner"
    else:
        n_tokens += f"; memory is predicted for answers of {lengths.reply} tokens (max_partner_length is not set)"
    table.add_row("tokens per conversation", n_tokens)
    room = f"at most {lengths.prompt + lengths.reply:,} tokens"
    if rows.n_turns > 1:
        table.add_row("rows", f"whole conversations, {room}, or about {rows.n_turns} turns of maximum length")
    else:
        table.add_row("rows", f"single replies with their prompts, {room}")


def _add_reward_model_rows(table: Table, config: RewardModelConfig) -> None:
    """Add judgements, lengths, loss and sizes of a reward model run."""
    data, tokenizer, max_length = build_judgements(config)
    pool = data.pools["train"]
    assert isinstance(pool, JudgedTexts)
    if pool.ratings:
        scale = "several scales" if pool.scale is None else f"{pool.scale[0]:g} to {pool.scale[1]:g}"
        table.add_row("ratings", f"{', '.join(pool.ratings)} of each {pool.unit}, {scale}")
    for split, each in data.pools.items():
        n_compared = sum(is_comparison(sample) for sample, _ in each)
        table.add_row(f"{split} samples", f"{len(each):,}" + (f", {n_compared:,} comparisons" if n_compared else ""))
    loss = loss_of(config, data)
    if pool.ratings:
        table.add_row("loss of ratings", loss.rating_loss)
    examples = encode_judged(data.samples("train"), tokenizer, max_length)
    lengths = [len(ids) for each in examples for ids in (each["input_ids"], each.get("worse_ids", ()))]
    table.add_row("longest text", f"{max(lengths)} tokens, at most {max_length}")
    if config.alg.ensemble > 1:
        table.add_row("models", f"{config.alg.ensemble}, trained together")
    table.add_row("epochs", f"{config.n_iters}")


_ROWS: dict[type[RunConfig], Callable[[Table, Any], None]] = {
    OnPolicyConfig: _add_text_rows,
    OfflineConfig: _add_text_rows,
    SupervisedConfig: _add_text_rows,
    RewardModelConfig: _add_reward_model_rows,
    TurnLevelConfig: add_turn_level_rows,
}
