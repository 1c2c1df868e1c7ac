"""Agreement of rewards and metrics with human ratings."""
