"""Attacks: what a view can make of what it really received.

- `received`: all messages of a run that reach a view, without what the view knows of them already;
- `reconstruction`: the linear attack that solves for values and gradients;
- `inversion`: pictures of a neighbour's batch from its first gradient;
- `losses`: how candidates do on models that attackers received, which these are made from:
- `threshold`, `classifier`, `likelihood` (with `shadows`), `pooled`: who is a member of a victim's data;
- `success`: how well they do, with confidence;
- `finished`: all of them on the folders of finished runs; `sweeps`: on all runs of a sweep.
"""

MEMBERSHIP = ("threshold", "classifier", "likelihood", "pooled")
ATTACKS = (*MEMBERSHIP, "reconstruction", "inversion")
