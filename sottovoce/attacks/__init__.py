"""Attacks: what an adversary makes of the messages it received."""
