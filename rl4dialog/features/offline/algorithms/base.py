"""Base of all algorithms that learn from logged conversations."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback, Schedule
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rl4dialog.algorithms.schedules import IterationSchedules, RateSettings, as_schedule
from rl4dialog.core.arguments import Count, Fraction, LearningRate, Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.process_memory import return_unused_memory
from rl4dialog.features.offline.conversation_log import ConversationLog, OfflineSampler
from rl4dialog.features.offline.losses import returns_to_go, step_discounts
from rl4dialog.functional import distributed
from rl4dialog.functional.advantages import Turns
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.functional.masks import FIXED_COST, length_groups
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.gradient_steps import StepGuard

PolicyKind = Literal["plain", "guided", "reranked"]


class OfflineAlgorithm(IterationSchedules, BaseAlgorithm):
    """Minibatches of whole conversations from a log. Subclasses implement :meth:`_terms`.

    ``n_steps`` and ``batch_size`` count agent tokens, as in the algorithms that collect rollouts, so that both have the
    same x-axis. The environment is stable-baselines3's; training does not step it.

    Args:
        policy: Policy class.
        env: Environment, for the spaces of observations and actions.
        log: The conversations.
        learning_rate: Learning rate. It can have a schedule: ``{start: 1e-4, end: 1e-5, schedule: linear,
            warmup: 0.1}``.
        n_steps: Agent tokens of the log per iteration.
        batch_size: Approximate number of agent tokens per optimizer step; conversations are never split.
        micro_batch_size: Rows per forward and backward pass. Gradients are accumulated over the minibatch. ``null``
            leaves the size to ``split_by_length``.
        split_by_length: Split a minibatch by length where this saves more padding than an additional pass costs.
        gamma: Discount factor.
        discount_per: Whether ``gamma`` discounts every ``token``, or only from one ``turn`` to the next, as always
            with values of replies.
        max_grad_norm: Maximum gradient norm; larger gradients are scaled down.
        policy_kwargs: Arguments of the policy.
        seed: Random seed.
        device: Device; ``auto`` selects a GPU if there is one, otherwise the CPU.
        stats_window_size: stable-baselines3's window of logged episodes.
        verbose: stable-baselines3's verbosity.
    """

    needs_rewards = True  # whether conversations need rewards that differ
    policy_kinds: tuple[PolicyKind, ...] = ("guided",)  # guided and reranked ones have values of tokens and of replies
    has_values = False  # whether V(s) is among the values that are learned
    values_are_returns = True  # whether values, if any, estimate returns of the log
    needs_critic = False
    reads_returns = False  # whether conversations begin with their return as text (data.dialogue_text.ReturnPrefix)
    data_parallel = True  # whether `train` sums losses and gradients over the processes of a run
    shardable = False
    stop_requested = False  # set by a callback between iterations to prevent the next one

    def __init__(
        self,
        policy: Any,
        env: VecEnv,
        log: ConversationLog,
        learning_rate: LearningRate | Schedule | RateSettings = 1e-4,
        n_steps: Count = 65_536,
        batch_size: Count = 2048,
        micro_batch_size: Count | None = None,
        split_by_length: bool = True,
        gamma: Fraction = 0.99,
        discount_per: Literal["token", "turn"] = "token",
        max_grad_norm: Positive = 1.0,
        policy_kwargs: dict[str, Any] | None = None,
        seed: int | None = None,
        device: str = "auto",
        stats_window_size: int = 100,
        verbose: int = 0,
    ) -> None:
        rate = as_schedule(learning_rate, "learning_rate")
        super().__init__(policy, env, rate, policy_kwargs, stats_window_size, verbose=verbose, device=device, seed=seed)
        self.log, self.n_steps, self.batch_size = log, n_steps, batch_size
        self.micro_batch_size, self.split_by_length = micro_batch_size, split_by_length
        self.gamma, self.max_grad_norm = gamma, max_grad_norm
        self.per_turn = bool(getattr(policy, "reranked", False))  # whether actions are whole turns instead of tokens
        self.discount_per = "turn" if self.per_turn else discount_per
        self.step_guard = StepGuard()
        self.kept = self.select(log)
        self.sampler = OfflineSampler(log.n_tokens[self.kept], batch_size, seed or 0)
        self._batches: list[np.ndarray] = []
        self._return_bounds = (-math.inf, -math.inf)  # of an iteration: minus the lowest return to go, and the highest
        self._setup_model()

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        """Check constraints on config arguments beyond their types."""
        as_schedule(args.get("learning_rate"), "learning_rate")

    @classmethod
    def check_returns(cls, returns: np.ndarray, args: Mapping[str, Any]) -> None:
        """Check arguments, with defaults filled in, that depend on the returns (n,) of the conversations."""

    @classmethod
    def policy_arguments(cls) -> dict[str, Any]:
        """Arguments of the policy that the algorithm sets; a plain language model has no critic and no reference."""
        return {"critic": "none", "reference": "none"} if cls.policy_kinds == ("plain",) else {}

    def select(self, log: ConversationLog) -> np.ndarray:
        """Indices of the conversations to learn from; by default all. Shape (n,)."""
        return np.arange(len(log))

    def _setup_model(self) -> None:
        """Build the policy. All processes start with the main process's weights."""
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.policy = self.policy_class(
            self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs
        ).to(self.device)
        distributed.broadcast([*self.policy.parameters(), *self.policy.buffers()])

    @property
    def iteration(self) -> int:
        """Number of iterations that have begun."""
        return self.num_timesteps // self.timesteps_per_iteration

    @property
    def timesteps_per_iteration(self) -> int:
        """Agent tokens that an iteration counts as."""
        return self.n_steps

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "offline",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train on ``total_timesteps`` agent tokens of the log, in iterations of ``n_steps``."""
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callback.on_training_start(locals(), globals())
        while self.num_timesteps < total_timesteps:
            callback.on_rollout_start()
            if distributed.all_reduce_max(int(self.stop_requested)):
                self.stop_requested = False
                break
            self._draw_batches()
            self.num_timesteps += self.n_steps
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            callback.update_locals(locals())
            callback.on_rollout_end()
            self.step_guard.begin_iteration(self.iteration)
            self.train(callback)
        callback.on_training_end()
        return self

    def _draw_batches(self) -> None:
        """Draw the minibatches of an iteration, and log them under ``rollout/``."""
        self._batches, n_tokens = [], 0
        while n_tokens < self.n_steps:
            numbers = self.kept[self.sampler.next()]
            if len(numbers) < (n := distributed.n_processes()):
                what = f"a minibatch has only {len(numbers)} conversations for {n} processes"
                raise ConfigError(f"{what}; raise alg.args.batch_size")
            self._batches.append(numbers)
            n_tokens += int(self.log.n_tokens[numbers].sum())
        returns = self.log.returns[np.concatenate(self._batches)]
        self.logger.record("rollout/tokens", n_tokens)
        self.logger.record("rollout/n_conversations", len(returns))
        self.logger.record("rollout/logged_return", float(returns.mean()))
        self.logger.record("rollout/epoch", self.sampler.epoch)

    def train(self, callback: BaseCallback | None = None) -> None:
        """Take one optimizer step per minibatch of the iteration."""
        policy: Any = self.policy
        policy.set_training_mode(True)
        self._update_learning_rate(policy.optimizer)
        history: dict[str, list[Tensor]] = {}
        self._return_bounds = (-math.inf, -math.inf)
        for numbers in self._batches:
            batch = self.prepared(self.log.replies(numbers[distributed.process_index() :: distributed.n_processes()]))
            weights = batch.flat("loss_weights")
            sizes = distributed.all_reduce_numbers(float(weights.sum()), float(weights[Turns.of(batch).last].sum()))
            policy.optimizer.zero_grad()
            sums: dict[str, Tensor] = {}
            for part in self._parts(batch):
                means = self._means(part, *sizes)
                means["loss"].backward()
                for name, mean in means.items():
                    sums[name] = sums[name] + mean.detach() if name in sums else mean.detach()
            for name, value in zip(sums, distributed.all_reduce(torch.stack(list(sums.values()))), strict=True):
                history.setdefault(name, []).append(value)
            history.setdefault("grad_norm", []).append(self.step_guard.step(policy, self.max_grad_norm))
            self._after_step()
            self._n_updates += 1
            if callback is not None:
                callback.on_step()
        stacked = {name: torch.stack(logged) for name, logged in history.items()}
        of_iteration = {name: values[values.isfinite()].mean().item() for name, values in stacked.items()}
        for name, number in self._logged(of_iteration).items():
            self.logger.record(f"train/{name}", number)
        low, high = distributed.all_reduce_max_numbers(*self._return_bounds)
        self.logger.record("train/lowest_return", -low)
        self.logger.record("train/highest_return", high)
        self.logger.record("train/skipped_steps", self.step_guard.n_skipped)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self._batches = []
        return_unused_memory()

    def prepared(self, batch: Replies) -> Replies:
        """Add the numbers that need whole conversations to a minibatch, and move it to the device.

        ``returns`` are those to go from each token, as logged: nothing is added after the end of a conversation that
        was cut.
        """
        discounts = self.discounts(batch).numpy()
        returns = returns_to_go(batch.flat("rewards").numpy(), discounts, batch.token_episodes())
        batch.returns = batch.scattered(returns)
        low, high = self._return_bounds
        self._return_bounds = max(low, -float(returns.min())), max(high, float(returns.max()))
        return batch.to(self.device)

    def discounts(self, batch: Replies) -> Tensor:
        """Discount of the step after each agent token. Shape (N,)."""
        if self.discount_per == "token":
            return torch.full((batch.n_tokens,), self.gamma, device=batch.prompt_ids.device)
        return step_discounts(batch.token_replies(), self.gamma)

    def _parts(self, batch: Replies) -> list[Replies]:
        """Micro-batches. The rows of a conversation stay together, because states continue from one to the next."""
        episodes, size = batch.row_episodes(), self.micro_batch_size
        n_episodes = int(episodes.max()) + 1
        fixed_cost = FIXED_COST.get(self.device.type) if self.split_by_length else None
        if n_episodes == len(batch):
            return list(batch.split(size, fixed_cost))
        if fixed_cost is None:
            groups = [group.numpy() for group in torch.arange(n_episodes).split(size or n_episodes)]
        else:
            lengths = np.zeros(n_episodes, dtype=np.int64)
            np.maximum.at(lengths, episodes, (batch.prompt_mask.sum(dim=1) + batch.token_mask.sum(dim=1)).cpu().numpy())
            groups = length_groups(lengths, fixed_cost, size)
        rows = (torch.as_tensor(np.flatnonzero(np.isin(episodes, group))) for group in groups)
        return [batch[of_group.to(batch.prompt_ids.device)] for of_group in rows]

    def _logged(self, means: dict[str, float]) -> dict[str, float]:
        """Values to log under ``train/``, from the means of an iteration's terms."""
        return means

    def _after_step(self) -> None:
        """Act after an optimizer step."""

    def _means(self, batch: Replies, n_tokens: float, n_turns: float) -> dict[str, Tensor]:
        """Share of a micro-batch in the means of all terms and the ``loss`` over the minibatch's tokens and turns."""
        return weighted_means(self._terms(batch), batch.flat("loss_weights"), n_tokens)

    @abstractmethod
    def _terms(self, batch: Replies) -> dict[str, Tensor]:
        """The loss and its terms per agent token, each of shape (N,). All are logged as ``train/...``.

        The batch has whole conversations, with ``rewards``, ``returns``, ``turn`` and ``episode``. Tokens whose
        ``loss_weights`` is 0 count in no mean.
        """

    def imitation_loss(self, batch: Replies) -> Tensor:
        """-log pi(a|s) of the logged tokens under the language model, at temperature 1. Shape (N,)."""
        policy: Any = self.policy
        return -token_log_probs(policy.model_logits(policy._policy_hidden(batch)), batch.flat("response_ids"))

    def training_state(self) -> dict[str, Any]:
        """State of the algorithm besides weights, optimizer and counters, as JSON values."""
        return {"sampler": self.sampler.state_dict()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`training_state`."""
        self.sampler.load_state_dict(state["sampler"])

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "log"]


def weighted_means(terms: Mapping[str, Tensor], weights: Tensor, n: float) -> dict[str, Tensor]:
    """Sum of each term with weights, divided by ``n``. Terms and weights have the shape (n',), results are numbers."""
    return {name: (weights * values).sum() / n for name, values in terms.items()}
