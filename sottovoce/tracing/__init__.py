"""The loop, traced: the linear system that is accounted for."""
