"""Checks of logged conversations by the doctor."""

from __future__ import annotations

import math

import numpy as np
import torch

from rl4dialog.features.offline.building import check_rewards, log_notes
from rl4dialog.features.offline.config import OfflineConfig
from rl4dialog.features.offline.conversation_log import CONVERSATIONS_WITH_DROPS, CUT_REPLIES, REPLIES
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.policy import algorithm_class, all_arguments, build_inference_policy
from rl4dialog.training.findings import CUT_SHARE, Finding, NotApplicable, judged

# Logged conversations that are read, and those whose loss is measured.
N_READ, N_SCORED = 256, 16

# A model that knows the language of the replies has a fraction of the loss of a uniform distribution, and one with
# random weights about the same.
UNIFORM_SHARE = 0.8


def _config_of(subject: Assembly) -> OfflineConfig:
    assert isinstance(subject.config, OfflineConfig)
    return subject.config


def logged_conversations(subject: Assembly) -> Finding:
    """Check that the log can be encoded, and how much of it is cut."""
    log = subject.log
    replies = log.replies(np.arange(min(len(log), N_READ)))
    n_all = int(replies.prompt_mask.sum() + replies.token_mask.sum())
    n_agent = int((replies.flat("loss_weights") > 0).sum())
    cut = log.counts.get(CUT_REPLIES, 0) / log.counts[REPLIES]
    dropped = log.counts.get(CONVERSATIONS_WITH_DROPS, 0) / len(log)
    size = f"{len(log):,} conversations, {int(log.n_tokens.sum()):,} tokens of the agent ({n_agent / n_all:.0%} of all)"
    lost = f"{cut:.1%} of the replies lose their end, {dropped:.1%} of the conversations their first utterances"
    measured = f"{size}; {lost}"
    if notes := log_notes(_config_of(subject), subject.data.pools["train"]):
        return Finding("warn", "; ".join([*notes, measured]), "check the log")
    advice = "raise env.args.max_episode_length for replies, or max_prompt_length for conversations"
    return judged(max(cut, dropped), measured, advice, warn_above=CUT_SHARE)


def logged_rewards(subject: Assembly) -> Finding:
    """Check that returns differ, if the algorithm needs rewards."""
    config, log = _config_of(subject), subject.log
    if not algorithm_class(config).needs_rewards:
        raise NotApplicable(f"alg.id: {config.alg.id} needs no rewards")
    check_rewards(config, log)
    returns = log.returns.astype(float)
    spread = f"mean {returns.mean():.3g}, standard deviation {returns.std():.3g}"
    measured = f"returns from {returns.min():.3g} to {returns.max():.3g}, {spread}"
    if n := log.n_without_reward:
        measured += f"; {n:,} of {len(log):,} conversations have no reward, and the return 0"
        return Finding("warn", measured, "give every conversation a reward, or leave these out")
    return Finding("pass", measured)


def prior_likelihood(subject: Assembly) -> Finding:
    """Check the language model's loss on replies of the log."""
    config, log = _config_of(subject), subject.log
    policy = build_inference_policy(subject, subject.initial_model)
    batch = log.replies(np.arange(min(len(log), N_SCORED))).to(policy.device)
    with torch.no_grad():
        logits = policy.model_logits(policy._policy_hidden(batch))
    log_probs = token_log_probs(logits, batch.flat("response_ids"))
    weights = batch.flat("loss_weights")
    loss, uniform = -float((weights * log_probs).sum() / weights.sum()), math.log(logits.shape[-1])
    state = f" (the model {subject.model_state})" if config.warm_start is not None else ""
    measured = f"{loss:.2f} nats per token of the agent, {uniform:.2f} for a uniform distribution{state}"
    if not math.isfinite(loss):
        return Finding("fail", measured, "load another model")
    if all_arguments(config).get("train_prior", True):
        return Finding("pass", measured)
    advice = "the language model does not know such replies and is not trained: use one that was fine-tuned on them"
    return judged(loss, measured, advice, warn_above=UNIFORM_SHARE * uniform)
