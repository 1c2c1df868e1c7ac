"""What a run would do, in numbers, without doing it (``--dry_run``)."""

from __future__ import annotations

import math

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedTokenizerBase

from rl4dialog.core.config import RunConfig
from rl4dialog.envs.block_vec_env import worker_count
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.models import language_model_without_weights
from rl4dialog.training import builders
from rl4dialog.training.memory import MIB, predict_memory


def print_plan(config: RunConfig, console: Console | None = None) -> None:
    """Print every derived number of a run."""
    tokenizer, data = builders.build_run_tokenizer(config)
    lengths = builders.run_lengths(config, tokenizer, data)
    table = Table(title="Plan", show_header=False)
    for split, pool in data.pools.items():
        table.add_row(f"{split} samples", f"{len(pool):,}")
    table.add_row("longest prompt", f"{lengths.prompt} tokens")
    table.add_row("longest reply", f"{lengths.reply} tokens")
    model_name = config.alg.policy.args.model_name if config.alg.policy else str(config.alg.model_name)
    auto_class = builders.policy_class(config).auto_class
    with torch.device("meta"):
        model = language_model_without_weights(model_name, tokenizer, lengths.prompt, lengths.room, auto_class)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    table.add_row("model parameters", f"{n_parameters:,}")
    if config.env is not None and config.alg.policy is not None:
        _add_rl_rows(table, config, tokenizer, data)
    (console or Console()).print(table)


def _add_rl_rows(table: Table, config: RunConfig, tokenizer: PreTrainedTokenizerBase, data: builders.Data) -> None:
    assert config.env is not None and config.alg.policy is not None
    args = builders.all_arguments(config)
    n_tokens = args["n_steps"] * config.env.n_envs
    n_iters = config.train_evaluation.n_iters or 0
    table.add_row("iterations", f"{n_iters:,}")
    table.add_row("environments", f"{config.env.n_envs}")
    in_main = config.env.vec_env == "dummy"
    n_workers = "none" if in_main else str(worker_count(config.env.n_envs, config.env.n_workers))
    table.add_row("worker processes", n_workers)
    table.add_row("agent tokens per iteration", f"at least {n_tokens:,}")
    if args.get("n_generations"):
        table.add_row("replies to each prompt", f"{args['n_generations']}")
    if args.get("batch_size") and args.get("n_epochs"):
        n_batches = max(1, math.floor(n_tokens / args["batch_size"] + 0.5))
        table.add_row("minibatches per epoch", f"about {n_batches} of {args['batch_size']} agent tokens")
        table.add_row("optimizer steps", f"about {n_batches * args['n_epochs'] * n_iters:,}")
    memory = predict_memory(config, tokenizer, data, args)
    for what in ("program", "weights", "gradients", "optimizer", "frozen", "activations", "rollout"):
        table.add_row(f"memory: {what}", f"{getattr(memory, what) / MIB:,.0f} MiB")
    table.add_row("memory: peak of a process", f"about {memory.total / MIB:,.0f} MiB")
    settings = GenerationSettings.from_kwargs(
        config.alg.policy.args.generation_kwargs, "alg.policy.args.generation_kwargs"
    )
    table.add_row("replies written by", config.generation.backend)
    measure = "sampler_kl" if config.generation.backend == "vllm" else "truncated_mass"
    behaviour = (
        f"cuts some of the policy's distribution (see rollout/{measure})"
        if settings.truncates
        else "the policy's own distribution"
    )
    table.add_row("sampler", behaviour)
