"""Heads: what is read off a language model's hidden states beside the next token."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


class ValueHead(nn.Module):
    """Values of states.

    Args:
        n_hidden: H, the width of the hidden states.
        trunk: Computes them, a language model without its head; ``None`` where they are the policy's.

    Attributes:
        output: From hidden states of shape (N, H) to values of shape (N, 1).
    """

    def __init__(self, n_hidden: int, trunk: nn.Module | None) -> None:
        super().__init__()
        self.trunk = trunk
        output = nn.Linear(n_hidden, 1)
        # Values start at 0, so the first advantages are plain returns and not the noise of an untrained head.
        nn.init.zeros_(output.weight)
        nn.init.zeros_(output.bias)
        self.output: nn.Module = output

    def forward(self, hidden: Tensor) -> Tensor:
        """Values, float32. Shape (N, H) -> (N,)."""
        values: Tensor = self.output(hidden.float()).squeeze(-1)
        return values

    def trained_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters that only the values depend on; the optimizer's state in checkpoints has this order."""
        yield from self.output.parameters()
        if self.trunk is not None:
            yield from (p for p in self.trunk.parameters() if p.requires_grad)
