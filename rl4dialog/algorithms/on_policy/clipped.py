"""The clipped surrogate of PPO on minibatches of whole replies, for algorithms with a critic and without."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import stable_baselines3
import torch
from pydantic import Field
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import FloatSchedule

from rl4dialog.algorithms.on_policy.rollout_mixin import LMRolloutMixin
from rl4dialog.algorithms.schedules import ScheduleSettings, as_schedule
from rl4dialog.core.arguments import Count, NonNegative, Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.distributed import all_reduce, all_reduce_max, all_reduce_numbers, n_processes
from rl4dialog.functional.log_probs import BeyondCap, Correction, effective_share, sampler_weights
from rl4dialog.functional.losses import (
    ClipRange,
    LossAggregation,
    aggregation_weights,
    clipped_surrogate,
    clipped_weight_surrogate,
    sequence_log_ratio,
)
from rl4dialog.functional.masks import FIXED_COST, whiten
from rl4dialog.functional.replies import Replies, ReplySamples

SUPERVISED_BATCH_SIZE = 8


class ClippedSurrogate(LMRolloutMixin, stable_baselines3.PPO):  # type: ignore[misc]
    """The policy's update of stable-baselines3's PPO on minibatches of whole replies, with gradient accumulation.

    ``batch_size`` and ``n_steps`` are counted in agent tokens. Details are numbered as in Huang et al. 2022, "The 37
    Implementation Details of Proximal Policy Optimization"
    (https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details).

    Args:
        micro_batch_size: Rows per forward and backward pass: replies, or conversations with ``join_turns``. Gradients
            are accumulated over the minibatch. ``None`` leaves the size to ``split_by_length``.
        split_by_length: Split a minibatch by row length where this saves more padding than an additional pass costs.
            The gradient is the same up to rounding.
        clip_range_high: Clipping range of the ratio above 1, if it is larger than the one below (DAPO). By default both
            are ``clip_range``.
        dual_clip: Limit of the loss of a token with a negative advantage, as a multiple of the advantage. Without it,
            the loss grows with the ratio: one sampled token that was unlikely can decide an update (Ye et al. 2020,
            arXiv 1912.09729). 3 is usual.
        ratio: Ratio of new to old probability: of each ``token``, or one for all tokens of a reply, normalized by its
            length (``sequence``, GSPO). In a conversation, each turn has its own.
        surrogate: ``clip`` for PPO's clipped surrogate, or ``cispo`` for clipped importance weights, which keep the
            gradient of every token.
        loss_aggregation: ``token_mean`` averages the policy's loss over the agent tokens of a minibatch,
            ``sequence_mean`` first over each reply (GRPO), and ``constant`` divides the sum by the number of replies
            times their maximum length (Dr. GRPO). Value loss and logged statistics are always means over tokens.
        mask_truncated: Leave replies that were cut at the length limit out of the policy's loss (DAPO). The critic, the
            normalization of advantages, and reward statistics still include them.
        importance_correction: Weight the policy's loss by the probability of a ``token``, or of a whole reply
            (``sequence``), under the policy divided by that under the sampler. For samplers with filters such as
            ``top_k``, and for vLLM.
        correction_cap: Limit of these weights.
        correction_mode: ``truncate`` weights at the limit (TIS), or ``mask`` tokens or replies with weights outside of
            [1 / limit, limit] (IcePop).
        supervised_coef: Weight of the supervised loss of random references in each update (PPO-ptx; Ouyang et al. 2022,
            arXiv 2203.02155).
        supervised_batch_size: Number of references per update. ``null`` is 8.
        supervised_loss: Computes this loss, from the policy and the number of references.
    """

    data_parallel = shardable = True

    def __init__(
        self,
        *args: Any,
        micro_batch_size: Count | None = None,
        split_by_length: bool = True,
        clip_range_high: Positive | Schedule | ScheduleSettings | None = None,
        dual_clip: Annotated[float, Field(gt=1)] | None = None,
        ratio: Literal["token", "sequence"] = "token",
        surrogate: Literal["clip", "cispo"] = "clip",
        loss_aggregation: LossAggregation = "token_mean",
        mask_truncated: bool = False,
        importance_correction: Correction = "none",
        correction_cap: Annotated[float, Field(ge=1)] = 2.0,
        correction_mode: BeyondCap = "truncate",
        supervised_coef: NonNegative = 0.0,
        supervised_batch_size: Count | None = None,
        supervised_loss: Callable[[Any, int], torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        self.micro_batch_size, self.split_by_length = micro_batch_size, split_by_length
        self.clip_range_high = as_schedule(clip_range_high, "clip_range_high")
        self.dual_clip, self.ratio, self.surrogate = dual_clip, ratio, surrogate
        self.loss_aggregation, self.mask_truncated = loss_aggregation, mask_truncated
        self.importance_correction = importance_correction
        self.correction_cap, self.correction_mode = correction_cap, correction_mode
        self.supervised_coef, self._supervised_loss = supervised_coef, supervised_loss
        self.supervised_batch_size = supervised_batch_size or SUPERVISED_BATCH_SIZE
        with warnings.catch_warnings():
            # The parent warns about a small last minibatch, but minibatches have similar sizes here.
            warnings.filterwarnings("ignore", message="You have specified a mini-batch size")
            super().__init__(*args, **kwargs)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any], n_envs: int) -> None:
        super().check_arguments(args, n_envs)
        if args.get("clip_range_high") is not None:
            names = {"clip_range": 0.2, "clip_range_high": None}
            low, high = (FloatSchedule(as_schedule(args.get(name, default), name)) for name, default in names.items())
            for percent in range(101):
                if high(percent / 100) < low(percent / 100):
                    raise ConfigError(
                        f"alg.args.clip_range_high is {high(percent / 100):g}, below alg.args.clip_range = "
                        f"{low(percent / 100):g}; it is the range above a ratio of 1, which may only be wider"
                    )
        if args.get("dual_clip") is not None and (surrogate := args.get("surrogate", "clip")) != "clip":
            other = f"alg.args.surrogate: {surrogate}"
            raise ConfigError(f"alg.args.dual_clip has no effect with {other}; remove one of them")
        for name in ("correction_cap", "correction_mode"):
            if name in args and args.get("importance_correction", "none") == "none":
                raise ConfigError(f"alg.args.{name} has no effect without alg.args.importance_correction")
        if args.get("supervised_batch_size") is not None and not args.get("supervised_coef"):
            raise ConfigError("alg.args.supervised_batch_size has no effect without alg.args.supervised_coef")

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.clip_range_high is not None:
            self.clip_range_high = FloatSchedule(self.clip_range_high)

    def train(self) -> None:
        """Update the policy on the collected rollout, and with :meth:`_terms` what learns with it."""
        self.policy.set_training_mode(True)
        # Learning-rate annealing (detail 4); the clip ranges have schedules too.
        self._update_learning_rate(self.policy.optimizer)
        schedules: list[Any] = [self.clip_range, self.clip_range_high or self.clip_range]
        clip = ClipRange(*(each(self._current_progress_remaining) for each in schedules))
        self._weigh_replies()
        before = self._weights_before()

        # Keep tensors and read them at the end, because each read synchronizes with the GPU.
        history: dict[str, list[torch.Tensor]] = {}
        stopped_early = False
        # Minibatch updates (detail 6): each epoch shuffles the replies and uses every one exactly once.
        for _ in range(self.n_epochs):
            history["approx_kl"] = []
            for batch in self.rollout_buffer.minibatches(self.batch_size):  # type: ignore[attr-defined]
                # Advantage normalization (detail 7) over the whole minibatch, before it is split into micro-batches.
                advantages = whiten(batch.advantages) if self.normalize_advantage else batch.advantages
                batch = batch.with_numbers(advantages=advantages, loss_weights=self._loss_weights(batch))

                self.policy.optimizer.zero_grad()
                sums = self._supervised_gradient()
                sums |= self._gradient(batch, lambda part: self._terms(part, clip))
                sums = dict(zip(sums, all_reduce(torch.stack(list(sums.values()))), strict=True))
                for name, value in sums.items():
                    history.setdefault(name, []).append(value)
                history.setdefault("first_approx_kl", [sums["approx_kl"]])  # before the first step, so the ratio is 1

                # Early stopping on the approximate KL, before a step is taken; the factor 1.5 is stable-baselines3's
                # (https://github.com/DLR-RM/stable-baselines3/issues/417).
                if self.target_kl is not None and sums["approx_kl"] > 1.5 * self.target_kl:
                    stopped_early = True
                    break

                if self.is_critic_warmup:
                    self._keep_policy()
                # Global gradient clipping (detail 11).
                history.setdefault("grad_norm", []).append(self.step_guard.step(self.policy, self.max_grad_norm))
            self._n_updates += 1
            if stopped_early:
                break

        # A look after the last step, which the early stopping cannot take.
        self._limit_step(before)
        self._end_update()
        self._record(history, clip)

    def _keep_policy(self) -> None:
        """Drop the policy's gradients: parameters without one keep their optimizer state, too."""
        for parameter in self.policy.actor_parameters():  # type: ignore[operator]
            parameter.grad = None

    def _gradient(
        self, batch: ReplySamples, terms_of: Callable[[ReplySamples], dict[str, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        """Accumulate the gradient of the mean loss over all processes; returns this one's part of each mean."""
        (n_tokens,) = all_reduce_numbers(batch.replies.n_tokens)
        sums: dict[str, torch.Tensor] = {}
        for part, weight in self._parts(batch):
            terms = terms_of(part.to(self.device))
            n = n_tokens / weight if weight else math.inf
            (terms["loss"].sum() / n).backward()
            means = torch.stack([values.detach().sum() for values in terms.values()]) / n
            for name, mean in zip(terms, means.unbind(), strict=True):
                sums[name] = sums[name] + mean if name in sums else mean
        return sums

    @abstractmethod
    def _terms(self, batch: ReplySamples, clip: ClipRange) -> dict[str, torch.Tensor]:
        """The loss and its terms per agent token, each of shape (N,). All are logged as ``train/...``."""

    def _record(self, history: dict[str, list[torch.Tensor]], clip: ClipRange) -> None:
        """Log the debug variables of an update (detail 12)."""
        together = torch.stack([value for values in history.values() for value in values]).cpu()
        for name, values in zip(history, together.split([*map(len, history.values())]), strict=True):
            # Skipped minibatches are counted, but not averaged.
            self.logger.record(f"train/{name}", values[values.isfinite()].mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", clip.low)
        if self.clip_range_high is not None:
            self.logger.record("train/clip_range_high", clip.high)

    def _parts(self, batch: ReplySamples) -> list[tuple[ReplySamples, float]]:
        """Micro-batches and their weights. In lockstep, padded with zero weights to the maximum over all processes."""
        lockstep = self.policy.lockstep
        by_length = self.split_by_length and not lockstep
        parts = list(batch.split(self.micro_batch_size, FIXED_COST.get(self.device.type) if by_length else None))
        n_missing = all_reduce_max(len(parts)) - len(parts) if lockstep else 0
        return [(part, 1.0) for part in parts] + [(parts[-1], 0.0)] * n_missing

    def _supervised_gradient(self) -> dict[str, torch.Tensor]:
        """Accumulate the gradient of the supervised loss, if any, and return this process's part of its mean."""
        if not self.supervised_coef or self._supervised_loss is None or self.is_critic_warmup:
            return {}
        policy: Any = self.policy
        loss = policy.compute(self._supervised_loss, self.supervised_batch_size) / n_processes()
        (self.supervised_coef * loss).backward()
        return {"supervised_loss": loss.detach()}

    def _loss_weights(self, batch: Any) -> torch.Tensor:
        """Weights of the tokens of a minibatch in the policy's loss, relative to a mean over all tokens. Shape (N,)."""
        replies: Replies = batch.replies
        weights = torch.ones_like(batch.old_log_prob)
        if self.mask_truncated or self.loss_aggregation != "token_mean":  # otherwise avoid a synchronization
            trained = replies.flat("cut") == 0 if self.mask_truncated else weights.bool()
            longest = self.policy.reply_limit()  # type: ignore[operator]
            weights = aggregation_weights(replies.token_replies(), trained, self.loss_aggregation, longest)
        return weights if replies.importance_weights is None else weights * replies.flat("importance_weights")

    def _weigh_replies(self) -> None:
        """Add the weights that correct for the sampler to the rollout, if any, and log them."""
        if self.importance_correction == "none":
            return
        replies: Replies = self.rollout_buffer.replies  # type: ignore[attr-defined]
        if replies.sampler_log_probs is None:
            needs = "the log-probabilities of the sampler, which the generation backend does not return"
            raise ConfigError(f"alg.args.importance_correction needs {needs}; remove it, or use another backend")
        log_ratio, of_token = replies.flat("log_probs") - replies.flat("sampler_log_probs"), replies.token_replies()
        limits = self.correction_cap, self.correction_mode
        weights, limited = sampler_weights(log_ratio, of_token, self.importance_correction, *limits)
        sums = float(weights.sum()), float(weights.square().sum()), float(limited.sum()), len(weights)
        total, squares, n_limited, n = all_reduce_numbers(*sums)
        self.logger.record("train/importance_weight", total / n)
        self.logger.record("train/importance_limited", n_limited / n)
        self.logger.record("train/effective_share", effective_share(total, squares, n))
        of_tokens = weights if self.importance_correction == "token" else weights[of_token]
        replies.importance_weights = replies.scattered(of_tokens)

    def _policy_terms(
        self, log_prob: torch.Tensor, entropy: torch.Tensor, batch: ReplySamples, clip: ClipRange
    ) -> dict[str, torch.Tensor]:
        """The terms of the policy, without those of a critic."""
        # Ratio between new and old policy; 1 at the first update after a rollout.
        log_ratio = log_prob - batch.old_log_prob
        with torch.no_grad():
            # Approximate KL(old || new): the k3 estimate (Schulman 2020, http://joschu.net/blog/kl-approx.html).
            approx_kl = (log_ratio.exp() - 1) - log_ratio
        if self.ratio == "sequence":
            log_ratio = sequence_log_ratio(log_ratio, batch.replies.token_replies())
        ratio = log_ratio.exp()
        with torch.no_grad():
            clip_fraction = ((ratio - 1 > clip.high) | (1 - ratio > clip.low)).float()
        # Surrogate objective (detail 8), and the entropy bonus (detail 10).
        surrogate = self._surrogate(ratio, log_prob, batch.advantages, clip)
        surrogate, entropy_loss = batch.loss_weights * surrogate, batch.loss_weights * -entropy
        return {
            "policy_gradient_loss": surrogate,
            "entropy_loss": entropy_loss,
            "approx_kl": approx_kl,
            "clip_fraction": clip_fraction,
            # Omit the term if possible: its backward pass runs over the whole vocabulary.
            "loss": surrogate + self.ent_coef * entropy_loss if self.ent_coef else surrogate,
        }

    def _surrogate(
        self, ratio: torch.Tensor, log_prob: torch.Tensor, advantages: torch.Tensor, clip: ClipRange
    ) -> torch.Tensor:
        """The loss of every agent token, before weights and entropy. Shape (n_tokens,)."""
        if self.surrogate == "clip":
            return clipped_surrogate(ratio, advantages, clip, self.dual_clip)
        return clipped_weight_surrogate(ratio, log_prob, advantages, clip)
