"""Numbers that an iteration logs about its rollout: means over tokens, replies and conversations, and durations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl4dialog.core.errors import ConfigError, PartnerError, RewardError, nearest_hint
from rl4dialog.functional.distributed import all_gather_object, all_reduce_numbers
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.statistics import ratio_standard_error, repeated_share

PREFIX = "rollout/info/"


class InfoNumbers:
    """Collects numbers of the infos or their ``meta_info`` by name, to be averaged over an iteration."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._known: set[str] = set()

    def add(self, infos: Iterable[Mapping[str, Any]], series: dict[str, list[float]]) -> None:
        """Append the numbers of a batch of infos to the series ``rollout/info/<name>``."""
        if not self._names:
            return
        for info in infos:
            numbers = numbers_in(info)
            self._known.update(numbers)
            for name in self._names:
                if name in numbers:
                    series[PREFIX + name].append(numbers[name])

    def check(self, found: Mapping[str, float], iteration: int) -> None:
        """Check after the run's first iteration that each name was found; names may be absent later."""
        if iteration > 1:
            return
        for name in self._names:
            if PREFIX + name not in found:
                raise ConfigError(
                    f"logging.log_infos: the environments' infos have no number {name!r}"
                    f"{nearest_hint(name, self._known)} (they have: {', '.join(sorted(self._known)) or 'none'})"
                )


def numbers_in(info: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers of an info by name, including booleans. Numbers in its ``meta_info`` come last."""
    found: dict[str, float] = {}
    for source in (info.get("meta_info") or {}, info):
        for name, value in source.items():
            if isinstance(value, (bool, int, float, np.number, np.bool_)) and math.isfinite(value):
                found[str(name)] = float(value)
    return found


@dataclass(frozen=True)
class RolloutRecord:
    """What functions under ``logging.info_fns`` read of an iteration; of several processes, that of their own."""

    infos: Sequence[Mapping[str, Any]]  # of each complete turn, with ``prompt_text``, ``gen_text`` and ``meta_info``
    rewards: Sequence[float]  # of these turns, as earned; NaN if the reward failed
    returns: Sequence[float]  # of the conversations that did not fail, as earned
    replies: Replies  # to train on, with log-probabilities, values and ``task_rewards``


def spread_of_returns(record: RolloutRecord) -> dict[str, float]:
    """Median, lowest and highest return of a conversation."""
    low, median, high = np.quantile(record.returns, (0.0, 0.5, 1.0))
    return {"min": low, "median": median, "max": high}


def measured(
    functions: Mapping[str, Callable[[RolloutRecord], Mapping[str, float]]], record: RolloutRecord
) -> dict[str, list[float]]:
    """The numbers of functions by id, as series ``rollout/info/<id>/<name>``."""
    found: dict[str, list[float]] = {}
    for id, function in functions.items():
        try:
            found |= {f"{PREFIX}{id}/{name}": [float(number)] for name, number in function(record).items()}
        except Exception as error:
            raise ConfigError(f"logging.info_fns: {id} failed: {type(error).__name__}: {error}") from error
    return found


@dataclass
class RolloutStats:
    """Statistics of one iteration's rollout."""

    n_tokens: int = 0  # number of agent tokens to train on
    n_spoken: int = 0  # number of all agent tokens, those of conversations that are left out included
    n_masked: int = 0  # number of episodes excluded because a reward or the partner failed
    last_failure: str | None = None  # message of the last reward that failed, if known
    means: dict[str, float] = field(default_factory=dict)  # averages to log, by key (rollout/...)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # duration by phase (time/..._s)
    # Reward and length of each episode, in the format of stable-baselines3's monitor.
    episodes: list[dict[str, float]] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)  # side and sample id of each episode


def measure_sampler(replies: Replies, series: dict[str, list[float]]) -> None:
    """Measure the difference between the sampler's distribution and the policy's."""
    if replies.truncated_mass is not None:
        series["rollout/truncated_mass"].extend(replies.flat("truncated_mass").tolist())
    if replies.sampler_log_probs is not None:
        gaps = replies.flat("sampler_log_probs") - replies.flat("log_probs")
        # The mean estimates the KL divergence of the sampler from the policy, per token.
        series["rollout/sampler_kl"].extend(gaps.tolist())
        largest = series["rollout/sampler_max_ratio"]
        largest[:] = [max([*largest, gaps.abs().max().exp().item()])]


def summarize(stats: RolloutStats, replies: Replies, series: dict[str, list[float]]) -> None:
    """Fill ``stats.means``, averaged over all processes, from the replies to train on and further numbers by key."""
    kl = replies.flat("unmasked_log_probs") - replies.flat("ref_log_probs")
    ids = replies.per_reply("response_ids")
    mine = {
        **series,
        "rollout/task_reward": [episode["r"] for episode in stats.episodes],
        "rollout/kl": kl.numpy(),
        "rollout/kl_per_reply": [row.sum() for row in replies.per_reply(kl)],
        "rollout/log_prob": replies.flat("log_probs").numpy(),
        "rollout/ref_log_prob": replies.flat("ref_log_probs").numpy(),
        "rollout/values": replies.flat("values").numpy(),
        "rollout/reply_length": [len(row) for row in ids],
        "rollout/repeated_trigrams": [repeated_share(row) for row in ids],
    }
    numbers: dict[str, list[Any]] = defaultdict(list)
    distinct: set[bytes] = set()
    for theirs, their_replies in all_gather_object((mine, {row.tobytes() for row in ids})):
        distinct |= their_replies
        for name, values in theirs.items():
            numbers[name].extend(values)
    counts = {"n_episodes": len(stats.episodes), "tokens": stats.n_tokens, "masked_rewards": stats.n_masked}
    counts["spoken_tokens"] = stats.n_spoken
    stats.means = {
        **{name: float(np.mean(values)) for name, values in numbers.items() if values},
        "rollout/task_reward_std": float(np.std(numbers["rollout/task_reward"])),
        "rollout/kl_se": ratio_standard_error(numbers["rollout/kl_per_reply"], numbers["rollout/reply_length"]),
        "rollout/distinct_replies": len(distinct) / len(numbers["rollout/reply_length"]),
        **{f"rollout/{name}": int(n) for name, n in zip(counts, all_reduce_numbers(*counts.values()), strict=True)},
    }
    if stats.means["rollout/spoken_tokens"] == stats.means["rollout/tokens"]:
        del stats.means["rollout/spoken_tokens"]  # as in most runs


def check_progress(stats: RolloutStats, n_partner_failed: float) -> None:
    """Raise if all conversations fail, which would otherwise loop forever."""
    if stats.n_masked < 100 or stats.episodes:
        return
    if n_partner_failed > stats.n_masked / 2:
        raise PartnerError(
            f"the partner failed in {n_partner_failed:g} of the first {stats.n_masked} conversations, and none of them "
            f"can be trained on; set env.args.partner_on_error: raise to see the error"
        )
    what = f"the reward failed for each of the first {stats.n_masked} episodes, so there is nothing to train on"
    if stats.last_failure is not None:
        raise RewardError(f"{what} with reward_fn.on_error: mask; the last failure: {stats.last_failure}")
    raise RewardError(f"{what}; set reward_fn.on_error: raise to see the error")
