"""Attacks: what a view can make of what it really received.

- `received`: all messages of a run that reach a view, without what the view knows of them already;
- `reconstruction`: the linear attack that solves for values and gradients.
"""
