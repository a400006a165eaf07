"""Which algorithm to take, before anything is trained."""
