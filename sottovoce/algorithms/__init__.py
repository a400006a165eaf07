"""Algorithms, one file each; `registry` finds them."""
