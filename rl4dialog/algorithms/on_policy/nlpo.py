"""Natural language policy optimization (Ramamurthy et al. 2022, arXiv 2210.01241, algorithm 1)."""

from __future__ import annotations

from typing import Any

from rl4dialog.algorithms.on_policy.ppo import PPO


class NLPO(PPO):
    """PPO with a maskable policy, whose mask follows the trained weights every ``target_update_iterations``.

    The reward may dip after that: nothing trains the tokens that a mask leaves out, and a new mask may let them in. A
    KL penalty, which is paid without the mask, keeps them where they were.
    """

    maskable = True

    def train(self) -> None:
        """Update policy and critic, and from time to time the mask."""
        super().train()
        # The mask policy takes over the trained weights every so many iterations (algorithm 1, last lines).
        policy: Any = self.policy
        self.logger.record("train/mask_synced", float(policy.end_iteration()))
