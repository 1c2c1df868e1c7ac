"""Checks of a running run: rules on the logged values of each iteration, with a line of advice.

A problem is reported once when it starts, not while it lasts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from tqdm.contrib.logging import logging_redirect_tqdm

from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.runs.causes import AT_BEST, EQUAL_TO_REFERENCES
from rl4dialog.runs.reading import references_of
from rl4dialog.runs.run_folder import ROLLOUT_INFO_FILE, TRAINING_INFO_FILE, WARNINGS_FILE, RunFolder
from rl4dialog.training.building.rewards import TOTAL
from rl4dialog.training.callbacks.base import FeatureCallback
from rl4dialog.training.policy_trainee import PolicyTrainee

WINDOW = 3
"""Number of iterations that are averaged, now and at the start of the run."""


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

    def now(self, key: str, default: float = math.nan) -> float:
        """The last iteration's value."""
        return self._records[-1].get(key, default)

    def first(self, key: str, n: int) -> np.ndarray:
        """Values of the first n iterations. Shape (n,), or shorter early in a run."""
        return np.array([record.get(key, np.nan) for record in self._records[:n]])

    def last(self, key: str, n: int) -> np.ndarray:
        """Values of the last n iterations; empty if there are fewer."""
        return np.array([record.get(key, np.nan) for record in self._records[-n:]]) if len(self) >= n else np.zeros(0)

    def all_last(self, key: str, n: int, holds: Callable[[float], bool]) -> bool:
        """Whether something holds in each of the last n iterations."""
        return len(self) >= n and all(map(holds, self.last(key, n)))

    def mean(self, key: str, n: int = WINDOW) -> float:
        """Mean of the last n iterations; NaN if there are fewer. Comparisons with NaN are false."""
        return float(self.last(key, n).mean()) if len(self) >= n else math.nan

    def begin_and_now(self, key: str) -> tuple[float, float]:
        """Means of the first and the last iterations; NaN before these windows are distinct."""
        if len(self) < 2 * WINDOW:
            return math.nan, math.nan
        return float(self.first(key, WINDOW).mean()), self.mean(key)

    @property
    def parts(self) -> list[str]:
        """Names of the reward's parts in the last iteration, without sums of other parts and without weights."""
        names = [key.removeprefix("rollout/reward/") for key in self._records[-1] if key.startswith("rollout/reward/")]
        names = [name for name in names if not name.endswith("/weight")]
        return [name for name in names if not any(other.startswith(f"{name}/") for other in names)]

    @property
    def returns(self) -> tuple[float, float]:
        """Lowest and highest return to go so far."""
        lowest, highest = (self.first(f"train/{end}_return", len(self)) for end in ("lowest", "highest"))
        return float(np.nanmin(lowest, initial=np.inf)), float(np.nanmax(highest, initial=-np.inf))


@dataclass(frozen=True)
class RunFacts:
    """Settings that affect how logged values are judged."""

    precision: str = "fp32"
    target_kl: float | None = None  # target KL per token, if any
    reward_weights: Mapping[str, float] = field(default_factory=dict)  # weight of each reward part; 1 if it is not set
    max_turns: int = 1  # maximum number of agent utterances per conversation
    values_are_returns: bool = True  # whether learned values Q estimate returns of a log


Problem = str | Literal[False] | None  # a description of what the last iteration shows, if anything
Rule = Callable[[History, RunFacts], Problem]


@dataclass(frozen=True)
class Check:
    """A check for one problem."""

    name: str
    advice: str
    rule: Rule


CHECKS: list[Check] = []


def check(advice: str) -> Callable[[Rule], Check]:
    """Turn the decorated rule into a check of the same name, one of :data:`CHECKS`."""

    def add(rule: Rule) -> Check:
        CHECKS.append(found := Check(rule.__name__, advice, rule))
        return found

    return add


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


@check("Replies come from another distribution than their KL: check top_k, top_p, min_length and repetition_penalty.")
def kl_negative(history: History, facts: RunFacts) -> Problem:
    kl = history.mean("rollout/kl", NEGATIVE_KL_ITERATIONS)
    errors = np.nan_to_num(history.last("rollout/kl_se", NEGATIVE_KL_ITERATIONS))
    error = float(np.sqrt(np.square(errors).sum())) / NEGATIVE_KL_ITERATIONS
    text = f"KL to the reference was {kl:.4f} nats per token in the last {NEGATIVE_KL_ITERATIONS} iterations"
    return kl < -max(NEGATIVE_KL_NATS, NEGATIVE_KL_ERRORS * error) and text


@check("Raise alg.kl_div.coeff, or lower the learning rate or n_epochs. Read some replies before trusting the reward.")
def kl_exploding(history: History, facts: RunFacts) -> Problem:
    limit = EXPLODING_KL_NATS if facts.target_kl is None else EXPLODING_KL_TIMES_TARGET * facts.target_kl
    is_above = history.all_last("rollout/kl", EXPLODING_KL_ITERATIONS, lambda kl: kl > limit)
    target = "" if facts.target_kl is None else f", with a target of {facts.target_kl:g}"
    text = f"KL to the reference is {history.now('rollout/kl'):.2f} nats per token{target}"
    # With a coefficient of 0 the KL is unconstrained on purpose.
    return is_above and history.now("rollout/kl_coeff") != 0 and text


@check("The controller cannot hold the target: change alg.kl_div.coeff, target_kl or the learning rate.")
def kl_coefficient(history: History, facts: RunFacts) -> Problem:
    start, coeff = history.first("rollout/kl_coeff", 1)[0], history.now("rollout/kl_coeff")
    kl, target = history.now("rollout/kl"), math.nan if facts.target_kl is None else facts.target_kl
    too_high = coeff >= COEFFICIENT_FACTOR * start and kl > target
    too_low = coeff <= start / COEFFICIENT_FACTOR and kl < target
    text = f"the KL coefficient went from {start:g} to {coeff:.2g}, but the KL is still "
    return start > 0 and (too_high or too_low) and f"{text}{'above' if too_high else 'below'} its target"


@check("The loss is wrong: `rl4dialog doctor` finds out whether padding, dropout or the sampler is the cause.")
def first_ratio(history: History, facts: RunFacts) -> Problem:
    approx_kl = history.now("train/first_approx_kl")
    if not approx_kl > FIRST_KL_TOLERANCE[facts.precision]:
        return None
    off = math.expm1(math.sqrt(2 * approx_kl))
    return f"the probability ratio differs from 1 by about {off:.1%} in the first minibatch, before any update"


@check("This biases every update: raise top_k or top_p, remove penalties, or set alg.args.importance_correction.")
def truncated_sampler(history: History, facts: RunFacts) -> Problem:
    mass = history.mean("rollout/truncated_mass", TRUNCATED_ITERATIONS)
    if mass > TRUNCATED_MASS:
        return f"the sampler cuts off {mass:.0%} of the policy's distribution"
    kl = history.mean("rollout/sampler_kl", TRUNCATED_ITERATIONS)
    return kl > SAMPLER_KL and f"the sampler's KL from the policy is {kl:.2f} nats per token"


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


@check("Replies hardly vary, so the policy stops learning: raise ent_coef or kl_div.coeff, or lower the learning rate.")
def entropy_collapse(history: History, facts: RunFacts) -> Problem:
    # The sampled estimate is available for every algorithm.
    begin, now = (-log_prob for log_prob in history.begin_and_now("rollout/log_prob"))
    distinct_begin, distinct_now = history.begin_and_now("rollout/distinct_replies")
    is_less = now < ENTROPY_SHARE * begin and distinct_now < LESS_DISTINCT * distinct_begin
    return is_less and f"the entropy per token fell from {begin:.2f} to {now:.3f} nats"


@check("If the reward favors length, missing_eos_penalty or length_penalty help; otherwise raise max_episode_length.")
def replies_reach_limit(history: History, facts: RunFacts) -> Problem:
    begin, now = history.begin_and_now("rollout/cut_replies")
    text = f"{now:.0%} of the replies are cut at the length limit, compared with {begin:.0%} at the start"
    return now > CUT_NOW and begin < CUT_AT_FIRST and text


@check("Check the reward of short replies, and the KL penalty per token. length_penalty can set a minimum length.")
def replies_vanish(history: History, facts: RunFacts) -> Problem:
    begin, now = history.begin_and_now("rollout/reply_length")
    return now < LENGTH_SHARE * begin and f"replies have {now:.1f} tokens, compared with {begin:.1f} at the start"


@check("Raise alg.kl_div.coeff, and use a reward that depends on the prompt.")
def repeated_replies(history: History, facts: RunFacts) -> Problem:
    begin, now = history.begin_and_now("rollout/distinct_replies")
    text = f"only {now:.0%} of an iteration's replies are distinct, compared with {begin:.0%} at the start"
    return now < DISTINCT_NOW and begin > DISTINCT_AT_FIRST and text


@check("The reward does not penalize this: add repetition_penalty to reward_fn, or raise alg.kl_div.coeff.")
def repeated_tokens(history: History, facts: RunFacts) -> Problem:
    begin, now = history.begin_and_now("rollout/repeated_trigrams")
    text = f"{now:.0%} of a reply's trigrams repeat earlier ones, compared with {begin:.0%} at the start"
    return now > REPEATED_NOW and now > begin + REPEATED_RISE and text


# The share of truncated prompts from which the doctor warns, too.
CONTEXT_DROPPED = 0.1

# Single timeouts of a service are normal. From a twentieth on, the conversations that are left are a biased sample,
# because partners tend to fail on particular ones.
PARTNER_FAILED = 0.05

# People hardly ever repeat an utterance literally: 0.02 % of the utterances of DailyDialog, none of PersonaChat's
# validation split.
PARTNER_ECHO = PARTNER_REPEATS = 0.1

# A mean of less than 1.1 turns leaves at most a tenth of the conversations with a second one.
ONE_TURN, LEFT_BY_PARTNER = 1.1, 0.9

# A reference reply is never empty. Replies that are empty by chance, before a model has learned to answer, are fewer.
EMPTY_REPLIES = 0.2


@check("Raise env.args.max_prompt_length, or lower max_turns, max_episode_length or max_partner_length.")
def context_dropped(history: History, facts: RunFacts) -> Problem:
    share = history.mean("rollout/context_dropped")
    text = f"{share:.0%} of the utterances were said without the oldest turns of their conversation"
    return share > CONTEXT_DROPPED and text


@check("These are not trained on, which biases what is learned: read the error with env.args.partner_on_error: raise.")
def partner_fails(history: History, facts: RunFacts) -> Problem:
    share = history.mean("rollout/partner_failed")
    return share > PARTNER_FAILED and f"the partner failed in {share:.0%} of the conversations"


@check("Check that it gets its own side of the conversation, in its format. `rl4dialog doctor` shows one.")
def partner_echoes(history: History, facts: RunFacts) -> Problem:
    share = history.mean("rollout/partner_echo")
    return share > PARTNER_ECHO and f"{share:.0%} of the partner's utterances repeat the agent's last one"


@check(
    "It has learned to repeat itself: train it longer or on more people, and look at conversations before you go on."
)
def partner_repeats(history: History, facts: RunFacts) -> Problem:
    share = history.mean("rollout/partner_repeats")
    return (
        share > PARTNER_REPEATS and f"{share:.0%} of the learned partner's utterances repeat an earlier one of its own"
    )


@check("Later turns are never trained: check when it leaves, and end_when.partner. `rl4dialog doctor` shows one.")
def partner_leaves_at_once(history: History, facts: RunFacts) -> Problem:
    turns, left = history.mean("rollout/turns"), history.mean("rollout/ended_by/partner")
    text = f"the partner ended {left:.0%} of the conversations, after {turns:.2f} of at most {facts.max_turns} turns"
    return facts.max_turns > 1 and turns < ONE_TURN and left > LEFT_BY_PARTNER and text


@check("Use a warm_start or min_length, or check the reward of empty replies. length_penalty can set a minimum length.")
def empty_replies(history: History, facts: RunFacts) -> Problem:
    share = history.mean("rollout/empty_replies")
    return share > EMPTY_REPLIES and f"{share:.0%} of the replies are empty"


# As for partners that fail: from a twentieth on, the episodes that are left are a biased sample.
REWARD_FAILED, FAILED_ITERATIONS, FAILED_EPISODES = 0.05, 3, 32

# Two episodes may have equal rewards, but this many in this many iterations means that the reward is constant. A run
# that begins so, with fewer episodes, has perhaps no reward at all.
CONSTANT_ITERATIONS, CONSTANT_EPISODES, CONSTANT_AT_START = 3, 32, 12
CONSTANT_REWARD_STD = 1e-6

# Share of replies that earn the highest reward of all, from which on hardly anything is left to learn.
AT_BEST_SHARE = 0.9
BEST_ADVICE = "Hardly anything is left to learn: use a reward that still differs between replies, or harder prompts."
EQUAL_ADVICE = "Reinforcement learning cannot gain if the reward is the similarity to references: use another reward."

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


@check("These are not trained on, which biases what is learned: read the error with reward_fn.on_error: raise.")
def reward_fails(history: History, facts: RunFacts) -> Problem:
    masked = history.last("rollout/masked_rewards", FAILED_ITERATIONS)
    ended = masked + history.last("rollout/n_episodes", FAILED_ITERATIONS)
    if not ended.sum() >= FAILED_EPISODES:
        return None
    # Conversations whose partner failed are masked, too, and have a warning of their own.
    by_partner = np.nan_to_num(history.last("rollout/partner_failed", FAILED_ITERATIONS)) * ended
    share = (masked - by_partner).sum() / ended.sum()
    return share > REWARD_FAILED and f"the reward failed for {share:.0%} of the episodes"


@check("Nothing is learned (fine if it is the maximum): check that the reward depends on the reply, with the doctor.")
def reward_constant(history: History, facts: RunFacts) -> Problem:
    stds = history.last("rollout/task_reward_std", CONSTANT_ITERATIONS)
    rewards = history.last("rollout/task_reward", CONSTANT_ITERATIONS)
    n_episodes = history.last("rollout/n_episodes", CONSTANT_ITERATIONS).sum()
    is_start = len(history) == CONSTANT_ITERATIONS and np.ptp(rewards) == 0
    if not len(stds) or not n_episodes >= (CONSTANT_AT_START if is_start else CONSTANT_EPISODES):
        return None
    if not (stds <= CONSTANT_REWARD_STD * np.maximum(1, np.abs(rewards))).all():
        return None
    return f"every episode of the last {CONSTANT_ITERATIONS} iterations earned {rewards[-1]:.4g}"


@check("Only differences are learned: use a finer reward, higher n_generations or batch_size, or more random sampling.")
def advantages_constant(history: History, facts: RunFacts) -> Problem:
    share = history.mean("train/constant_advantages", CONSTANT_ITERATIONS)
    n_episodes = history.last("rollout/n_episodes", CONSTANT_ITERATIONS).sum()
    text = f"in {share:.0%} of the comparisons of {CONSTANT_ITERATIONS} iterations, all replies were equally good"
    is_reported = reward_constant.rule(history, facts)
    return share > CONSTANT_ADVANTAGES and n_episodes >= CONSTANT_EPISODES and not is_reported and text


@check("Read replies of several iterations, and change the weights of the parts or raise alg.kl_div.coeff.")
def reward_parts_opposed(history: History, facts: RunFacts) -> Problem:
    if len(history) < PART_MIN_ITERATIONS:
        return None
    least_fall = PART_FALL_OF_STD * history.first("rollout/task_reward_std", PART_ITERATIONS).mean()
    risen, fallen = [], []
    for part in history.parts:
        begin, now, errors = _change(history, f"rollout/reward/{part}")
        text = f"{part!r} went from {begin:.3g} to {now:.3g}"
        weights = (w for name, w in facts.reward_weights.items() if part == name or part.startswith(f"{name}/"))
        sign = -1 if next(weights, 1.0) < 0 else 1
        if sign * errors > PART_ERRORS:
            risen.append(text)
        elif sign * errors < -PART_ERRORS and abs(now - begin) > max(PART_FALL * abs(begin), least_fall):
            fallen.append(text)
    return bool(risen and fallen) and f"one part of the reward improves, another gets worse: {risen[0]}, {fallen[0]}"


@check("Such steps are skipped. If they become more, lower the learning rate, normalize the reward, or use fp32.")
def gradient_not_finite(history: History, facts: RunFacts) -> Problem:
    n_skipped = history.now("train/skipped_steps")
    if n_skipped > 0:
        return f"the gradient of {n_skipped:.0f} optimizer steps was not finite"
    broken = [name for name in _LOSSES if not math.isfinite(history.now(name, 0))]
    return bool(broken) and f"{' and '.join(broken)} not finite"


@check("Raise alg.args.vf_coef, or if it diverges, lower the learning rate or normalize the reward; or use rloo.")
def explained_variance(history: History, facts: RunFacts) -> Problem:
    explained = history.last("train/explained_variance", VALUE_ITERATIONS)
    known, when = explained[np.isfinite(explained)], f"the last {VALUE_ITERATIONS} iterations"
    if len(history) < VALUE_MIN_ITERATIONS or not len(known):
        return None
    if (np.abs(known) < VALUE_CHANGE).all():
        return f"the critic explained at most {max(known.max(), 0):.1%} of the returns' variance in each of {when}"
    if known.mean() < VALUE_DIVERGED:
        return f"the critic's errors had {1 - known.mean():.1f} times the returns' variance in {when}"
    return None


@check("TRPO finds no acceptable step: raise alg.args.target_kl, n_steps or cg_damping.")
def line_search(history: History, facts: RunFacts) -> Problem:
    has_failed = history.all_last("train/is_line_search_success", LINE_SEARCH_ITERATIONS, lambda value: value == 0)
    return has_failed and f"the line search failed in each of the last {LINE_SEARCH_ITERATIONS} iterations"


def already_best(rewards: Sequence[float]) -> str | None:
    """Describe rewards before training that leave hardly anything to learn; equal ones must be positive for this."""
    known = np.array([reward for reward in rewards if math.isfinite(reward)])
    if len(known) < CONSTANT_EPISODES:
        return None
    best = float(known.max())
    n_best = int((known >= best - CONSTANT_REWARD_STD * max(1, abs(best))).sum())
    if n_best < AT_BEST_SHARE * len(known) or (n_best == len(known) and best <= 0):
        return None
    return f"{n_best} of {len(known)} replies already earn the highest reward of all, {best:.4g}"


def already_equal(predictions: Sequence[Mapping[str, Any]]) -> str | None:
    """Describe replies before training most of which equal a reference; METEOR rates equal ones by their lengths."""
    known = [(each["generated_text"], references) for each in predictions if (references := references_of(each))]
    n_equal = sum(reply.strip() in map(str.strip, references) for reply, references in known)
    if len(known) < CONSTANT_EPISODES or n_equal < AT_BEST_SHARE * len(known):
        return None
    return f"{n_equal} of {len(known)} replies already equal a reference"


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


@check("Set init_value to the mean return, lower the learning rate or raise cql_weight, or use ilql or mc_returns.")
def values_outside_returns(history: History, facts: RunFacts) -> Problem:
    value, (lowest, highest) = history.mean("train/q_mean"), history.returns
    margin = OUTSIDE_WIDTHS * (highest - lowest)
    is_outside = facts.values_are_returns and (value < lowest - margin or value > highest + margin)
    range_of_log = f"returns to go in the log are from {lowest:.3g} to {highest:.3g}"
    return is_outside and f"the mean of Q is {value:.3g}, but {range_of_log}"


@check("Guidance changes nothing: train longer, raise the learning rate, or alg.args.gamma if rewards come late.")
def advantages_vanish(history: History, facts: RunFacts) -> Problem:
    spread, (lowest, highest) = history.mean("train/advantage_abs", SPREAD_ITERATIONS), history.returns
    text = f"the mean advantage of a token is {spread:.1e}, while returns differ by up to {highest - lowest:.3g}"
    return len(history) >= SPREAD_MIN_ITERATIONS and spread < SPREAD_SHARE * (highest - lowest) and text


@check("A few tokens decide what is imitated, which is noisy: raise alg.args.temperature, or lower max_log_weight.")
def few_weighted_tokens(history: History, facts: RunFacts) -> Problem:
    share = history.mean("train/effective_share")
    text = f"the weights of the imitation have an effective sample size of {share:.1%} of the tokens"
    return share < EFFECTIVE_SHARE and text


# A problem is reported again only after it was absent for this many iterations. Otherwise a value near a threshold
# would be reported repeatedly.
QUIET_ITERATIONS = 10


class Trouble(NamedTuple):
    """A finding at the start of a problem: the check's name, a description and advice."""

    iteration: int
    name: str
    message: str
    advice: str


class Watcher:
    """Applies the checks to a run's history. Reports depend on records only: a resumed run repeats none."""

    def __init__(self, facts: RunFacts) -> None:
        self._facts, self._history = facts, History()
        self._last_seen: dict[str, int] = {}

    def observe(self, record: Mapping[str, Any]) -> list[Trouble]:
        """Problems that start in the next iteration, of which the logged values are given."""
        self._history.append(record)
        iteration = int(record["iteration"])
        started = []
        for check in CHECKS:
            if message := check.rule(self._history, self._facts):
                last = self._last_seen.get(check.name, -math.inf)
                self._last_seen[check.name] = iteration
                if iteration - last > QUIET_ITERATIONS:
                    started.append(Trouble(iteration, check.name, message, check.advice))
        return started


_logger = logging.getLogger(__name__)


class WatchCallback(FeatureCallback):
    """Checks the values of each iteration when it is finished; a resumed run reads earlier ones from files."""

    def __init__(self, facts: RunFacts, run_folder: RunFolder) -> None:
        super().__init__()
        self._watcher, self._run_folder = Watcher(facts), run_folder
        self._rollout: dict[str, Any] | None = None  # of the iteration whose training has not finished

    def check_start(self, predictions: Sequence[Mapping[str, Any]]) -> None:
        """Warn before training if the model already earns about the highest reward, or says what its data says."""
        if message := already_best([each[TOTAL] for each in predictions if TOTAL in each]):
            self._report(Trouble(0, AT_BEST, message, BEST_ADVICE))
        elif message := already_equal(predictions):
            self._report(Trouble(0, EQUAL_TO_REFERENCES, message, EQUAL_ADVICE))

    @property
    def summary(self) -> str | None:
        """Number of warnings and where to find them; ``None`` without warnings."""
        warnings = self._run_folder.read_jsonl(WARNINGS_FILE)
        if not warnings:
            return None
        names = ", ".join(dict.fromkeys(warning["name"] for warning in warnings))
        count = f"{len(warnings)} warning{'s' * (len(warnings) > 1)}"
        return f"{count} ({names}), with advice, in {self._run_folder.path(WARNINGS_FILE)}"

    def _on_training_start(self) -> None:
        reported = {(warning["iteration"], warning["name"]) for warning in self._run_folder.read_jsonl(WARNINGS_FILE)}
        training = {record.get("iteration"): record for record in self._run_folder.read_jsonl(TRAINING_INFO_FILE)}
        for rollout in self._run_folder.read_jsonl(ROLLOUT_INFO_FILE):
            if (iteration := rollout.get("iteration")) not in training:
                continue
            for trouble in self._watcher.observe({**rollout, **training[iteration]}):
                if (trouble.iteration, trouble.name) not in reported:
                    self._report(trouble)

    def _on_rollout_end(self) -> None:
        self._rollout = {"iteration": self.iteration, **self._values("rollout/")}

    def _act(self) -> None:
        if self._rollout is not None:
            record, self._rollout = {**self._rollout, **self._values("train/")}, None
            for trouble in self._watcher.observe(record):
                self._report(trouble)

    def _values(self, prefix: str) -> dict[str, Any]:
        return {key: value for key, value in self.logger.name_to_value.items() if key.startswith(prefix)}

    def _report(self, trouble: Trouble) -> None:
        record = trouble._asdict()
        self._run_folder.append_jsonl(WARNINGS_FILE, record)
        with logging_redirect_tqdm():  # above the progress bar, not in it
            _logger.warning("iteration %(iteration)d: %(message)s (%(name)s). %(advice)s", record)


def watch(trainee: PolicyTrainee, run_folder: RunFolder) -> WatchCallback:
    """Make the callback of a run."""
    config = trainee.parts.config
    if isinstance(config, OnPolicyConfig):
        scorer = trainee.parts.scorer
        weights = {part.name: part.weight_at(1) for part in scorer.parts} if scorer is not None else {}
        facts = RunFacts(config.precision, config.alg.kl_div.target_kl, weights, config.env.args.max_turns)
    else:
        facts = RunFacts(config.precision, values_are_returns=getattr(trainee.algorithm, "values_are_returns", True))
    return WatchCallback(facts, run_folder)
