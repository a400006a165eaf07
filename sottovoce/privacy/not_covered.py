"""What no figure of a run is about, whatever its algorithm is."""

from __future__ import annotations

from enum import StrEnum


class NotCovered(StrEnum):
    """What no figure covers; the value is its sentence."""

    HELD_OUT_ROWS = (
        "Held-out rows, on which models are tested: figures are about training rows, and nothing protects the others."
    )
    METRICS = "Metrics on held-out rows: they are computed without noise, and tell their readers about those rows."
    TUNING = (
        "Tuning: settings, or a run among several, that were chosen by such metrics carry what these tell into the "
        "models."
    )
