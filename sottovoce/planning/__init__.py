"""Which algorithm to take, before training."""
