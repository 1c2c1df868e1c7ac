"""Heads on a language model's hidden states, other than the language-model head."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


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
