"""What is known about each token of a reply: for people who look at it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TokenDetails:
    """Numbers per token; each list is as long as ``texts``, or ``None`` where there is nothing to ask.

    Attributes:
        texts: Each token by itself.
        log_probs: Under the policy's own distribution, in nats.
        values: The critic's, before each token.
        kl: Log-probability under the policy less that under the reference, in nats: what the KL penalty is paid on.
        missing: Why a list is ``None``, by its name.
    """

    texts: list[str]
    log_probs: list[float]
    values: list[float] | None = None
    kl: list[float] | None = None
    missing: dict[str, str] = field(default_factory=dict)
