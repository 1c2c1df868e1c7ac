"""Rollout buffer of whole replies, replacing stable-baselines3's buffer of single steps."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import AfterValidator
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import RolloutBufferSamples

from rl4dialog.catalog import AdvantageRegistry
from rl4dialog.core.config_blocks import inner_component
from rl4dialog.core.errors import nearest_hint
from rl4dialog.functional.advantages import (
    SCALE_EPS,
    AdvantageEstimator,
    Episodes,
    RewardMeans,
    Turns,
    group_deviation,
)
from rl4dialog.functional.distributed import (
    all_gather_object,
    all_reduce_max,
    all_reduce_min,
    all_reduce_numbers,
    gathered,
    mean_and_std,
    n_processes,
)
from rl4dialog.functional.log_probs import kl_penalized_rewards
from rl4dialog.functional.replies import Replies, ReplySamples
from rl4dialog.functional.rounding import is_constant, is_rounding, log_probs_agree
from rl4dialog.rollouts.task_rewards import whitened

EpisodeCredit = Literal["conversation", "turn", "token"]
RewardBaseline = Literal["none", "batch", "running", "prompt"]
_ALL = ""  # key of the mean over all prompts


def _known_estimator(credit: Any) -> Any:
    chosen, known = inner_component(credit, "alg.args.credit"), AdvantageRegistry.ids()
    if chosen.id not in known:
        raise ValueError(f"Input should be {' or '.join(map(repr, known))}{nearest_hint(chosen.id, known)}")
    AdvantageRegistry.check(chosen.id, chosen.args, where="alg.args.credit.args")
    return credit


Credit = Annotated[str | dict[str, Any], AfterValidator(_known_estimator)]
"""Id of an advantage estimator, or ``{id: ..., args: {...}}``."""


def build_estimator(credit: Credit, **factors: float | None) -> AdvantageEstimator:
    """Build an advantage estimator with those of the factors that it takes."""
    chosen = inner_component(credit, "alg.args.credit")
    return AdvantageRegistry.get(chosen.id, chosen.args, **factors)  # type: ignore[no-any-return]


class SequenceRolloutBuffer(RolloutBuffer):
    """Stores whole replies, computes GAE over the agent tokens or turns of each episode, and yields minibatches.

    Pass it to an algorithm as ``rollout_buffer_class``.

    Args:
        normalize_rewards: Whiten the rewards (including the KL penalty) over the buffer, like RL4LMs' ``norm_reward``.
        credit: Id of an advantage estimator, or ``{id, args}``.
        turn_gamma, turn_gae_lambda: See :class:`~rl4dialog.functional.advantages.GAE`. ``None`` is ``gamma`` and
            ``gae_lambda``.

    Attributes:
        kl_is_rounding: Whether policy and reference agree on all tokens of the iteration up to rounding. The KL penalty
            is 0 in this case.
        episode_returns: Sum of the discounted rewards from each token on, which values predict. Shape (N,).
        constant_rewards: Whether rewards to be whitened are constant up to rounding. They become 0 in this case.
        found_constant: For each set of advantages that are compared with each other, whether they are constant up to
            rounding, so that they give no learning signal.
        logged: Numbers of the last advantages that are logged, by name.
    """

    whitened = False  # whether the algorithm whitens the advantages of each minibatch
    samples: Sequence[str] = ()  # key of the sample of each episode, by its number

    def __init__(
        self,
        *args: Any,
        normalize_rewards: bool = False,
        credit: Credit = "token",
        turn_gamma: float | None = None,
        turn_gae_lambda: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.normalize_rewards = normalize_rewards
        super().__init__(*args, **kwargs)
        turn_gamma = self.gamma if turn_gamma is None else turn_gamma
        turn_gae_lambda = self.gae_lambda if turn_gae_lambda is None else turn_gae_lambda
        of_turns = {"turn_gamma": turn_gamma, "turn_gae_lambda": turn_gae_lambda}
        self.estimator = build_estimator(credit, gamma=self.gamma, gae_lambda=self.gae_lambda, **of_turns)
        self.logged: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        """State that affects later advantages, equal in all processes, for :meth:`load_state_dict`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""

    def reset(self) -> None:
        """Remove all replies."""
        self._added: list[Replies] = []
        self.values, self.returns, self.episode_returns = np.zeros((3, 0), dtype=np.float32)
        self.kl_is_rounding = self.constant_rewards = False
        self.found_constant: list[bool] = []
        self.full = False

    def add(self, replies: Replies) -> None:  # type: ignore[override]
        """Append replies in main memory. The replies of an episode must be added in order."""
        self._added.append(replies)

    @property
    def replies(self) -> Replies:
        """All added replies. The buffer must not be empty."""
        if len(self._added) > 1:
            self._added = [Replies.concatenate(self._added)]
        return self._added[0]

    @property
    def n_tokens(self) -> int:
        """Number of agent tokens in the buffer."""
        return sum(replies.n_tokens for replies in self._added)

    def compute_rewards(self, kl_coeff: float, precision: str = "fp32") -> None:
        """Subtract the KL penalty, ``kl_coeff`` per nat, from the reward of every token.

        The precision of the passes, ``fp32`` or ``bf16``, decides below which size a KL is rounding.
        """
        if not self._added:
            return
        log_probs, ref_log_probs, task_rewards = self._numbers("unmasked_log_probs", "ref_log_probs", "task_rewards")
        self.kl_is_rounding = log_probs_agree(log_probs, ref_log_probs, precision)
        if self.kl_is_rounding:
            kl_coeff = 0.0
        rewards = kl_penalized_rewards(task_rewards, log_probs, ref_log_probs, kl_coeff)
        penalties = task_rewards - rewards
        scales = np.abs(task_rewards) + np.abs(penalties)
        if self.normalize_rewards:
            rewards, penalties, scales, self.constant_rewards = whitened(rewards, penalties, scales)
        self._set(rewards=rewards, kl_penalties=penalties, reward_scales=scales)

    def compute_returns_and_advantage(self, last_values: Any = None, dones: Any = None) -> None:
        """Compute the credit of the agent tokens of each episode in order. Replies hold the value after its end."""
        self.full = True
        if not self._added:
            return
        # One row per episode; `order` lists its tokens contiguously.
        episodes = self.replies.token_episodes()
        order, lengths = np.argsort(episodes, kind="stable"), np.bincount(episodes)
        mask = np.arange(lengths.max()) < lengths[:, None]

        def of_episodes(name: str) -> np.ndarray:
            array = np.zeros(mask.shape, dtype=np.float32)
            array[mask] = self.replies.flat(name).numpy()[order]
            return array

        last = np.zeros(len(lengths), dtype=np.float32)
        assert self.replies.last_value is not None
        last[self.replies.row_episodes()] = self.replies.last_value.numpy()  # for repeated indices, the last row wins
        rewards, scales, values, turns = map(of_episodes, ("rewards", "reward_scales", "values", "turn"))
        penalties = np.zeros_like(rewards) if self.replies.kl_penalties is None else of_episodes("kl_penalties")
        found = self.estimator(Episodes(rewards, penalties, scales, values, turns, mask, last))
        back = np.argsort(order)
        advantages, targets, scales, self.episode_returns = (numbers[mask][back] for numbers in found)
        self._set(advantages=advantages, returns=targets, advantage_scales=scales)
        self.values, self.returns = self._numbers("values", "returns")

    def _numbers(self, *names: str) -> list[np.ndarray]:
        """Get numbers of all agent tokens, each of shape (N,)."""
        return [self.replies.flat(name).numpy() for name in names]

    def _set(self, **numbers: np.ndarray) -> None:
        """Replace numbers of all agent tokens, each of shape (N,)."""
        for name, flat in numbers.items():
            setattr(self.replies, name, self.replies.scattered(flat.astype(np.float32)))

    def get(self, batch_size: int | None = None) -> Iterator[ReplySamples]:  # type: ignore[override]
        """The :meth:`minibatches`, on the device of the policy; in several processes, with the numbers of all."""
        batches = (batch.to(self.device) for batch in self.minibatches(batch_size))
        return batches if n_processes() == 1 else map(_with_numbers_of_all, batches)

    def minibatches(self, batch_size: int | None = None) -> Iterator[ReplySamples]:
        """Minibatches of whole rows in random order, each row exactly once; ``None`` yields everything at once.

        They have about ``batch_size`` agent tokens over all processes and similar sizes, without a small remainder, and
        are in main memory, where counting and splitting waits for no GPU.
        """
        units = self._units()
        n_tokens_of = self.replies.response_mask.sum(dim=1).numpy()
        order = np.random.permutation(len(units))
        lengths = np.array([n_tokens_of[units[unit]].sum() for unit in order])
        (n_tokens,) = all_reduce_numbers(lengths.sum())
        n_batches = 1 if batch_size is None else max(1, round(n_tokens / batch_size))
        # All processes need the same number of minibatches; otherwise some would wait forever.
        n_batches = all_reduce_min(min(n_batches, len(units)))
        # Assign each unit to the minibatch that contains its middle token.
        middle = np.cumsum(lengths) - lengths / 2
        batch_of = np.minimum((middle * n_batches / lengths.sum()).astype(int), n_batches - 1)
        if len(np.unique(batch_of)) < n_batches:  # a unit is longer than a minibatch
            batch_of = np.arange(len(units)) * n_batches // len(units)
        for batch in range(n_batches):
            yield self._minibatch([row for unit in order[batch_of == batch] for row in units[unit]])

    def _minibatch(self, rows: list[int]) -> ReplySamples:
        """Build a minibatch, with advantages set to 0 if they are to be whitened but constant up to rounding."""
        replies = self.replies[torch.as_tensor(rows)]
        if self.whitened and (replies.n_tokens > 1 or n_processes() > 1):  # at least two advantages to compare
            constant = is_constant(replies.flat("advantages"), replies.flat("advantage_scales"), of_all_processes=True)
            self.found_constant.append(constant)
            if constant:
                assert replies.advantages is not None
                replies.advantages = torch.zeros_like(replies.advantages)
        return ReplySamples(replies)

    def _units(self) -> list[list[int]]:
        """Groups of rows that stay together in a minibatch; by default single rows."""
        return [[row] for row in range(len(self.replies))]


def _with_numbers_of_all(batch: ReplySamples) -> Any:
    """A minibatch with the own replies, and the numbers of the agent tokens of all processes."""
    names = ("old_values", "old_log_prob", "advantages", "returns")
    own: Any = batch.observations, batch.actions
    return RolloutBufferSamples(*own, *(gathered(getattr(batch, name)) for name in names))


class Steps(NamedTuple):
    """What conversations are compared by: U returns of whole conversations, or from each turn on. Shapes (U,)."""

    returns: np.ndarray
    scales: np.ndarray  # sums of the absolute values in returns
    episodes: np.ndarray  # index of each one's conversation
    turns: np.ndarray  # number of each one's turn; 0 for whole conversations


class EpisodeRolloutBuffer(SequenceRolloutBuffer):
    """Compares the rewards of conversations with each other.

    Args:
        credit: What a token is paid: the total reward of its ``conversation``; the reward from its ``turn`` on, minus
            its own KL penalty; or the reward from the ``token`` on. The baseline of the last two is that of the turn.
        turn_gamma: Discount factor of rewards from one turn to the next; ``None`` is 1.
    """

    def __init__(
        self, *args: Any, credit: EpisodeCredit = "conversation", turn_gamma: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.credit = credit
        if credit != "conversation":  # without values, advantages are rewards to go
            self.estimator = build_estimator(credit, turn_gamma=1.0 if turn_gamma is None else turn_gamma)

    def compute_returns_and_advantage(self, last_values: Any = None, dones: Any = None) -> None:
        """Compute the advantage of each token."""
        replies = self.replies
        if self.credit == "conversation":
            episodes, index = replies.row_episodes(), replies.token_episodes()
            totals, scales = (
                np.bincount(episodes, weights=[row.sum() for row in replies.per_row(name)])
                for name in ("rewards", "reward_scales")
            )
            advantages, _ = self._compare(Steps(totals, scales, np.arange(len(totals)), np.zeros_like(totals)))
            returns, of_tokens = totals[index], advantages[index]
        else:
            super().compute_returns_and_advantage()
            turns = Turns.of(replies)
            index, first = turns.index.numpy(), turns.first.numpy()
            returns, penalties, scales, numbers = self._numbers("returns", "kl_penalties", "advantage_scales", "turn")
            of_turns = Steps(returns[first], scales[first], replies.token_episodes()[first], numbers[first])
            advantages, divisors = self._compare(of_turns)
            # A token gets less than its turn: by its own KL penalty, or by the rewards of the tokens before it.
            less = penalties if self.credit == "turn" else returns[first][index] - returns
            of_tokens = advantages[index] - less / divisors[index]
        self._set(advantages=of_tokens, advantage_scales=np.abs(of_tokens), returns=returns)
        self.full = True

    @abstractmethod
    def _compare(self, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
        """Advantages of U steps, and the numbers by which differences of returns were divided. Shapes (U,), (U,)."""


class BaselineRolloutBuffer(EpisodeRolloutBuffer):
    """Compares the rewards of each conversation with a ``baseline`` that needs neither critic nor groups.

    ``none`` is 0. ``batch`` whitens the rewards over the conversations of the iteration (REINFORCE++, arXiv
    2501.03262). ``running`` is the mean of earlier iterations. ``prompt`` is the same for each prompt, or the mean of
    all where a prompt is new, and advantages are whitened (SPO, arXiv 2509.13232). The first iteration of these two is
    compared with its own mean. Past rewards count half after each ``half_life`` in nats per token. With ``credit``
    ``turn`` or ``token``, all means are of the same turn.
    """

    def __init__(self, *args: Any, baseline: RewardBaseline, half_life: float, **kwargs: Any) -> None:
        self._baseline, self.means = baseline, RewardMeans(half_life)
        super().__init__(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        return {"moved": self.means.moved, "means": {key: [*mean] for key, mean in self.means.means.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.means.moved = float(state["moved"])
        self.means.means = {key: tuple(mean) for key, mean in state["means"].items()}

    def _compare(self, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
        baselines = np.zeros_like(steps.returns)
        by_turn = self.credit != "conversation"
        if self._baseline in ("running", "prompt") or (self._baseline == "batch" and by_turn):
            n_turns = all_reduce_max(int(steps.turns.max(initial=0))) + 1
            means = [mean_and_std(steps.returns[steps.turns == turn])[0] for turn in range(n_turns)]
            baselines = np.array([means[int(turn)] for turn in steps.turns])
        if self._baseline in ("running", "prompt"):
            known = self.means.means
            assert self.replies.episode is not None
            episodes = self.replies.episode.unique().tolist()
            of_all = [f"turn {int(turn)}" if by_turn else _ALL for turn in steps.turns]
            keys = of_all
            if self._baseline == "prompt":
                keys = [self.samples[episodes[i]] + each for i, each in zip(steps.episodes, of_all, strict=True)]
            named = [*zip(keys, of_all, steps.returns.tolist(), strict=True)]
            baselines = np.array(
                [
                    known.get(key, known.get(every, (now,)))[0]
                    for (key, every, _), now in zip(named, baselines, strict=True)
                ]
            )
            n_known, n = all_reduce_numbers(sum(key in known for key in keys), len(keys))
            self.logged = {"rollout/known_baselines": n_known / n}
            for key, every, value in itertools.chain(*all_gather_object(named)):
                for each in {key, every}:
                    self.means.add(each, value)
        advantages, sizes = steps.returns - baselines, steps.scales + np.abs(baselines)
        ones = np.ones_like(advantages)
        if self._baseline in ("none", "running"):
            return np.where(is_rounding(advantages, sizes), 0.0, advantages), ones
        self.found_constant.append(is_constant(advantages, sizes, of_all_processes=True))
        if self.found_constant[-1]:
            return np.zeros_like(advantages), ones
        mean, deviation = mean_and_std(advantages, unbiased=True)
        return (advantages - mean) / (deviation + SCALE_EPS), ones * (deviation + SCALE_EPS)


class GroupRolloutBuffer(EpisodeRolloutBuffer):
    """Compares the rewards of each conversation with those of its group.

    With ``credit: turn`` or ``token``, a turn is compared with the same turn of the others that reached it. Where no
    other did, its advantage is 0, as in a group of one.
    """

    def __init__(
        self,
        *args: Any,
        advantages_of: Callable[[np.ndarray, np.ndarray], np.ndarray],
        scale: Literal["group", "batch", "none"] = "none",
        **kwargs: Any,
    ) -> None:
        self._advantages_of = advantages_of  # from the returns and turns of a group, (n,), (n,) -> (n,)
        self._scale = scale  # the deviation by which they are divided there (`group`), or here, by that of all
        super().__init__(*args, **kwargs)

    def _compare(self, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
        """Advantages within each group: 0 without others at the same turn, or if they are constant up to rounding."""
        episodes = self.replies.row_episodes()
        advantages, divisors = np.zeros_like(steps.returns), np.ones_like(steps.returns)
        for rows in self._units():
            members = np.flatnonzero(np.isin(steps.episodes, episodes[rows]))
            returns, turns = steps.returns[members], steps.turns[members]
            places = [turns == turn for turn in np.unique(turns)]
            constant = [is_constant(returns[place], steps.scales[members][place]) for place in places]
            self.found_constant.append(all(constant))
            if all(constant):
                continue
            found = self._advantages_of(returns, turns)
            for place in itertools.compress(places, constant):
                found[place] = 0.0
            advantages[members] = found
            if self._scale == "group":
                divisors[members] = group_deviation(returns, turns) + SCALE_EPS
        if self._scale == "batch":
            divisors *= mean_and_std(steps.returns, unbiased=True)[1] + SCALE_EPS
            advantages = advantages / divisors
        return advantages, divisors

    def _units(self) -> list[list[int]]:
        """Rows grouped by prompt, to keep the replies of a group together."""
        assert self.replies.group is not None
        units: dict[int, list[int]] = {}
        for row, group in enumerate(self.replies.group.tolist()):
            units.setdefault(group, []).append(row)
        return list(units.values())
