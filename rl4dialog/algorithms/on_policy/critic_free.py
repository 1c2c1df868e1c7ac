"""REINFORCE, RLOO and GRPO, whose baselines need no critic: means of rewards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from rl4dialog.algorithms.on_policy.clipped import ClippedSurrogate
from rl4dialog.core.arguments import Count, Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.advantages import group_advantages, leave_one_out_advantages
from rl4dialog.functional.distributed import all_reduce_numbers
from rl4dialog.functional.log_probs import kl_estimates
from rl4dialog.functional.losses import ClipRange
from rl4dialog.functional.replies import ReplySamples
from rl4dialog.functional.rounding import log_probs_differ
from rl4dialog.rollouts.buffer import BaselineRolloutBuffer, EpisodeCredit, GroupRolloutBuffer, RewardBaseline
from rl4dialog.rollouts.conversations import ConstantGroups

# Arguments of stable-baselines3's PPO and of all algorithms on text that only those with a critic read.
_OF_CRITIC = ("vf_coef", "clip_range_vf")
_OF_VALUES = ("gamma", "gae_lambda", "turn_gae_lambda")
KLIn = Literal["reward", "loss"]
KLEstimator = Literal["k1", "k2", "k3"]


class CriticFree(ClippedSurrogate):
    """Base of REINFORCE, RLOO and GRPO: PPO's clipped surrogate, with advantages from rewards alone.

    With ``kl_in: reward``, the penalty of each token is its log ratio to the reference (k1). With ``kl_in: loss``, the
    estimate is a term of the loss, weighted by the KL controller's coefficient. As a loss term, k1 has an expected
    gradient of 0, while k2 has the gradient of the KL.

    Args:
        credit: What a token is paid: the total reward of its ``conversation``; the rewards from its ``turn`` on, minus
            its own KL penalty; or the rewards from the ``token`` on. ``turn`` and ``token`` are compared with the same
            turn of other conversations.
        turn_gamma: Discount factor of rewards from one turn to the next, which needs another ``credit`` than
            ``conversation``. ``null`` is 1.
        kl_in: Where the KL penalty is applied: ``reward`` or ``loss``.
        kl_estimator: KL estimator for ``kl_in: loss``: ``k1``, ``k2`` or ``k3``.
        kwargs: Keyword arguments of :class:`ClippedSurrogate`, except ``vf_coef``, ``clip_range_vf``, and those of
            values.
    """

    needs_critic = False
    no_meaning: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(_OF_CRITIC, "has no critic"),
        **dict.fromkeys(_OF_VALUES, "adds up rewards without values or discounts by token"),
    }

    def __init__(
        self,
        *args: Any,
        credit: EpisodeCredit = "conversation",
        kl_in: KLIn = "reward",
        kl_estimator: KLEstimator = "k1",
        normalize_advantage: bool = False,
        **kwargs: Any,
    ) -> None:
        self.credit, self.kl_in, self.kl_estimator = credit, kl_in, kl_estimator
        super().__init__(*args, normalize_advantage=normalize_advantage, **kwargs)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any], n_envs: int) -> None:
        super().check_arguments(args, n_envs)
        if args.get("turn_gamma") is not None and args.get("credit", "conversation") == "conversation":
            raise ConfigError("alg.args.turn_gamma has no effect with alg.args.credit: conversation; set credit: turn")

    def _buffer_kwargs(self) -> dict[str, Any]:
        return {"credit": self.credit, "turn_gamma": self._credit["turn_gamma"]}

    def _reward_kl_coeff(self) -> float:
        return self.kl_controller.coeff if self.kl_in == "reward" else 0.0

    def _terms(self, batch: ReplySamples, clip: ClipRange) -> dict[str, torch.Tensor]:
        _, log_prob, entropy = self.policy.evaluate_actions(batch.observations, batch.actions)
        assert entropy is not None
        # PPO's clipped surrogate with group advantages (Shao et al. 2024, arXiv 2402.03300). In the first
        # step the ratio is 1, so its gradient is that of REINFORCE (RLOO; Ahmadian et al. 2024, arXiv 2402.14740).
        terms = self._policy_terms(log_prob, entropy, batch, clip)
        # The KL is a term of the loss (Shao et al. 2024, with k3) unless it is part of the reward.
        if self.kl_in == "loss":
            kl = kl_estimates(log_prob, batch.ref_log_prob, self.kl_estimator)
            terms["kl_loss"] = batch.loss_weights * kl
            # If policy and reference agree, the gradient is only rounding, which Adam would scale to a full step.
            differ = log_probs_differ(log_prob, batch.ref_log_prob, self.policy.precision)  # type: ignore[arg-type]
            terms["loss"] = terms["loss"] + self.kl_controller.coeff * differ * terms["kl_loss"]
        return terms


class Reinforce(CriticFree):
    """REINFORCE: an advantage is a reward minus a baseline without critic and groups.

    With ``n_epochs: 1`` and one minibatch, the gradient is that of REINFORCE. Further updates are clipped as in PPO.

    Args:
        baseline: ``none``; ``batch``: rewards are whitened over the iteration (REINFORCE++, arXiv 2501.03262);
            ``running``: mean of earlier iterations; ``prompt``: mean of the prompt in earlier iterations, which needs
            prompts that come back, and advantages are whitened (SPO, arXiv 2509.13232).
        kl_half_life: For ``running`` and ``prompt``: past rewards count half when the policy has moved so far, in nats
            per token. ``null`` is 0.06.
    """

    buffer_class = BaselineRolloutBuffer

    def __init__(
        self, *args: Any, baseline: RewardBaseline = "batch", kl_half_life: Positive | None = None, **kwargs: Any
    ) -> None:
        self.baseline, self.kl_half_life = baseline, kl_half_life or 0.06
        super().__init__(*args, **kwargs)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any], n_envs: int) -> None:
        super().check_arguments(args, n_envs)
        baseline = args.get("baseline", "batch")
        if args.get("kl_half_life") is not None and baseline not in ("running", "prompt"):
            raise ConfigError(f"alg.args.kl_half_life has no effect with alg.args.baseline: {baseline}; remove it")

    def _buffer_kwargs(self) -> dict[str, Any]:
        return {**super()._buffer_kwargs(), "baseline": self.baseline, "half_life": self.kl_half_life}

    def train(self) -> None:
        """Update the policy and, for means of earlier iterations, measure how far it has moved."""
        super().train()
        buffer: Any = self.rollout_buffer
        if buffer.means.means:
            # KL(rollout policy || policy) by the k3 estimate, on the tokens of the rollout.
            total, n_tokens = 0.0, buffer.replies.n_tokens
            for part, weight in self._parts(ReplySamples(buffer.replies)):
                replies = part.to(self.device).replies
                log_ratio = (self.policy.sequence_log_probs(replies) - replies.log_probs)[replies.response_mask]  # type: ignore[operator]
                total += weight * float((log_ratio.exp() - 1 - log_ratio).sum())
            total, n_tokens = all_reduce_numbers(total, n_tokens)
            buffer.means.moved += min(total / n_tokens, 1e6)


class GroupBased(CriticFree):
    """Base of RLOO and GRPO, whose minibatches never split the replies to a prompt.

    Args:
        n_generations: Number of replies to each prompt; must divide the number of environments.
        constant_groups: Groups whose replies all have the same task reward, which gives no advantage: ``keep``,
            ``drop`` them, or ``resample``: collect other groups instead, until there are ``n_steps`` tokens per
            environment without them (DAPO). If all groups are constant, they are kept. With another ``credit`` than
            ``conversation``, they may teach where the same reward came at different turns.
        max_resampling: ``resample`` ends, with a warning, when constant groups hold this many times the tokens of an
            iteration. ``null`` is 3.
    """

    buffer_class = GroupRolloutBuffer

    def __init__(
        self,
        *args: Any,
        n_generations: Annotated[int, Field(ge=2)] = 4,
        constant_groups: ConstantGroups = "keep",
        max_resampling: Count | None = None,
        **kwargs: Any,
    ) -> None:
        self.group_size, self.constant_groups = n_generations, constant_groups
        self.max_resampling = 3 if max_resampling is None else max_resampling
        super().__init__(*args, **kwargs)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any], n_envs: int) -> None:
        super().check_arguments(args, n_envs)
        if n_envs % (n := args.get("n_generations", 4)):
            raise ConfigError(f"alg.args.n_generations is {n}, which does not divide env.n_envs = {n_envs}")
        if args.get("max_resampling") is not None and args.get("constant_groups") != "resample":
            raise ConfigError("alg.args.max_resampling has no effect without alg.args.constant_groups: resample")

    @abstractmethod
    def _buffer_kwargs(self) -> dict[str, Any]:
        """How a group's returns become advantages."""
        return super()._buffer_kwargs()


class RLOO(GroupBased):
    """RLOO: the advantage of a reply is its reward minus the mean of the other replies to the same prompt.

    With ``n_epochs: 1`` and one minibatch, the gradient is that of REINFORCE. Further updates are clipped as in PPO.
    """

    def _buffer_kwargs(self) -> dict[str, Any]:
        return {**super()._buffer_kwargs(), "advantages_of": leave_one_out_advantages}


class GRPO(GroupBased):
    """GRPO: the advantage of a reply is its reward, normalized over the replies to the same prompt.

    Losses are averaged over the agent tokens of a minibatch by default, as in all algorithms here. The paper first
    averages over each reply (``loss_aggregation: sequence_mean``).

    Args:
        scale_rewards: Divide by the standard deviation of the rewards of the ``group`` (``true``), of all replies of
            the iteration (``batch``; Liu et al. 2025, arXiv 2508.08221), or not at all (``none`` or ``false``).
        kl_in: Where the KL penalty is applied: ``reward`` or ``loss``. Default: ``loss``, as in the paper.
        kl_estimator: KL estimator for ``kl_in: loss``: ``k1``, ``k2`` or ``k3``. Default: ``k3``, as in the paper.
    """

    def __init__(
        self,
        *args: Any,
        scale_rewards: Literal["group", "batch", "none"] | bool = "group",
        kl_in: KLIn = "loss",
        kl_estimator: KLEstimator = "k3",
        **kwargs: Any,
    ) -> None:
        if isinstance(scale_rewards, bool):
            scale_rewards = "group" if scale_rewards else "none"
        self.scale_rewards = scale_rewards
        super().__init__(*args, kl_in=kl_in, kl_estimator=kl_estimator, **kwargs)

    def _buffer_kwargs(self) -> dict[str, Any]:
        advantages_of = partial(group_advantages, scale=self.scale_rewards == "group")
        return {**super()._buffer_kwargs(), "advantages_of": advantages_of, "scale": self.scale_rewards}
