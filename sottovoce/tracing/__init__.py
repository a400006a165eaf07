"""The round loop, traced into the linear system that is accounted for."""
