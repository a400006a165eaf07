"""The round loop and its parts: graphs, mixing weights, noise, messages."""
