"""A policy as other packages' ``train()`` sees it in one of several processes."""

from __future__ import annotations

from copy import copy
from typing import Any

from stable_baselines3.common.distributions import CategoricalDistribution
from torch import Tensor
from torch.distributions import Categorical, kl_divergence, register_kl

from rl4dialog.functional.distributed import gathered
from rl4dialog.policies.base import EvaluatedActions, LMActorCriticPolicy, Obs


class GatheredPolicy:
    """A policy whose numbers are those of the tokens of all processes. Only this process's own have a gradient.

    So losses, decisions and logs are those of one process, and the gradients of all processes sum to its gradient.
    """

    def __init__(self, policy: LMActorCriticPolicy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def evaluate_actions(self, obs: Obs, actions: Tensor) -> EvaluatedActions:
        return EvaluatedActions(*map(gathered, self._policy.evaluate_actions(obs, actions)))

    def predict_values(self, obs: Obs) -> Tensor:
        return gathered(self._policy.predict_values(obs))

    def get_distribution(self, obs: Obs) -> CategoricalDistribution:
        found = self._policy.get_distribution(obs)
        found.distribution = _as(_Gathered, found.distribution)
        return found


class _Gathered(Categorical):
    def log_prob(self, value: Tensor) -> Tensor:
        return gathered(super().log_prob(value))


@register_kl(_Gathered, _Gathered)
def _kl(first: _Gathered, second: _Gathered) -> Tensor:
    return gathered(kl_divergence(_as(Categorical, first), _as(Categorical, second)))


def _as(kind: type[Categorical], distribution: Any) -> Categorical:
    """The same distribution, without a copy of its tensors, which have the size of the vocabulary."""
    found = copy(distribution)
    found.__class__ = kind
    return found
