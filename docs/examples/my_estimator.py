"""An advantage estimator: turn u weighs turn_gamma^u, as in the gradient of the discounted return (Thomas 2014)."""

from dataclasses import dataclass

from rl4dialog import AdvantageRegistry
from rl4dialog.functional.advantages import TurnGAE


@AdvantageRegistry.register("discounted_turns")
@dataclass
class DiscountedTurns(TurnGAE):
    """Advantages of turns that weigh less, the later they come; not below ``least``."""

    least: float = 0.0

    def __call__(self, of):
        found = super().__call__(of)
        return found._replace(advantages=found.advantages * (self.turn_gamma**of.turns).clip(self.least))
