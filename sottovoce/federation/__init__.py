"""Members of a federation: each with its own data, on its own machine."""
