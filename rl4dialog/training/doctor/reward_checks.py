"""Checks of rewards and metrics."""

from __future__ import annotations

import math

import numpy as np

from rl4dialog.core.protocols import BaseMetric, DialogueMetric
from rl4dialog.rollouts.conversing import talk_of_one_reply
from rl4dialog.training.doctor.finding import Finding, NotApplicable, judged
from rl4dialog.training.doctor.subject import Subject
from rl4dialog.training.talks import compute_metrics
from rl4dialog.training.watch.learning import BEST_ADVICE, already_best

N_METRIC_SAMPLES = 4


def reward(subject: Subject) -> Finding:
    """Check that rewards are finite and not constant, and measure their duration."""
    rollout = subject.rollout
    earned = np.array(rollout.rewards)
    seconds = rollout.logged["time/score_s"] / len(earned)
    measured = (
        f"{len(earned)} replies earned {earned.mean():.3g} (standard deviation {earned.std():.3g}, from "
        f"{earned.min():.3g} to {earned.max():.3g}), {1000 * seconds:.1f} ms each"
    )
    n_failed = int(rollout.logged["rollout/masked_rewards"])
    if n_failed:
        advice = "set reward_fn.on_error: raise to see the error"
        return Finding("warn", f"the reward failed for {n_failed} replies; {measured}", advice)
    advice = "nothing can be learned from a constant reward: check that it depends on the reply"
    if subject.is_cold:
        advice += ". The warm start may change this; `rl4dialog prepare` runs it in advance"
    if earned.std() >= 1e-9 and (best := already_best(rollout.rewards)):
        return Finding("warn", f"{best}; {measured}", BEST_ADVICE)
    return judged(-float(earned.std()), measured, advice, warn_above=-1e-9)


def metrics(subject: Subject) -> Finding:
    """Check that every metric of replies returns finite scores for a few reference replies."""
    model = subject.model  # first, because a quick examination ends here
    of_replies = [
        each for each in subject.metrics if isinstance(each, BaseMetric) or not isinstance(each, DialogueMetric)
    ]
    if not of_replies and subject.metrics:
        raise NotApplicable("the metrics measure whole conversations, of which there are no references")
    samples = subject.data.samples("test", N_METRIC_SAMPLES)
    replies = [sample.references[0] if sample.references else "" for sample in samples]
    talks = [talk_of_one_reply(sample, reply) for sample, reply in zip(samples, replies, strict=True)]
    scores = compute_metrics(of_replies, talks, "test", model)
    broken = [key for key, (_, corpus) in scores.items() if not math.isfinite(corpus)]
    measured = f"{len(scores)} scores of {len(samples)} reference replies"
    if broken:
        return Finding("warn", f"{measured}, of which {', '.join(broken)} are not finite", "check the references")
    return Finding("pass", measured)
