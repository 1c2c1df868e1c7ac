"""Checks of the logged conversations that an offline run learns from."""

from __future__ import annotations

import math

import numpy as np
import torch

from rl4dialog.catalog import OfflineAlgorithmRegistry
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.rollouts.conversation_log import CONVERSATIONS_WITH_DROPS, CUT_REPLIES, REPLIES
from rl4dialog.training.building.offline import check_rewards
from rl4dialog.training.building.policy import all_arguments, build_inference_policy
from rl4dialog.training.doctor.finding import Finding, NotApplicable, judged
from rl4dialog.training.doctor.subject import Subject
from rl4dialog.training.doctor.text_checks import CUT_SHARE

N_READ, N_SCORED = 256, 16

# A model that knows the language of the replies has a fraction of the loss of a uniform distribution, and one with
# random weights about the same.
UNIFORM_SHARE = 0.8


def logged_conversations(subject: Subject) -> Finding:
    """Check that the log can be encoded, and how much of it is cut."""
    log = subject.log
    replies = log.replies(np.arange(min(len(log), N_READ)))
    n_all = int(replies.prompt_mask.sum() + replies.token_mask.sum())
    n_agent = int((replies.flat("loss_weights") > 0).sum())
    cut = log.counts.get(CUT_REPLIES, 0) / log.counts[REPLIES]
    dropped = log.counts.get(CONVERSATIONS_WITH_DROPS, 0) / len(log)
    measured = (
        f"{len(log):,} conversations, {int(log.n_tokens.sum()):,} tokens of the agent ({n_agent / n_all:.0%} of all); "
        f"{cut:.1%} of the replies lose their end, {dropped:.1%} of the conversations their first utterances"
    )
    advice = "raise env.args.max_episode_length for replies, or max_prompt_length for conversations"
    return judged(max(cut, dropped), measured, advice, warn_above=CUT_SHARE)


def logged_rewards(subject: Subject) -> Finding:
    """Check that returns differ, if the algorithm needs rewards."""
    config, log = subject.offline_config, subject.log
    if not OfflineAlgorithmRegistry.resolve(config.alg.id).needs_rewards:
        raise NotApplicable(f"alg.id: {config.alg.id} needs no rewards")
    check_rewards(config, log)
    returns = log.returns.astype(float)
    measured = (
        f"returns from {returns.min():.3g} to {returns.max():.3g}, mean {returns.mean():.3g}, standard deviation "
        f"{returns.std():.3g}"
    )
    if n := log.n_without_reward:
        measured += f"; {n:,} of {len(log):,} conversations have no reward, and the return 0"
        return Finding("warn", measured, "give every conversation a reward, or leave these out")
    return Finding("pass", measured)


def prior_likelihood(subject: Subject) -> Finding:
    """Check the language model's loss on replies of the log."""
    config, log, model = subject.offline_config, subject.log, subject.model
    marker = subject.data.turn_marker
    policy = build_inference_policy(config, subject.tokenizer, marker, model, subject.lengths)
    batch = log.replies(np.arange(min(len(log), N_SCORED))).to(policy.device)
    with torch.no_grad():
        logits = policy.model_logits(policy._policy_hidden(batch))
    log_probs = token_log_probs(logits, batch.flat("response_ids"))
    weights = batch.flat("loss_weights")
    loss = -float((weights * log_probs).sum() / weights.sum())
    uniform = math.log(logits.shape[-1])
    state = f" (the model {subject.model_state})" if config.warm_start is not None else ""
    measured = f"{loss:.2f} nats per token of the agent, {uniform:.2f} for a uniform distribution{state}"
    if not math.isfinite(loss):
        return Finding("fail", measured, "load another model")
    if all_arguments(config).get("train_prior", True):
        return Finding("pass", measured)
    advice = "the language model does not know such replies and is not trained: use one that was fine-tuned on them"
    return judged(loss, measured, advice, warn_above=UNIFORM_SHARE * uniform)
