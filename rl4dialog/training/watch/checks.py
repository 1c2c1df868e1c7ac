"""Checks of a running run: each is a rule on the logged values with a line of advice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class History:
    """Logged values by iteration. Missing values and ``None`` are NaN."""

    def __init__(self) -> None:
        self._records: list[dict[str, float]] = []

    def append(self, record: Mapping[str, Any]) -> None:
        """Add the next iteration: its number as ``iteration``, and its values by key."""
        numbers = {key: np.nan if value is None else value for key, value in record.items()}
        self._records.append({k: float(v) for k, v in numbers.items() if isinstance(v, (int, float, np.number))})

    def __len__(self) -> int:
        return len(self._records)

    @property
    def now(self) -> dict[str, float]:
        """The last iteration's values."""
        return self._records[-1]

    def first(self, key: str, n: int) -> np.ndarray:
        """Values of the first n iterations. Shape (n,), or shorter early in a run."""
        return self._column(key, self._records[:n])

    def last(self, key: str, n: int) -> np.ndarray:
        """Values of the last n iterations; empty if there are fewer."""
        return self._column(key, self._records[-n:]) if len(self) >= n else np.zeros(0)

    @staticmethod
    def _column(key: str, records: list[dict[str, float]]) -> np.ndarray:
        return np.array([record.get(key, np.nan) for record in records])


@dataclass(frozen=True)
class RunFacts:
    """Settings that affect how logged values are judged."""

    precision: str = "fp32"
    target_kl: float | None = None  # target KL per token, if any
    reward_weights: Mapping[str, float] = field(default_factory=dict)  # weight of each reward part; 1 if it is not set
    max_turns: int = 1  # maximum number of agent utterances per conversation
    values_are_returns: bool = True  # whether learned values Q estimate returns of a log


Rule = Callable[[History, RunFacts], "str | None"]


@dataclass(frozen=True)
class Check:
    """A check for one problem."""

    name: str
    advice: str
    rule: Rule  # returns a description of the problem in the last iteration, or ``None``


CHECKS: list[Check] = []

WINDOW = 3
"""Number of iterations that are averaged, now and at the start of the run."""


def check(advice: str) -> Callable[[Rule], Check]:
    """Turn the decorated rule into a check of the same name, one of :data:`CHECKS`."""

    def add(rule: Rule) -> Check:
        CHECKS.append(found := Check(rule.__name__, advice, rule))
        return found

    return add


def mean(values: np.ndarray) -> float:
    """Mean, or NaN without values. Comparisons with NaN are false."""
    return float(values.mean()) if len(values) else float("nan")


# A sampled KL can be negative by chance in one iteration, but rarely by three standard errors in the mean of five.
NEGATIVE_KL_ITERATIONS = 5
NEGATIVE_KL_ERRORS = 3.0
# RL4LMs' top_k of 20 led to -0.02 for a while in a PersonaChat run that went well.
NEGATIVE_KL_NATS = 0.03

# Controllers overshoot, by less than a factor of two in our runs.
EXPLODING_KL_TIMES_TARGET = 5.0
# Without a target: on average, the reference gives a token a seventh of its probability under the policy.
EXPLODING_KL_NATS = 2.0
EXPLODING_KL_ITERATIONS = 2

# The adaptive controller changes by at most 2 % per iteration, so this takes 120 iterations in one direction.
COEFFICIENT_FACTOR = 10.0

# Half the mean square of the log ratios. Float32: ratios off by 0.4 %, where kernels differ by at most 1e-5. Bfloat16:
# 10 %, with logits rounded to 1/256. The trainer also scores vLLM's replies, so the same limits apply.
FIRST_KL_TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3}

# RL4LMs' top_k of 20 cuts off up to 0.32 in our DailyDialog runs, which learn.
TRUNCATED_MASS = 0.35
# Filters that only reweight tokens, such as repetition_penalty, cut off nothing, and vLLM reports no mass. Cutting off
# 0.35 everywhere is a KL of 0.43.
SAMPLER_KL = 0.43
TRUNCATED_ITERATIONS = 3


@check(
    "Replies are not sampled from the distribution used to compute their KL: check top_k, top_p, min_length and "
    "repetition_penalty in generation_kwargs, and rollout/sampler_kl with vLLM."
)
def kl_negative(history: History, facts: RunFacts) -> str | None:
    kl = mean(history.last("rollout/kl", NEGATIVE_KL_ITERATIONS))
    errors = np.nan_to_num(history.last("rollout/kl_se", NEGATIVE_KL_ITERATIONS))
    error = float(np.sqrt(np.square(errors).sum())) / NEGATIVE_KL_ITERATIONS
    if not kl < -max(NEGATIVE_KL_NATS, NEGATIVE_KL_ERRORS * error):
        return None
    return f"KL to the reference was {kl:.4f} nats per token in the last {NEGATIVE_KL_ITERATIONS} iterations"


@check(
    "The policy drifts from the reference: raise alg.kl_div.coeff, or lower the learning rate or n_epochs. Read some "
    "replies before trusting the reward."
)
def kl_exploding(history: History, facts: RunFacts) -> str | None:
    limit = EXPLODING_KL_NATS if facts.target_kl is None else EXPLODING_KL_TIMES_TARGET * facts.target_kl
    kl = history.last("rollout/kl", EXPLODING_KL_ITERATIONS)
    # With a coefficient of 0 the KL is unconstrained on purpose.
    if not len(kl) or not (kl > limit).all() or history.now.get("rollout/kl_coeff") == 0:
        return None
    target = "" if facts.target_kl is None else f", with a target of {facts.target_kl:g}"
    return f"KL to the reference is {kl[-1]:.2f} nats per token{target}"


@check(
    "The controller cannot hold the target: choose another alg.kl_div.coeff or target_kl, or another learning rate "
    "(lower if the coefficient grows, higher if it shrinks)."
)
def kl_coefficient(history: History, facts: RunFacts) -> str | None:
    coeff, start = history.now.get("rollout/kl_coeff", math.nan), mean(history.first("rollout/kl_coeff", 1))
    kl = history.now.get("rollout/kl", math.nan)
    if facts.target_kl is None or not start > 0:
        return None
    too_high = coeff >= COEFFICIENT_FACTOR * start and kl > facts.target_kl
    too_low = coeff <= start / COEFFICIENT_FACTOR and kl < facts.target_kl
    if not too_high and not too_low:
        return None
    side = "above" if too_high else "below"
    return f"the KL coefficient went from {start:g} to {coeff:.2g}, but the KL is still {side} its target"


@check(
    "Old and new log-probabilities of the same tokens differ before any update, so the loss is wrong: run `rl4dialog "
    "doctor` to find out whether padding, dropout or the sampler is the cause."
)
def first_ratio(history: History, facts: RunFacts) -> str | None:
    approx_kl = history.now.get("train/first_approx_kl", math.nan)
    if not approx_kl > FIRST_KL_TOLERANCE[facts.precision]:
        return None
    off = math.expm1(math.sqrt(2 * approx_kl))
    return f"the probability ratio differs from 1 by about {off:.1%} in the first minibatch"


@check(
    "Replies come from another distribution than the policy's, which biases every update: raise top_k or top_p in "
    "generation_kwargs, and remove penalties; or set importance_correction."
)
def truncated_sampler(history: History, facts: RunFacts) -> str | None:
    mass = mean(history.last("rollout/truncated_mass", TRUNCATED_ITERATIONS))
    if mass > TRUNCATED_MASS:
        return f"the sampler cuts off {mass:.0%} of the policy's distribution"
    kl = mean(history.last("rollout/sampler_kl", TRUNCATED_ITERATIONS))
    return f"the sampler's KL from the policy is {kl:.2f} nats per token" if kl > SAMPLER_KL else None


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


# The share of truncated prompts from which the doctor warns, too.
CONTEXT_DROPPED = 0.1

# Single timeouts of a service are normal. From a twentieth on, the conversations that are left are a biased sample,
# because partners tend to fail on particular ones.
PARTNER_FAILED = 0.05

# People hardly ever repeat an utterance literally: 0.02 % of the utterances of DailyDialog, none of PersonaChat's
# validation split.
PARTNER_ECHO = 0.1

# A mean of less than 1.1 turns leaves at most a tenth of the conversations with a second one.
ONE_TURN, LEFT_BY_PARTNER = 1.1, 0.9

# A reference reply is never empty. Replies that are empty by chance, before a model has learned to answer, are fewer.
EMPTY_REPLIES = 0.2


def _share_above(limit: float, history: History, key: str) -> str | None:
    """Return the mean of the last iterations as a percentage, if it is above the limit."""
    share = mean(history.last(key, WINDOW))
    return f"{share:.0%}" if share > limit else None


@check(
    "The agent answers without the oldest turns of its conversations, which rewards may still read: raise "
    "env.args.max_prompt_length, or lower max_turns, max_episode_length or max_partner_length."
)
def context_dropped(history: History, facts: RunFacts) -> str | None:
    share = _share_above(CONTEXT_DROPPED, history, "rollout/context_dropped")
    return share and f"{share} of the utterances were said without the oldest turns of their conversation"


@check(
    "Conversations whose partner fails are not trained on, which biases what is learned: read the error with "
    "env.args.partner_on_error: raise."
)
def partner_fails(history: History, facts: RunFacts) -> str | None:
    share = _share_above(PARTNER_FAILED, history, "rollout/partner_failed")
    return share and f"the partner failed in {share} of the conversations"


@check(
    "The partner repeats what it hears instead of answering: check that it gets its own side of the conversation, in "
    "the format that it was trained on. `rl4dialog doctor` shows a conversation."
)
def partner_echoes(history: History, facts: RunFacts) -> str | None:
    share = _share_above(PARTNER_ECHO, history, "rollout/partner_echo")
    return share and f"{share} of the partner's utterances repeat the agent's last one"


@check(
    "The partner ends nearly every conversation after its first answer, so later turns are never trained: check when "
    "it leaves, and the patterns of env.args.end_when.partner. `rl4dialog doctor` shows a conversation."
)
def partner_leaves_at_once(history: History, facts: RunFacts) -> str | None:
    turns, left = (mean(history.last(key, WINDOW)) for key in ("rollout/turns", "rollout/ended_by/partner"))
    if facts.max_turns == 1 or not (turns < ONE_TURN and left > LEFT_BY_PARTNER):
        return None
    return f"the partner ended {left:.0%} of the conversations, after {turns:.2f} of at most {facts.max_turns} turns"


@check(
    "The agent often says nothing: use a warm_start, set min_length in generation_kwargs, or check the reward of empty "
    "replies. length_penalty can set a minimum length."
)
def empty_replies(history: History, facts: RunFacts) -> str | None:
    share = _share_above(EMPTY_REPLIES, history, "rollout/empty_replies")
    return share and f"{share} of the replies are empty"


# As for partners that fail: from a twentieth on, the episodes that are left are a biased sample.
REWARD_FAILED, FAILED_ITERATIONS, FAILED_EPISODES = 0.05, 3, 32

# Two episodes may have equal rewards, but this many in this many iterations means that the reward is constant. A run
# that begins so, with fewer episodes, has perhaps no reward at all.
CONSTANT_ITERATIONS, CONSTANT_EPISODES, CONSTANT_AT_START = 3, 32, 12
CONSTANT_REWARD_STD = 1e-6

# Share of replies that earn the highest reward of all, from which on hardly anything is left to learn.
AT_BEST_SHARE = 0.9
BEST_ADVICE = "Hardly anything is left to learn: use a reward that still differs between replies, or harder prompts."

# Fraction of minibatches (or groups of replies to one prompt) with constant advantages. It is high for sparse rewards;
# above this limit, hardly anything is learned.
CONSTANT_ADVANTAGES = 0.9

# Parts of a reward: number of first and last iterations to compare, and the difference of their means in standard
# errors that counts (by chance in one of 250 pairs, and two parts must differ).
PART_ITERATIONS, PART_MIN_ITERATIONS, PART_ERRORS = 5, 15, 4.0
# Minimum drop of a part, relative to its mean and to the standard deviation of episode rewards.
PART_FALL, PART_FALL_OF_STD = 0.2, 0.05

# Many returns can hardly be predicted, so a working critic may explain little, and less than nothing by chance. One
# that does not learn stays at 0 all the time; one that diverges is far from the returns.
VALUE_MIN_ITERATIONS, VALUE_ITERATIONS, VALUE_CHANGE, VALUE_DIVERGED = 30, 20, 0.01, -1.0

LINE_SEARCH_ITERATIONS = 5

_LOSSES = ("train/loss", "train/policy_loss", "train/value_loss", "train/grad_norm")


@check(
    "Replies whose reward fails are not trained on, which biases what is learned: read the error with "
    "reward_fn.on_error: raise."
)
def reward_fails(history: History, facts: RunFacts) -> str | None:
    masked = history.last("rollout/masked_rewards", FAILED_ITERATIONS)
    ended = masked + history.last("rollout/n_episodes", FAILED_ITERATIONS)
    if not ended.sum() >= FAILED_EPISODES:
        return None
    # Conversations whose partner failed are masked, too, and have a warning of their own.
    by_partner = np.nan_to_num(history.last("rollout/partner_failed", FAILED_ITERATIONS)) * ended
    share = (masked - by_partner).sum() / ended.sum()
    return f"the reward failed for {share:.0%} of the episodes" if share > REWARD_FAILED else None


@check(
    "All replies earn the same, so nothing is learned (fine if it is the maximum): check that the reward depends on "
    "the reply. `rl4dialog doctor` shows the rewards of 32 replies."
)
def reward_constant(history: History, facts: RunFacts) -> str | None:
    stds = history.last("rollout/task_reward_std", CONSTANT_ITERATIONS)
    rewards = history.last("rollout/task_reward", CONSTANT_ITERATIONS)
    n_episodes = history.last("rollout/n_episodes", CONSTANT_ITERATIONS).sum()
    is_start = len(history) == CONSTANT_ITERATIONS and np.ptp(rewards) == 0
    if not len(stds) or not n_episodes >= (CONSTANT_AT_START if is_start else CONSTANT_EPISODES):
        return None
    if not (stds <= CONSTANT_REWARD_STD * np.maximum(1, np.abs(rewards))).all():
        return None
    return f"every episode of the last {CONSTANT_ITERATIONS} iterations earned {rewards[-1]:.4g}"


@check(
    "The policy learns only from differences between compared replies: use a reward with more distinct values, a "
    "higher alg.args.n_generations (RLOO, GRPO) or batch_size, or more randomness in generation_kwargs."
)
def advantages_constant(history: History, facts: RunFacts) -> str | None:
    share = mean(history.last("train/constant_advantages", CONSTANT_ITERATIONS))
    if not share > CONSTANT_ADVANTAGES or reward_constant.rule(history, facts) is not None:
        return None
    if not history.last("rollout/n_episodes", CONSTANT_ITERATIONS).sum() >= CONSTANT_EPISODES:
        return None
    return f"in {share:.0%} of the comparisons of {CONSTANT_ITERATIONS} iterations, all replies were equally good"


@check(
    "One part of the reward improves at the expense of another, often in undesirable replies: read replies of several "
    "iterations, and change the weights of the parts or raise alg.kl_div.coeff."
)
def reward_parts_opposed(history: History, facts: RunFacts) -> str | None:
    if len(history) < PART_MIN_ITERATIONS:
        return None
    least_fall = PART_FALL_OF_STD * mean(history.first("rollout/task_reward_std", PART_ITERATIONS))
    risen, fallen = [], []
    for part in _parts(history.now):
        begin, now, errors = _change(history, f"rollout/reward/{part}")
        text = f"{part!r} went from {begin:.3g} to {now:.3g}"
        sign = _sign(part, facts)
        if sign * errors > PART_ERRORS:
            risen.append(text)
        elif sign * errors < -PART_ERRORS and abs(now - begin) > max(PART_FALL * abs(begin), least_fall):
            fallen.append(text)
    return f"one part of the reward improves, another gets worse: {risen[0]}, {fallen[0]}" if risen and fallen else None


@check(
    "Such steps are skipped. If their number grows, lower alg.args.learning_rate, normalize or clip the reward, or try "
    "precision: fp32."
)
def gradient_not_finite(history: History, facts: RunFacts) -> str | None:
    n_skipped = history.now.get("train/skipped_steps", 0)
    if n_skipped > 0:
        return f"the gradient of {n_skipped:.0f} optimizer steps was not finite"
    broken = [name for name in _LOSSES if not math.isfinite(history.now.get(name, 0))]
    return f"{' and '.join(broken)} not finite" if broken else None


@check(
    "Advantages are as noisy as without a critic, or noisier: raise alg.args.vf_coef if it learns nothing, lower the "
    "learning rate or normalize the reward if it diverges, or use rloo or grpo, which need none."
)
def explained_variance(history: History, facts: RunFacts) -> str | None:
    explained = history.last("train/explained_variance", VALUE_ITERATIONS)
    known = explained[np.isfinite(explained)]
    if len(history) < VALUE_MIN_ITERATIONS or not len(known):
        return None
    if (np.abs(known) < VALUE_CHANGE).all():
        return (
            f"the critic explained at most {max(known.max(), 0):.1%} of the returns' variance in each of the last "
            f"{VALUE_ITERATIONS} iterations"
        )
    if known.mean() < VALUE_DIVERGED:
        return (
            f"the critic's errors had {1 - known.mean():.1f} times the returns' variance in the last "
            f"{VALUE_ITERATIONS} iterations"
        )
    return None


@check("TRPO finds no acceptable step: raise alg.args.target_kl, n_steps or cg_damping.")
def line_search(history: History, facts: RunFacts) -> str | None:
    success = history.last("train/is_line_search_success", LINE_SEARCH_ITERATIONS)
    if not len(success) or not (success == 0).all():
        return None
    return f"the line search failed in each of the last {LINE_SEARCH_ITERATIONS} iterations"


def already_best(rewards: Sequence[float]) -> str | None:
    """Describe rewards before training (NaN if they failed) that leave hardly anything to learn; ``None`` for others.

    If all are equal and not positive, they are not the highest reward but one that no reply has earned yet.
    """
    known = np.array([reward for reward in rewards if math.isfinite(reward)])
    if len(known) < CONSTANT_EPISODES:
        return None
    best = float(known.max())
    n_best = int((known >= best - CONSTANT_REWARD_STD * max(1, abs(best))).sum())
    if n_best < AT_BEST_SHARE * len(known) or (n_best == len(known) and best <= 0):
        return None
    return f"{n_best} of {len(known)} replies already earn the highest reward of all, {best:.4g}"


def _parts(record: dict[str, float]) -> list[str]:
    """Names of the reward's parts, without sums of other parts and without weights."""
    names = [key.removeprefix("rollout/reward/") for key in record if key.startswith("rollout/reward/")]
    names = [name for name in names if not name.endswith("/weight")]
    return [name for name in names if not any(other.startswith(f"{name}/") for other in names)]


def _sign(part: str, facts: RunFacts) -> int:
    """-1 for a part with a negative weight, otherwise 1."""
    weight = next((w for name, w in facts.reward_weights.items() if part == name or part.startswith(f"{name}/")), 1.0)
    return -1 if weight < 0 else 1


def _change(history: History, key: str) -> tuple[float, float, float]:
    """Means of the first and the last iterations, and their difference in standard errors."""
    begin, now = history.first(key, PART_ITERATIONS), history.last(key, PART_ITERATIONS)
    error = math.sqrt((begin.var(ddof=1) + now.var(ddof=1)) / PART_ITERATIONS)
    difference = float(now.mean() - begin.mean())
    # Parts that are constant in both windows have no error, so any difference is significant.
    errors = difference / error if error else math.copysign(math.inf, difference) if difference else 0.0
    return float(begin.mean()), float(now.mean()), errors


# How far outside of the returns to go the mean of Q may be, in widths of their range. Values that begin at 0 for
# returns from -10 to -1 are within one width.
OUTSIDE_WIDTHS = 1.0

# Advantages begin at 0, because all values begin at init_value, so the first iterations say nothing.
SPREAD_MIN_ITERATIONS, SPREAD_ITERATIONS = 10, 5
# As a share of the range of the returns. With the usual beta, such advantages change probabilities by a thousandth.
SPREAD_SHARE = 1e-4

# Share of the tokens that would have the same variance with equal weights.
EFFECTIVE_SHARE = 0.05


def _returns(history: History) -> tuple[float, float]:
    """Lowest and highest return to go so far."""
    lowest, highest = (history.first(f"train/{end}_return", len(history)) for end in ("lowest", "highest"))
    return float(np.nanmin(lowest, initial=np.inf)), float(np.nanmax(highest, initial=-np.inf))


@check(
    "Values far from all returns of the log are not learned from it: set alg.policy.args.init_value to the mean "
    "return, lower the learning rate, or, if they grow, raise alg.args.cql_weight or use ilql or mc_returns, which do "
    "not evaluate tokens that are not in the log."
)
def values_outside_returns(history: History, facts: RunFacts) -> str | None:
    if not facts.values_are_returns:
        return None
    value, (lowest, highest) = mean(history.last("train/q_mean", WINDOW)), _returns(history)
    margin = OUTSIDE_WIDTHS * (highest - lowest)
    if not (value < lowest - margin or value > highest + margin):
        return None
    return f"the mean of Q is {value:.3g}, but returns to go in the log are from {lowest:.3g} to {highest:.3g}"


@check(
    "All tokens have the same value, so guidance changes nothing: train longer, raise the learning rate, or raise "
    "alg.args.gamma if rewards come late."
)
def advantages_vanish(history: History, facts: RunFacts) -> str | None:
    if len(history) < SPREAD_MIN_ITERATIONS:
        return None
    spread, (lowest, highest) = mean(history.last("train/advantage_abs", SPREAD_ITERATIONS)), _returns(history)
    if not spread < SPREAD_SHARE * (highest - lowest):
        return None
    return f"the mean advantage of a token is {spread:.1e}, while returns differ by up to {highest - lowest:.3g}"


@check(
    "A few tokens decide what is imitated, which is noisy: raise alg.args.temperature, or lower "
    "alg.args.max_log_weight."
)
def few_weighted_tokens(history: History, facts: RunFacts) -> str | None:
    share = mean(history.last("train/effective_share", WINDOW))
    if not share < EFFECTIVE_SHARE:
        return None
    return f"the weights of the imitation have an effective sample size of {share:.1%} of the tokens"
