"""Language models with values that are learned from logged conversations: what guided and reranked policies share.

The language model is the *prior*: it imitates the log. Heads on a second copy of it, or on the prior itself, estimate
values Q of actions and V of states. Slowly moving copies of them (Polyak averages) are the targets of learning, and
guide the prior.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from rl4dialog.core.arguments import Count, Fraction
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.pretrained import GUIDANCE_FILE, VALUES_FILE
from rl4dialog.functional.distributed import copy_all
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.decoding import Obs
from rl4dialog.policies.generation import NOT_IN_CONVERSATIONS, GenerationSettings, SampledTokens, all_steps
from rl4dialog.policies.heads import ValueHead, hidden_size
from rl4dialog.policies.saving import CRITIC_FILE, TARGET_FILE, gathered, loaded_tensors, states_beside

Target = Literal["model", "heads"]
Sample = Callable[[Obs], Replies]  # samples one reply per prompt of observations


class ActionValueHead(nn.Module):
    """Values Q(s, a) of all A actions by one hidden layer, or without ``width`` a linear map; first ``init_value``."""

    def __init__(self, n_hidden: int, n_actions: int, width: int | None, init_value: float) -> None:
        super().__init__()
        self.inner: nn.Module = nn.Identity()
        if width is not None:
            self.inner = nn.Sequential(nn.Linear(n_hidden, width), nn.ReLU())
        self.output = nn.Linear(width or n_hidden, n_actions)
        nn.init.zeros_(self.output.weight)
        nn.init.constant_(self.output.bias, init_value)

    def forward(self, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        """Values of all actions, float32, or of the K actions ``ids``. Shape (N, H) -> (N, A) or (N, K)."""
        inner = self.inner(hidden.float())
        if ids is None:
            return self.output(inner)
        return functional.linear(inner, self.output.weight[ids], self.output.bias[ids])

    def at(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Values of one action per state, without those of the others. Shapes (N, H), (N,) -> (N,)."""
        return (self.inner(hidden.float()) * self.output.weight[ids]).sum(dim=-1) + self.output.bias[ids]


class ActionValueHeads(ValueHead):
    """J heads Q(s, a), whose minimum is the estimate, and a head V(s)."""

    def __init__(
        self, n_hidden: int, trunk: nn.Module | None, n_actions: int, n_heads: int, width: int | None, init_value: float
    ) -> None:
        super().__init__(n_hidden, trunk)
        self.output = ActionValueHead(n_hidden, 1, width, init_value)
        self.q = nn.ModuleList(ActionValueHead(n_hidden, n_actions, width, init_value) for _ in range(n_heads))

    def q_at(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Values of one action per state by each head. Shapes (N, H), (N,) -> (J, N)."""
        return torch.stack([head.at(hidden, ids) for head in self.q])  # type: ignore[operator]

    def q_all(self, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        """Values of all actions by each head, or of the K actions ``ids``. Shape (N, H) -> (J, N, A) or (J, N, K)."""
        return torch.stack([head(hidden, ids) for head in self.q])


class LaggingValuesMixin(LMActorCriticPolicy):
    """Mixin for a policy class.

    Args:
        critic: ``separate`` for values on a copy of the language model's trunk, or ``shared`` for values on the trunk
            itself.
        target: What the lagging copy of the values contains: ``model`` for trunk and heads, or ``heads``, which read
            the trained trunk.
        n_q_heads: Number of heads Q, whose minimum is the estimate.
        head_width: Width of the hidden layer of the heads; ``null`` is twice the model's width.
        init_value: Value of all states and actions before training. A value near the returns of the log saves steps.
        train_prior: Whether the language model is trained, too.
        guidance: How values guide the language model: settings of
            :class:`~rl4dialog.features.offline.policies.value_guided.Guidance` for values of tokens, or of
            :class:`~rl4dialog.features.offline.policies.value_guided.Reranking` for values of replies.
    """

    guided = True
    guidance_class: Any  # type of `guidance`

    def __init__(
        self,
        *args: Any,
        critic: Literal["separate", "shared"] = "separate",
        target: Target = "model",
        n_q_heads: Count = 2,
        head_width: Count | None = None,
        init_value: float = 0.0,
        train_prior: bool = True,
        guidance: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._target_kind, self._n_q_heads, self._head_width = target, n_q_heads, head_width
        self._init_value, self.trains_prior = init_value, train_prior
        self.guidance = self.guidance_class.from_settings(guidance)
        super().__init__(*args, **{**kwargs, "critic": critic, "reference": "none"})

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        super().check_arguments({**args, "reference": "none"})
        if args.get("reference", "none") != "none":
            raise ConfigError("alg.policy.args.reference: the reference is the language model itself; remove it")
        cls.guidance_class.from_settings(args.get("guidance"))

    @abstractmethod
    def _n_actions(self, model: PreTrainedModel) -> int:
        """Number of values Q that a head computes from one hidden state."""

    def _build_models(self, model: PreTrainedModel) -> None:
        super()._build_models(model)
        assert self._value_head is not None
        if not self.trains_prior:
            model.requires_grad_(False)
        n_hidden, trunk = hidden_size(model), self._value_head.trunk
        width = 2 * n_hidden if self._head_width is None else self._head_width
        heads = ActionValueHeads(
            n_hidden, trunk, self._n_actions(model), self._n_q_heads, width or None, self._init_value
        )
        heads.trunk = None
        self._target_heads: ActionValueHeads = copy.deepcopy(heads).requires_grad_(False)
        if self._target_kind == "model":
            copied = copy.deepcopy(trunk if trunk is not None else self._trunk(model))
            self._target_heads.trunk = copied.requires_grad_(False)
        heads.trunk = trunk
        self._value_head = heads

    @property
    def heads(self) -> ActionValueHeads:
        """The trained values."""
        assert isinstance(self._value_head, ActionValueHeads)
        return self._value_head

    @torch.no_grad()
    def update_targets(self, rate: Fraction) -> None:
        """Move the lagging copy towards the trained values: theta' <- (1 - rate) theta' + rate theta."""
        trained = dict(self.heads.named_parameters())
        if self.heads.trunk is None and self._target_heads.trunk is not None:
            trunk = self._trunk(self._policy_model)
            trained |= {f"trunk.{name}": parameter for name, parameter in trunk.named_parameters()}
        moving = [(lagging, trained[name]) for name, lagging in self._target_heads.named_parameters()]
        lagging, towards = zip(*((old, new) for old, new in moving if new.requires_grad), strict=True)
        torch._foreach_lerp_(lagging, towards, rate)

    def states(self) -> dict[str, dict[str, Tensor]]:
        named: dict[str, Tensor] = {f"_target_heads.{key}": p for key, p in self._target_heads.named_parameters()}
        return {**super().states(), "target": named}

    def _all_values(self) -> dict[str, Tensor]:
        states = states_beside(self)
        return {**states.get(CRITIC_FILE, {}), **states.get(TARGET_FILE, {})}

    def save_values(self, folder: Path) -> None:
        """Save the values that guide the language model, and how they do, beside it."""
        settings = {"version": 1, "guidance": dataclasses.asdict(self.guidance), "policy": type(self).__name__}
        (folder / GUIDANCE_FILE).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        save_file(gathered(self._all_values()), folder / VALUES_FILE)

    def load_values(self, folder: Path) -> None:
        """Load what :meth:`save_values` saved of a policy of the same architecture."""
        why = ", so the language model in this folder cannot be guided"
        copy_all(self._all_values(), loaded_tensors(folder / VALUES_FILE, why))

    @abstractmethod
    def _read(self, trunk: Any, replies: Replies) -> Any:
        """Hidden states of a trunk that heads can read, and which have a method ``detach``."""

    def policy_hidden(self, replies: Replies) -> Any:
        """Hidden states of the language model."""
        return self._read(self._trunk(self._policy_model), replies)

    def value_hidden(self, replies: Replies, policy_hidden: Any = None) -> Any:
        """Hidden states that the trained values read; `policy_hidden` may have been computed already."""
        if self.heads.trunk is not None:
            return self._read(self.heads.trunk, replies)
        return self.policy_hidden(replies) if policy_hidden is None else policy_hidden

    @torch.no_grad()
    def target_hidden(self, replies: Replies, value_hidden: Any = None) -> Any:
        """Hidden states that the lagging values read; `value_hidden` may have been computed already."""
        if self._target_heads.trunk is not None:
            return self._read(self._target_heads.trunk, replies)
        return (self.value_hidden(replies) if value_hidden is None else value_hidden).detach()

    @torch.no_grad()
    def _guiding(self, replies: Replies, policy_hidden: Any = None) -> tuple[ActionValueHeads, Any]:
        """The heads that guide, and the hidden states that they read; ``policy_hidden`` if already computed."""
        heads = self.heads if self.guidance.use == "online" else self._target_heads
        if heads.trunk is not None:
            return heads, self._read(heads.trunk, replies)
        return heads, self.value_hidden(replies, policy_hidden)

    @abstractmethod
    def action_q(self, heads: ActionValueHeads, hidden: Any, replies: Replies) -> Tensor:
        """Values Q(s, a) of the n actions in replies by each of the J heads, from hidden states. Shape (J, n)."""

    @abstractmethod
    def state_v(self, heads: ActionValueHeads, hidden: Any) -> Tensor:
        """Values V(s) of the states before the n actions. Shape (n,)."""

    @torch.no_grad()
    def target_q(self, hidden: Any, replies: Replies) -> Tensor:
        """Lagging estimates min_j Q_j(s, a) of the n actions in replies. Shape (n,)."""
        return self.action_q(self._target_heads, hidden, replies).amin(dim=0)

    @abstractmethod
    def _at_tokens(self, replies: Replies, numbers: Tensor) -> Tensor:
        """Numbers of actions at their tokens, 0 where masked. Shape (n,) -> (B, T)."""

    @torch.no_grad()
    def q_values(self, replies: Replies) -> Tensor:
        """Value Q(s, a) of the action that each response token belongs to; 0 where masked. Shape (B, T)."""
        heads, hidden = self._guiding(replies)
        return self._at_tokens(replies, self.action_q(heads, hidden, replies).amin(dim=0))

    @torch.no_grad()
    def advantages(self, replies: Replies) -> Tensor:
        """Advantage Q(s, a) - V(s) of the action that each response token belongs to; 0 where masked. Shape (B, T)."""
        heads, hidden = self._guiding(replies)
        q = self.action_q(heads, hidden, replies).amin(dim=0)
        return self._at_tokens(replies, q - self.state_v(heads, hidden))

    @abstractmethod
    def _search(self, sample: Sample, obs: Obs, settings: GenerationSettings, limit: int) -> Replies:
        """Find one reply per prompt by a search, if the guidance has one."""

    @torch.no_grad()
    def generate(self, obs: Obs, **generation_kwargs: Any) -> Replies:
        sample = super().generate
        if not self.guidance.searches:
            return sample(obs, **generation_kwargs)
        with self._autocast():
            return self._search(lambda many: sample(many, **generation_kwargs), obs, *self._sampler(generation_kwargs))

    def stream(self, obs: Obs, random: torch.Generator | None = None, **kwargs: Any) -> Iterator[SampledTokens]:
        if not self.guidance.searches:
            yield from super().stream(obs, random, **kwargs)
            return
        settings, limit = self._sampler(kwargs, only_sampling=NOT_IN_CONVERSATIONS)

        def sample(many: Obs) -> Replies:
            return all_steps(self._sample_steps(many, settings, limit, random=random))

        with torch.no_grad(), self._autocast():
            found = self._search(sample, obs, settings, limit)
        assert found.log_probs is not None
        for ids, log_probs, mask in zip(found.response_ids.T, found.log_probs.T, found.response_mask.T, strict=True):
            rows = mask.nonzero().squeeze(1)
            yield SampledTokens(rows, ids[rows], log_probs[rows])
