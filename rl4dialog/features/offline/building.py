"""An offline run: its check, plan and trainee, and what builds its algorithm and log."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from stable_baselines3.common.vec_env import DummyVecEnv

from rl4dialog.catalog import AlgorithmRegistry, OfflineAlgorithmRegistry, TurnAlgorithmRegistry
from rl4dialog.core.errors import CheckpointError, ConfigError, DataError
from rl4dialog.core.reward_parts import FinishedReplies, names_needing
from rl4dialog.core.types import Dialogue, Sample
from rl4dialog.data.pool import TextGenPool
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.features.offline.config import OfflineConfig
from rl4dialog.features.offline.conversation_log import ConversationEncoder, ConversationLog
from rl4dialog.features.offline.returns import return_prefix, with_own_returns
from rl4dialog.functional.rounding import is_constant
from rl4dialog.policies.heads import hidden_size
from rl4dialog.policies.models import embedding_rows
from rl4dialog.rollouts.learned_turns import Limits
from rl4dialog.runs.progress import say
from rl4dialog.runs.tracking import Tracker
from rl4dialog.scores.scoring import Scorer
from rl4dialog.text.tokenizer import encoding_key, tokenizer_hash
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.components import check_between_epochs, check_text
from rl4dialog.training.building.policy import (
    algorithm_class,
    all_arguments,
    check_chosen,
    check_fits,
    own_policy_args,
    placeholder_env,
    policy_class,
    policy_kwargs,
    set_sampler,
)
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.plan import Outline, Rows, n_minibatches, text_rows
from rl4dialog.training.policy_trainee import PolicyTrainee

_SCORED_AT_ONCE = 256
_logger = logging.getLogger(__name__)


def build_offline_algorithm(parts: Assembly, config: OfflineConfig) -> Any:
    log, algorithm = parts.log, algorithm_class(config)
    if algorithm.needs_rewards:
        check_rewards(config, log)
    env = placeholder_env(parts, parts.initial_model, parts.end_of_turn)
    arguments = {"policy_kwargs": {**policy_kwargs(parts, config), **algorithm.policy_arguments()}, "seed": config.seed}
    try:
        built = algorithm(policy_class(config), DummyVecEnv([lambda: env]), log, **arguments, **config.alg.args)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"alg.args do not fit {config.alg.id!r}: {error}") from error
    set_sampler(built.policy, config)
    if len(built.kept) < len(log):
        returns = log.returns[built.kept]
        returned = f"with returns from {returns.min():g} to {returns.max():g}"
        say(f"{config.alg.id}: learns from {len(returns):,} of the {len(log):,} conversations, {returned}")
    return built


def build_log(parts: Assembly) -> ConversationLog:
    """Encode the conversations of the train split, with their rewards or scores, or find them in the cache."""
    config, pool, lengths = parts.config, parts.data.pools["train"], parts.lengths
    assert isinstance(config, OfflineConfig)
    # By default, scores take the place of rewards that the log lacks.
    rewards = config.alg.rewards or ("reward_fn" if config.reward_fn is not None and not pool.has_rewards else "log")
    scorer = parts.scorer if rewards == "reward_fn" else None
    for note in log_notes(config, pool):
        _logger.warning(note)
    env, rules = config.env.args if config.env is not None else None, ConversationRules()
    if env is not None:
        rules = ConversationRules(max_partner_length=env.max_partner_length, context_turns=env.context_turns)
    limits = Limits(lengths.prompt, lengths.target, None if env is not None else lengths.total)
    of_text = parts.end_of_turn, limits, pool.frame(), rules, tokenizer_hash(parts.tokenizer)
    of_model: dict[str, Any] = {"join_turns": policy_class(config).joins_turns, "in_encoder": config.is_encoder_decoder}
    encoder = ConversationEncoder(*of_text, **of_model)
    if scorer is None:
        conversations, source = pool.prompted_conversations, pool.source_key
    elif names := names_needing(scorer.parts, "references"):
        advice = "use a reward without references, or alg.rewards: log"
        raise ConfigError(f"reward_fn: {names} compares replies with references, which are those of the log; {advice}")
    else:
        conversations, source = partial(with_scores, pool, array("d", reply_scores(pool, scorer))), None
    key = {"conversations": source or conversations_hash(conversations()), **_settings(encoder)}
    key |= pool.dialogue_format.key if pool.dialogue_format is not None else {}
    if (prefix := return_prefix(config)) is not None:
        key["decimals_of_returns"] = prefix.decimals
    log = ConversationLog.build(lambda: with_own_returns(conversations(), prefix, pool), encoder, key)
    counts = ", ".join(f"{n:,} {what}" for what, n in log.counts.items())
    is_rewarded = pool.has_rewards and log.n_without_reward < len(log)
    source = "from reward_fn" if scorer is not None else "from the log" if is_rewarded else "none"
    say(f"log: {counts}; {int(log.n_tokens.sum()):,} tokens of the agent; rewards: {source}")
    return log


def log_notes(config: OfflineConfig, pool: TextGenPool) -> list[str]:
    """Remarks about a log from which little can be learned, by its samples; an error if nothing can."""
    first, where, has_several = pool[0][0], f"datapool {config.datapool.id!r}", len(pool) > 1

    def said(sample: Sample) -> list[str]:
        return [*sample.references, *(sample.meta_data or {}).get("continuation", [])]

    if not any(text.strip() for sample, _ in pool for text in said(sample)[::2]):
        raise DataError(f"{where}: all replies of the log are empty, so there is nothing to learn")
    notes, n_turns = [], config.env.args.context_turns if config.env is not None else None
    if has_several and all(sample.id == first.id for sample, _ in pool):
        notes.append(f"{where}: all conversations have the id {first.id!r}, so messages cannot name one of them")
    talk = first.prompt_or_input_text, said(first)
    if has_several and all((sample.prompt_or_input_text, said(sample)) == talk for sample, _ in pool):
        notes.append(f"{where}: all conversations are the same, so val and test measure only what is remembered")
    lengths = (len((sample.meta_data or {}).get("history", ())) + len(said(sample)) for sample, _ in pool)
    if n_turns is not None and all(length <= n_turns for length in lengths):
        notes.append(f"env.args.context_turns is {n_turns}, and no conversation of {where} has more; it has no effect")
    return notes


def reply_scores(pool: TextGenPool, scorer: Scorer) -> Iterator[float]:
    """Yield the scores of all replies of a pool's conversations; paid at the end, of the last ones only."""
    conversations = pool.prompted_conversations()
    while chunk := list(itertools.islice(conversations, _SCORED_AT_ONCE)):
        places = [(i, t) for i, each in enumerate(chunk) for t in each.agent_turns]
        yield from scorer.score(
            FinishedReplies(
                [chunk[i].prompt or "" for i, _ in places],
                [chunk[i].turns[t].text for i, t in places],
                [list(chunk[i].meta_data.get("references", [])) for i, _ in places],
                [{**chunk[i].meta_data, "history": [each.text for each in chunk[i].turns[:t]]} for i, t in places],
                [chunk[i].id for i, _ in places],
                [t == chunk[i].agent_turns[-1] for i, t in places],
                [dataclasses.replace(chunk[i], turns=chunk[i].turns[: t + 2]) for i, t in places],
            )
        ).total


def with_scores(pool: TextGenPool, scores: Iterable[float]) -> Iterator[Dialogue]:
    """Yield the conversations of a pool with other rewards: those of :func:`reply_scores`."""
    paid = iter(scores)
    for each in pool.prompted_conversations():
        replies = each.agent_turns
        turns = [
            dataclasses.replace(turn, reward=next(paid) if t in replies else 0.0, token_rewards=None)
            for t, turn in enumerate(each.turns)
        ]
        yield dataclasses.replace(each, turns=tuple(turns), has_reward=True)


def conversations_hash(conversations: Iterable[Dialogue]) -> str:
    """Hash of all that is learned of conversations."""
    digest = hashlib.sha256()
    for each in conversations:
        turns = [(t.text, t.speaker, t.reward, t.ids, t.token_rewards) for t in each.turns]
        record = [str(each.prompt), turns, each.n_given, each.terminated, each.tokenizer]
        digest.update(json.dumps(record).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _settings(encoder: ConversationEncoder) -> dict[str, Any]:
    """Settings of an encoder that determine its results, as JSON values."""
    end = encoder.end
    return {
        "tokenizer": encoding_key(end.tokenizer),
        "end": [sorted(end.eos_token_ids), end.marker],
        "join_turns": encoder.join_turns,
        "in_encoder": encoder.in_encoder,
        **{name: dataclasses.asdict(getattr(encoder, name)) for name in ("limits", "frame", "rules")},
    }


def check_rewards(config: OfflineConfig, log: ConversationLog) -> None:
    """Check that there is something to learn from, and that the algorithm's arguments fit the returns."""
    of_log = f"{len(log):,} conversations of datapool {config.datapool.id!r}"
    others = "use a datapool with rewards, alg.rewards: reward_fn, or alg.id: bc"
    nothing = f"so alg.id: {config.alg.id} has nothing to learn from; {others}"
    if log.n_without_reward == len(log):
        raise DataError(f"none of the {of_log} has a reward (docs/logs.md), {nothing}")
    if is_constant(log.returns):
        raise DataError(f"all {of_log} have the return {float(log.returns[0]):g}, {nothing}")
    algorithm_class(config).check_returns(log.returns, all_arguments(config))


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

    def own_state(self) -> dict[str, Any]:
        return {**self.algorithm.training_state(), "log_hash": self.algorithm.log.hash}

    def restore_own(self, checkpoint: Checkpoint, of_process: Mapping[str, Any]) -> None:
        self.algorithm.load_training_state(checkpoint.state)
