"""Heads on a language model's hidden states, other than the language-model head."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional


class ValueHead(nn.Module):
    """Value head.

    Args:
        n_hidden: H, the width of the hidden states.
        trunk: A language model without its head that computes the hidden states; ``None`` to use the policy's.

    Attributes:
        output: Linear map from hidden states (N, H) to values (N, 1).
    """

    def __init__(self, n_hidden: int, trunk: nn.Module | None) -> None:
        super().__init__()
        self.trunk = trunk
        output = nn.Linear(n_hidden, 1)
        # Values start at 0, so that the first advantages are plain returns without the noise of an untrained head.
        nn.init.zeros_(output.weight)
        nn.init.zeros_(output.bias)
        self.output: nn.Module = output

    def forward(self, hidden: Tensor) -> Tensor:
        """Values, float32. Shape (N, H) -> (N,)."""
        values: Tensor = self.output(hidden.float()).squeeze(-1)
        return values

    def trained_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that affect only the values. The optimizer state in checkpoints depends on this order."""
        yield from self.output.parameters()
        if self.trunk is not None:
            yield from (p for p in self.trunk.parameters() if p.requires_grad)


class ActionValueHead(nn.Module):
    """Values Q(s, a) of all A actions, such as the tokens of the vocabulary: a network with one hidden layer.

    Args:
        n_hidden: H, the width of the hidden states.
        n_actions: A.
        width: Width of the hidden layer; ``None`` for a linear head.
        init_value: Value of all actions before training.
    """

    def __init__(self, n_hidden: int, n_actions: int, width: int | None, init_value: float = 0.0) -> None:
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
            values: Tensor = self.output(inner)
            return values
        return functional.linear(inner, self.output.weight[ids], self.output.bias[ids])

    def at(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Values of one action per state, without those of the others. Shapes (N, H), (N,) -> (N,)."""
        return (self.inner(hidden.float()) * self.output.weight[ids]).sum(dim=-1) + self.output.bias[ids]


class ActionValueHeads(ValueHead):
    """Several heads Q(s, a), whose minimum is the estimate, and a head V(s).

    Args:
        n_hidden: H, the width of the hidden states.
        trunk: As for :class:`ValueHead`.
        n_actions: A, the number of actions.
        n_heads: J, the number of heads Q.
        width: As for :class:`ActionValueHead`, for all heads.
        init_value: Value of all states and actions before training.
    """

    def __init__(
        self,
        n_hidden: int,
        trunk: nn.Module | None,
        n_actions: int,
        n_heads: int,
        width: int | None,
        init_value: float = 0.0,
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

    def trained_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.output.parameters()
        yield from self.q.parameters()
        if self.trunk is not None:
            yield from (p for p in self.trunk.parameters() if p.requires_grad)
