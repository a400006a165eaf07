"""Data sets, models, batches and clipped gradients."""
