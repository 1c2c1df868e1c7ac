"""Natural language policy optimization (Ramamurthy et al. 2022, arXiv 2210.01241, algorithm 1)."""

from __future__ import annotations

from typing import Any

from rl4dialog.algorithms.on_policy.ppo import PPO


class NLPO(PPO):
    """PPO with a maskable policy. The mask is updated with the trained weights every ``target_update_iterations``.

    The reward may drop after an update: tokens outside a mask are not trained, and a new mask may allow them. The KL
    penalty, which ignores the mask, keeps these tokens near the reference.
    """

    maskable = True

    def train(self) -> None:
        """Update policy and critic, and periodically the mask."""
        super().train()
        # The mask policy periodically becomes a copy of the trained policy (algorithm 1).
        policy: Any = self.policy
        self.logger.record("train/mask_synced", float(policy.end_iteration()))
