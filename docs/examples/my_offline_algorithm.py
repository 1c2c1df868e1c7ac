"""A custom offline algorithm: imitation of tokens whose return to go is above average."""

from rl4dialog import OfflineAlgorithmRegistry
from rl4dialog.features.offline.algorithms.base import OfflineAlgorithm


@OfflineAlgorithmRegistry.register("better_than_average")
class BetterThanAverage(OfflineAlgorithm):
    """Cross-entropy of the agent's tokens, weighted by exp((G - mean) / temperature), at most ``max_weight``.

    Args:
        args: Arguments of `OfflineAlgorithm`.
        temperature: Difference of returns that changes a weight by the factor e.
        max_weight: Largest weight.
        kwargs: Keyword arguments of `OfflineAlgorithm`.
    """

    policy_kinds = ("plain",)  # trains a language model without values

    def __init__(self, *args, temperature: float = 1.0, max_weight: float = 5.0, **kwargs):
        self.temperature, self.max_weight = temperature, max_weight
        super().__init__(*args, **kwargs)

    def _terms(self, batch):
        returns = batch.flat("returns")  # one number per agent token, like the loss
        weights = ((returns - float(self.log.returns.mean())) / self.temperature).exp().clamp(max=self.max_weight)
        loss = weights * self.imitation_loss(batch)
        return {"loss": loss, "weight": weights}  # the loss is minimized; all means are logged under train/
