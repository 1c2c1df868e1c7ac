"""Layer 2.5: metrics and rewards, by family. Every metric of texts is a reward through one adapter, `MetricReward`."""
