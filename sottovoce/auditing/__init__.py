"""Audits: lower bounds on the leak, beside the upper bounds that were claimed.

A guarantee is an upper bound; an audit is a lower bound that holds with a stated confidence. Where the lower bound is
above the upper one, the guarantee is wrong or something else ran. Where it is below, nothing is proven: another attack
may do better. See docs/audit.md.
"""
