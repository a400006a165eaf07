"""The attacks by name."""

from __future__ import annotations

MEMBERSHIP = ("threshold", "classifier", "likelihood", "pooled")
ATTACKS = (*MEMBERSHIP, "reconstruction", "inversion")
