"""The demonstration of `sotto demo`."""
