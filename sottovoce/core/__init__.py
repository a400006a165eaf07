"""The loop and what it is made of: graphs, weights, noise, compression, messages."""
