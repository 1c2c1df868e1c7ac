"""Checks for degenerate replies. Each compares with the start of the run, because typical values depend on the task."""

from __future__ import annotations

from rl4dialog.training.watch.check import History, RunFacts, check, mean

# Number of iterations that are averaged, at the start of the run and now.
WINDOW = 3

# Entropies fell by a sixth in our runs of thirty iterations, and to a tenth where guess_what was learned: there the
# policy becomes certain of its questions, but they are as different as before.
ENTROPY_SHARE, LESS_DISTINCT = 0.1, 0.5

# Fractions of replies cut at the length limit. It is always 1 for a task without an end, such as continuing a review.
CUT_NOW, CUT_AT_FIRST = 0.8, 0.5

# DailyDialog replies became a third shorter while they improved.
LENGTH_SHARE = 0.3

# If the prompts differ, nearly all replies do too at first.
DISTINCT_NOW, DISTINCT_AT_FIRST = 0.25, 0.5

# Fraction of repeated trigrams within a reply; almost 0 in reference replies.
REPEATED_NOW, REPEATED_RISE = 0.3, 0.2


def _begin_and_now(history: History, key: str) -> tuple[float, float]:
    """Means of the first and the last iterations; NaN before these windows are distinct."""
    if len(history) < 2 * WINDOW:
        return float("nan"), float("nan")
    return mean(history.first(key, WINDOW)), mean(history.last(key, WINDOW))


@check(
    "Replies hardly vary, so the policy stops learning: raise alg.args.ent_coef or alg.kl_div.coeff, or lower the "
    "learning rate."
)
def entropy_collapse(history: History, facts: RunFacts) -> str | None:
    # The sampled estimate is available for every algorithm.
    begin, now = (-log_prob for log_prob in _begin_and_now(history, "rollout/log_prob"))
    distinct_begin, distinct_now = _begin_and_now(history, "rollout/distinct_replies")
    if not now < ENTROPY_SHARE * begin or not distinct_now < LESS_DISTINCT * distinct_begin:
        return None
    return f"the entropy per token fell from {begin:.2f} to {now:.3f} nats"


@check(
    "Replies no longer end on their own: check if the reward favors length. missing_eos_penalty and length_penalty "
    "counteract this. Otherwise max_episode_length may be too short."
)
def replies_reach_limit(history: History, facts: RunFacts) -> str | None:
    begin, now = _begin_and_now(history, "rollout/cut_replies")
    if not (now > CUT_NOW and begin < CUT_AT_FIRST):
        return None
    return f"{now:.0%} of the replies are cut at the length limit, compared with {begin:.0%} at the start"


@check(
    "Almost empty replies earn as much as others, or the KL penalty per token favors them: check the reward of "
    "short replies. length_penalty can set a minimum length."
)
def replies_vanish(history: History, facts: RunFacts) -> str | None:
    begin, now = _begin_and_now(history, "rollout/reply_length")
    if not now < LENGTH_SHARE * begin:
        return None
    return f"replies have {now:.1f} tokens, compared with {begin:.1f} at the start"


@check(
    "The policy gives the same well-rewarded reply to many prompts: raise alg.kl_div.coeff, and use a reward that "
    "depends on the prompt."
)
def repeated_replies(history: History, facts: RunFacts) -> str | None:
    begin, now = _begin_and_now(history, "rollout/distinct_replies")
    if not (now < DISTINCT_NOW and begin > DISTINCT_AT_FIRST):
        return None
    return f"only {now:.0%} of an iteration's replies are distinct, compared with {begin:.0%} at the start"


@check(
    "Replies repeat themselves, which the reward does not penalize: add repetition_penalty to reward_fn, or raise "
    "alg.kl_div.coeff."
)
def repeated_tokens(history: History, facts: RunFacts) -> str | None:
    begin, now = _begin_and_now(history, "rollout/repeated_trigrams")
    if not (now > REPEATED_NOW and now > begin + REPEATED_RISE):
        return None
    return f"{now:.0%} of a reply's trigrams repeat earlier ones, compared with {begin:.0%} at the start"


CHECKS = (entropy_collapse, replies_reach_limit, replies_vanish, repeated_replies, repeated_tokens)
