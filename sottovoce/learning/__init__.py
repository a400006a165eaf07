"""Data sets, models and gradients."""
