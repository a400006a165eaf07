"""Adjacency: whose data differs between the two data sets that a guarantee compares."""

from __future__ import annotations

ADJACENCIES = ("user", "record")
