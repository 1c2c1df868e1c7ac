"""What all language-model actor-critic policies share: three models, their parameters, and stable-baselines3's API.

A policy holds the *policy* (the language model being trained), the *critic* (value of a state, per token) and the
*reference* (a frozen copy of the policy as it was at the start, for the KL penalty). Subclasses know the architecture.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import CategoricalDistribution
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.policies.generation import GenerationSettings, Utterances
from rl4dialog.text.end_of_turn import EndOfTurn

PADDING_ACTION = -1


@dataclass
class SequenceBatch:
    """Whole replies after their prompts.

    Attributes:
        prompt_ids: Padded on the left. Shape (B, P).
        prompt_mask: True at real tokens. Shape (B, P).
        response_ids: Padded on the right. Shape (B, T).
        response_mask: True at the agent's tokens. Shape (B, T).
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    response_ids: Tensor
    response_mask: Tensor


class LMActorCriticPolicy(BasePolicy):
    """Base of the policies.

    Args:
        observation_space: That of :class:`~rl4dialog.envs.text_generation.TextGenEnv`, or of its utterance view.
        action_space: Likewise.
        lr_schedule: Learning rate as a function of the remaining progress.
        model: The language model.
        end_of_turn: Where replies end.
        critic: ``separate`` for a value model of its own (a copy of the language model's trunk with a linear head), or
            ``shared`` for a linear head on the policy's trunk.
        generation_kwargs: How rollouts are sampled; see :class:`GenerationSettings`.
        optimizer_class: Optimizer of policy and critic together.
        optimizer_kwargs: Its arguments. Adam's ``eps`` is 1e-5 unless given here, as in stable-baselines3.
        weight_decay: Shorthand for ``optimizer_kwargs["weight_decay"]``.
        use_sde: Part of stable-baselines3's call; tokens are discrete, so it must be False.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Callable[[float], float],
        model: PreTrainedModel,
        end_of_turn: EndOfTurn,
        critic: str = "separate",
        generation_kwargs: dict[str, Any] | None = None,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        weight_decay: float | None = None,
        use_sde: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space)
        if critic not in ("separate", "shared"):
            raise ConfigError(f"critic must be 'separate' or 'shared', not {critic!r}")
        if use_sde:
            raise ConfigError("use_sde is for continuous actions; tokens are discrete")
        self.critic_kind = critic
        self.end_of_turn = end_of_turn
        self.settings = GenerationSettings.from_kwargs(generation_kwargs)
        self.max_reply_length = int(observation_space["context_ids"].shape[0])  # type: ignore[index]
        self.pad_token_id = int(end_of_turn.tokenizer.pad_token_id)
        self._build_models(model)
        optimizer_kwargs = dict(optimizer_kwargs or {})
        if weight_decay is not None:
            optimizer_kwargs["weight_decay"] = weight_decay
        if optimizer_class in (torch.optim.Adam, torch.optim.AdamW):
            # https://arxiv.org/abs/2403.17031 (detail 8): the approximate KL of the first updates depends on it.
            optimizer_kwargs.setdefault("eps", 1e-5)
        self.optimizer_class, self.optimizer_kwargs = optimizer_class, optimizer_kwargs
        self.optimizer = optimizer_class(
            [*self.actor_parameters(), *self.critic_parameters()],
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **optimizer_kwargs,
        )
        self.train(False)

    # -- models ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def _build_models(self, model: PreTrainedModel) -> None:
        """Create the policy, critic and reference from a language model."""

    @property
    @abstractmethod
    def language_model(self) -> PreTrainedModel:
        """The model being trained."""

    @abstractmethod
    def actor_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that decide what is said. With ``critic_parameters`` they are all that is trained."""

    @abstractmethod
    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that only the value depends on."""

    def get_language_model(self) -> PreTrainedModel:
        """The model being trained, under the name that RL4LMs gives it."""
        return self.language_model

    def train(self, mode: bool = True) -> LMActorCriticPolicy:
        """Stay in evaluation mode: with dropout, old and new log-probabilities of one token would differ."""
        del mode
        return super().train(False)

    # -- whole replies --------------------------------------------------------------------------------------------

    @abstractmethod
    def generate(self, obs: dict[str, Tensor], **generation_kwargs: Any) -> Utterances:
        """Sample one reply per prompt."""

    @abstractmethod
    def evaluate_sequences(self, batch: SequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, values and entropies of the response tokens, each (B, T) and 0 where masked."""

    @abstractmethod
    def predict_sequence_values(self, batch: SequenceBatch) -> Tensor:
        """Value of the state before each response token, 0 where masked. Shape (B, T)."""

    @abstractmethod
    def reference_log_probs(self, batch: SequenceBatch) -> Tensor:
        """Log-probabilities of the response tokens under the frozen reference, 0 where masked. Shape (B, T)."""

    # -- stable-baselines3's token-level API ------------------------------------------------------------------------

    @abstractmethod
    def _logits_and_values(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Logits of the next token divided by the temperature (B, V), and the state's value (B,)."""

    def forward(self, obs: dict[str, Tensor], deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Choose the next token: actions (B,), values (B, 1), log-probabilities (B,)."""
        logits, values = self._logits_and_values(obs)
        distribution = self._distribution(logits)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, values.unsqueeze(1), distribution.log_prob(actions)

    def evaluate_actions(self, obs: dict[str, Tensor], actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values, log-probabilities and entropies of given actions.

        Args:
            obs: Observations.
            actions: One token per observation, shape (B,); or a whole reply per observation, shape (B, T), padded
                with -1.

        Returns:
            Values, log-probabilities and entropies of the N tokens (row by row, padding left out), each (N,).
        """
        if actions.dim() == 2:
            mask = actions != PADDING_ACTION
            batch = SequenceBatch(
                obs["prompt_ids"], obs["prompt_mask"].bool(), actions.masked_fill(~mask, self.pad_token_id), mask
            )
            log_probs, values, entropy = self.evaluate_sequences(batch)
            return values[mask], log_probs[mask], entropy[mask]
        logits, values = self._logits_and_values(obs)
        entropy = self._distribution(logits).entropy()
        assert entropy is not None
        return values, token_log_probs(logits, actions.long()), entropy

    def get_distribution(self, obs: dict[str, Tensor]) -> CategoricalDistribution:
        """Distribution of the next token."""
        return self._distribution(self._logits_and_values(obs)[0])

    def predict_values(self, obs: dict[str, Tensor]) -> Tensor:
        """Value of each state. Shape (B, 1)."""
        return self._logits_and_values(obs)[1].unsqueeze(1)

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        return self.get_distribution(observation).get_actions(deterministic=deterministic)

    @staticmethod
    def _distribution(logits: Tensor) -> CategoricalDistribution:
        return CategoricalDistribution(logits.shape[-1]).proba_distribution(action_logits=logits)
