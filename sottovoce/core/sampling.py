"""Sampling: how a record comes into a batch that is drawn by chance."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.core.adjacency import Change


@dataclass(frozen=True)
class Sampling:
    """How a record comes into a batch: with probability `share`, or as one of `share * size` out of `size`.

    It may be drawn every `apart` rounds.
    """

    share: float
    size: int | None = None
    apart: int = 1

    @property
    def certain(self) -> bool:
        """Whether a record is drawn whenever it may be, so that chance hides nothing."""
        return self.size is None and self.share == 1

    @property
    def change(self) -> Change:
        """What amplification by this sampling is about: Poisson batches a record that counts as nothing or not, and
        batches of a fixed size one that is replaced.
        """
        return Change.ZERO_OUT if self.size is None else Change.REPLACE
