"""An offline run: its check, its plan and its trainee."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl4dialog.catalog import AlgorithmRegistry, OfflineAlgorithmRegistry, TurnAlgorithmRegistry
from rl4dialog.core.errors import CheckpointError, ConfigError
from rl4dialog.features.offline.building import check_rewards
from rl4dialog.features.offline.config import OfflineConfig
from rl4dialog.policies.heads import hidden_size
from rl4dialog.policies.models import embedding_rows
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.components import check_between_epochs, check_text
from rl4dialog.training.building.policy import (
    algorithm_class,
    all_arguments,
    check_chosen,
    check_fits,
    own_policy_args,
    policy_class,
)
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.plan import Outline, Rows, n_minibatches, text_rows
from rl4dialog.training.policy_trainee import PolicyTrainee
from rl4dialog.training.watch import RunFacts

_POLICIES = {
    "plain": "a plain language model, such as causal_lm_actor_critic_policy",
    "guided": "a policy with values of tokens, such as value_guided_causal_lm_policy",
    "reranked": "a policy with values of replies: value_reranked_causal_lm_policy",
}


def check_offline(config: OfflineConfig) -> None:
    id, policy_id = config.alg.id, config.alg.policy.id
    if id in AlgorithmRegistry and id not in OfflineAlgorithmRegistry:
        raise ConfigError(f"alg.id: {id} learns from rollouts, which needs the key 'alg.kl_div'")
    check_fits("alg.id", id, OfflineAlgorithmRegistry, TurnAlgorithmRegistry, "env.id: text_generation")
    check_chosen(config)
    algorithm, policy = algorithm_class(config), policy_class(config)
    kind = "reranked" if policy.reranked else "guided" if policy.guided else "plain"
    if policy.maskable or kind not in algorithm.policy_kinds:
        needed = ", or ".join(_POLICIES[each] for each in algorithm.policy_kinds)
        raise ConfigError(f"alg.policy.id: {policy_id} cannot be combined with alg.id: {id}, which needs {needed}")
    algorithm.check_arguments(config.alg.args)
    policy.check_arguments({**own_policy_args(config), **algorithm.policy_arguments(), "lora": config.lora})
    check_between_epochs(config)
    check_text(config)


def offline_rows(config: OfflineConfig) -> Rows:
    parts = Outline(config, trains_classifier=False)
    yield from text_rows(parts)
    args, log, policy = all_arguments(config), parts.log, policy_class(config)
    if algorithm_class(config).needs_rewards:
        check_rewards(config, log)
    n_tokens, returns = int(log.n_tokens.sum()), log.returns
    yield "logged conversations", f"{len(log):,} with {n_tokens:,} agent tokens"
    yield "returns in the log", f"{returns.min():g} to {returns.max():g}, mean {returns.mean():.4g}"
    if n := log.n_without_reward:
        yield "without a reward", f"{n:,} of {len(log):,} conversations, whose return is 0"
    yield "iterations", f"{config.n_iters:,}"
    yield "agent tokens per iteration", f"{args['n_steps']:,}"
    n_batches = n_minibatches(args["n_steps"], args["batch_size"])
    yield "minibatches per iteration", f"about {n_batches} of {args['batch_size']:,} agent tokens"
    yield "passes over the log", f"{config.n_iters * args['n_steps'] / n_tokens:.3g}"
    if policy.guided:
        n_hidden = hidden_size(parts.initial_model)
        width = args["head_width"] or 2 * n_hidden
        n_outputs = 1 if policy.reranked else embedding_rows(parts.initial_model)
        n_head, n_heads = (n_hidden + 1) * width + (width + 1) * n_outputs, 2 * args["n_q_heads"]
        yield "parameters of the Q heads", f"{n_heads * n_head:,}: {n_heads} of {n_head:,}, lagging copies included"


class OfflineTrainee(PolicyTrainee):
    """An algorithm over a log of conversations."""

    def __init__(self, config: OfflineConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(config, tracker, checkpoint)
        if checkpoint is not None and checkpoint.state["log_hash"] != self.algorithm.log.hash:
            log = f"the logged conversations of datapool {config.datapool.id!r}, or how they are encoded,"
            advice = "restore the original files and package, or start a new run with another --experiment_name"
            raise CheckpointError(f"{log} have changed since {checkpoint.path} was written: {advice}")

    @property
    def facts(self) -> RunFacts:
        return RunFacts(self.parts.config.precision, values_are_returns=self.algorithm.values_are_returns)

    def own_state(self) -> dict[str, Any]:
        return {**self.algorithm.training_state(), "log_hash": self.algorithm.log.hash}

    def restore_own(self, checkpoint: Checkpoint, of_process: Mapping[str, Any]) -> None:
        self.algorithm.load_training_state(checkpoint.state)
