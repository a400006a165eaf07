"""Running: simulation in one process, with metrics, checkpoints and the guarantees of what ran."""
