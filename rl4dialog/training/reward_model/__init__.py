"""Reward models: `alg.id: reward_model`."""
