"""Summary of a run without running it (``--dry_run``). Builds all components except the model."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from rich.table import Table
from transformers import PreTrainedModel

from rl4dialog.core.config import (
    OnPolicyConfig,
    RunConfig,
    SupervisedConfig,
    TextConfig,
)
from rl4dialog.core.console import Console
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.registry import import_object
from rl4dialog.envs.vectorize import worker_count
from rl4dialog.policies.architecture_check import examine
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.models import embedding_rows, ids_without_token, is_listed, language_model_without_weights
from rl4dialog.training.assembly import Assembly, part
from rl4dialog.training.building import conversations, language_model
from rl4dialog.training.building.algorithm import check_env_workers
from rl4dialog.training.building.conditions import refuse_useless
from rl4dialog.training.building.policy import all_arguments, policy_class
from rl4dialog.training.building.rewards import MISSING_CLASSIFIER
from rl4dialog.training.building.texts import warn_of_cut_prompts
from rl4dialog.training.memory import (
    LESS_MEMORY,
    MEMORY_SHARE,
    MIB,
    predict_memory,
    row_sizes,
    whole_memory,
    why_without_graphs,
)
from rl4dialog.training.policy_trainee import find_initial_critic

Rows = Iterator[tuple[str, str]]

_MAX_EXAMINED_PARAMETERS = 200_000_000
"""Above this size, initializing random weights takes too long for a dry run."""


class NotEnoughMemory(ConfigError):
    """The machine has less memory than a run needs."""


def print_plan(config: RunConfig, console: Console | None = None) -> None:
    """Build all components of a run that are not a language model, and print all derived numbers."""
    refuse_useless(config)
    table = Table(title="Plan", show_header=False)
    try:
        for row in import_object(config.plan)(config):
            table.add_row(*row)
    except NotEnoughMemory:
        (console or Console()).print(table)  # which says for what
        raise
    (console or Console()).print(table)


class Outline(Assembly):
    """The parts of a run, whose model has no weights."""

    @part
    def initial_model(self) -> PreTrainedModel:
        lengths, auto_class = self.lengths, policy_class(self.config).auto_class
        with torch.device("meta"):
            fit = (self.tokenizer, lengths.secret + lengths.prompt, lengths.room)
            return language_model_without_weights(self.config.model_name, *fit, auto_class)


def text_rows(parts: Assembly) -> Rows:
    """Rows of all runs on text."""
    config = parts.config
    conversations.check_conversations(config, parts.texts)
    if config.env is not None:
        warn_of_cut_prompts(parts.texts)
    for split, pool in parts.data.pools.items():
        yield f"{split} samples", f"{len(pool):,}"
    yield "longest prompt", f"{parts.lengths.prompt} tokens"
    yield "longest reply", f"{parts.lengths.reply} tokens"
    if parts.lengths.secret:
        yield "longest secret, which only the critic reads", f"{parts.lengths.secret} tokens"
    n_parameters = sum(parameter.numel() for parameter in parts.initial_model.parameters())
    yield "model parameters", f"{n_parameters:,}"
    if config.lora is not None:
        with torch.device("meta"):
            LoRA(copy.deepcopy(parts.initial_model), config.lora)
    n_rows = embedding_rows(parts.initial_model)
    if n_without := len(ids_without_token(parts.tokenizer, n_rows)):
        yield "ids without a token", f"{n_without:,} of {n_rows:,}, which replies never contain"
    if parts.scorer is not None:
        yield "rewards", ", ".join(part.name for part in parts.scorer.parts)
    assert parts.metrics is not None  # builds them, which checks their arguments
    yield "metrics", ", ".join(metric.id for metric in config.train_evaluation.metrics) or "none"
    if parts.toolkit.get("classifier") is MISSING_CLASSIFIER:
        yield "intent classifier", "not cached yet; the run, or `rl4dialog prepare`, trains it first"
    yield "architecture", _examined_architecture(parts.initial_model, config, n_parameters)
    # Truncated samples are reported while the examples are built.
    if config.warm_start is not None:
        examples = language_model.build_warm_start_examples(config, parts.texts, parts.initial_model.config)
        yield "warm start", f"{len(examples.train):,} references"


def _examined_architecture(model: PreTrainedModel, config: TextConfig, n_parameters: int) -> str:
    name = model.config.model_type
    if is_listed(model.config):
        return f"{name}, tested"
    if n_parameters > _MAX_EXAMINED_PARAMETERS:
        return f"{name}, not tested; it is checked when the weights are loaded"
    auto_class: Any = policy_class(config).auto_class
    examine(auto_class.from_config(model.config, dtype=torch.float32), config.model_name)
    return f"{name}, checked with random weights"


def supervised_rows(config: SupervisedConfig) -> Rows:
    parts = Outline(config, trains_classifier=False)
    yield from text_rows(parts)
    examples = language_model.build_supervised_examples(config, parts.texts, parts.initial_model.config)
    yield "examples", f"{len(examples.train):,} references"


def on_policy_rows(config: OnPolicyConfig) -> Rows:
    if (critic := find_initial_critic(config)) is not None:
        yield "initial critic", f"of iteration {critic.iteration} in {config.alg.policy.args.critic_from}"
    parts = Outline(config, trains_classifier=False)
    yield from text_rows(parts)
    if config.alg.args.get("supervised_coef"):
        examples = language_model.build_auxiliary_examples(config, parts.texts, parts.initial_model.config)
        yield "supervised loss", f"{len(examples.train):,} references"
    args, env, vec_env = all_arguments(config), config.env, check_env_workers(parts, config)
    n_tokens = args["n_steps"] * env.n_envs
    yield "iterations", f"{config.n_iters:,}"
    yield "environments", f"{env.n_envs}"
    yield "worker processes", str(worker_count(env.n_envs, env.n_workers, vec_env) or "none")
    yield "agent tokens per iteration", f"at least {n_tokens:,}"
    if env.args.conversation_partner is not None:
        yield from _conversation_rows(config, parts, args)
    cut = "those whose last reply is cut at max_episode_length; none at max_turns"
    yield "bootstrapped conversations", cut if env.args.bootstrap_truncated else "none"
    if env.args.once:
        n, needed = len(parts.texts.data.pools["train"]), conversations.fewest_conversations(config)
        yield "samples, each for one conversation", f"{n:,}, and at least {needed:,} are needed"
    if args.get("n_generations"):
        yield "replies per prompt", f"{args['n_generations']}"
    if args.get("baseline") == "prompt":
        n_of_one = row_sizes(config, parts.texts, args).n_agent_tokens
        n_prompts = len(parts.texts.data.samples("train"))
        n_conversations = config.n_iters * max(n_tokens / n_of_one, env.n_envs)
        yield "conversations per prompt", f"at least {n_conversations / n_prompts:.2g} in the run"
    if args.get("batch_size") and args.get("n_epochs"):
        n_batches = n_minibatches(n_tokens, args["batch_size"])
        yield "minibatches per epoch", f"about {n_batches} of {args['batch_size']} agent tokens"
        yield "optimizer steps", f"about {n_batches * args['n_epochs'] * config.n_iters:,}"
    memory = predict_memory(config, parts.texts, args)
    for what in ("program", "weights", "gradients", "optimizer", "frozen", "activations", "rollout"):
        n_bytes = getattr(memory, what)
        known = "not predicted for this architecture" if n_bytes is None else f"{n_bytes / MIB:,.0f} MiB"
        yield f"memory: {what}", known
    how_much = f"{'about' if memory.activations is not None else 'more than'} {memory.total / MIB:,.0f} MiB"
    yield "memory: peak per process", how_much
    if memory.kept:
        yield "memory: kept in updates", f"{memory.kept / MIB:,.0f} MiB for sampling, if there is room"
    there, where = whole_memory(args)
    if MEMORY_SHARE * memory.total / MIB > there:
        raise NotEnoughMemory(f"the run needs {how_much}, and this machine has {there:,.0f} MiB {where}; {LESS_MEMORY}")
    reason = why_without_graphs(config, parts.initial_model, parts.lengths, args)
    is_outside, of_policy = config.generation.chosen.build, f"transformers, because {reason}" if reason else "graph"
    yield "generation backend", config.generation.backend if is_outside else of_policy
    settings = GenerationSettings.from_kwargs(config.own_generation_block.kwargs)
    truncated = f"truncates the policy's distribution (see rollout/{'sampler_kl' if is_outside else 'truncated_mass'})"
    yield "sampler", truncated if settings.truncates else "the policy's own distribution"


def n_minibatches(n_tokens: int, batch_size: int) -> int:
    return max(1, math.floor(n_tokens / batch_size + 0.5))


def _conversation_rows(config: OnPolicyConfig, parts: Assembly, args: dict[str, Any]) -> Rows:
    env, lengths, partner = config.env.args, parts.lengths, config.env.args.conversation_partner
    assert partner is not None
    yield "conversation partner", ", ".join(each.id for each, _ in conversations.members_of(partner))
    n_copies, has_beginning = conversations.n_weight_copies(config)
    if n_copies:
        yield "opponents", f"the initial policy, and at most {n_copies} later copies"
    elif conversations.plays_itself(partner):
        yield "opponents", "the current policy" + (", in evaluations the initial policy" * has_beginning)
    yield "turns per conversation", f"at most {env.max_turns}"
    if env.max_partner_length is not None:
        of_partner = f" and {env.max_turns * env.max_partner_length:,} of its partner"
    else:
        of_partner = f"; memory is predicted for answers of {lengths.reply} tokens (max_partner_length is not set)"
    yield "tokens per conversation", f"at most {env.max_turns * lengths.reply:,} of the agent{of_partner}"
    room, n_turns = f"at most {lengths.prompt + lengths.reply:,} tokens", row_sizes(config, parts.texts, args).n_turns
    whole = f"whole conversations, {room}, or about {n_turns} turns of maximum length"
    yield "rows", whole if n_turns > 1 else f"single replies with their prompts, {room}"
