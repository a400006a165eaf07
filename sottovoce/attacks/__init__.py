"""Attacks: what a view can make of what it really received."""
