"""Details of each token of a reply, for display."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TokenDetails:
    """Values per token. Each list has the length of ``texts``, or is ``None`` if it is not available.

    Attributes:
        texts: Text of each token.
        log_probs: Log-probability under the policy's own distribution, in nats.
        values: The critic's value before each token.
        kl: Log-probability under the policy minus that under the reference, in nats, as used by the KL penalty; for a
            policy that values guide, minus that under its language model.
        advantages: Q(s, a) - V(s) of each token, by which a policy is guided.
        missing: Reason for each ``None``, by name of the list.
    """

    texts: list[str]
    log_probs: list[float]
    values: list[float] | None = None
    kl: list[float] | None = None
    advantages: list[float] | None = None
    missing: dict[str, str] = field(default_factory=dict)
