"""Layer 3: reward functions. Every sentence-level metric is a reward through one adapter, `MetricReward`."""
