"""The demonstration that `sotto demo` runs."""
