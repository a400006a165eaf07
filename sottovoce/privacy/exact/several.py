"""What several adversaries see of one system, and their exact losses: those of small views are computed together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sottovoce.core.final_models import FinalModels
from sottovoce.core.participation import Participation
from sottovoce.errors import Unaccountable
from sottovoce.privacy.exact.routes import squared_of_each
from sottovoce.privacy.exact.work import is_small, sizes_of
from sottovoce.privacy.observation import Observation, observe, observe_models
from sottovoce.privacy.views import View
from sottovoce.tracing.linear_system import LinearSystem

AT_ONCE = 1e7
"""About how many entries of M of small views may be alive at once."""


class SeveralViews:
    """Each view's observation and exact loss, for those who account for one view after the other.

    `together` are views whose exact losses will all be asked for, about every node that is not a member.
    """

    def __init__(self, system: LinearSystem, scheme: Participation, together: Iterable[View] = ()) -> None:
        self.system, self._scheme = system, scheme
        self._waiting: dict[View, Observation | None] = dict.fromkeys(together)
        self._losses: dict[Observation, NDArray[np.float64]] = {}

    def observe(self, view: View, victims: Sequence[int] | None = None) -> Observation:
        """What a view sees of some victims, or of all who are not its members."""
        if victims is not None:
            return observe(self.system, view, victims=victims)
        seen = self._waiting.get(view) or self._observe(view)
        if view in self._waiting:
            self._waiting[view] = seen
        return seen

    def _observe(self, view: View) -> Observation:
        """Of a view that waits with and without final models, messages are observed once."""
        messages = self._waiting.get(replace(view, final_models=FinalModels.NONE))
        return observe(self.system, view) if messages is None else observe_models(messages, view)

    def squared(self, observation: Observation) -> NDArray[np.float64]:
        """mu^2 of every victim."""
        if observation not in self._losses:
            batch = self._batch(observation)
            try:
                found = squared_of_each(batch, self._scheme)
            except Unaccountable:
                batch = [observation]
                found = squared_of_each(batch, self._scheme)
            self._losses |= zip(batch, found, strict=True)
        self._waiting = {view: seen for view, seen in self._waiting.items() if seen is not observation}
        return self._losses.pop(observation)

    def _batch(self, first: Observation) -> list[Observation]:
        """The observation, and as many of those that wait as fit beside it, if they are small."""
        found, entries = [first], _entries(first)
        if first not in self._waiting.values() or not is_small(sizes_of(first)):
            return found
        for view in self._waiting:
            other = self.observe(view)
            if other is first or other in self._losses or not is_small(sizes_of(other)):
                continue
            entries += _entries(other)
            if entries > AT_ONCE:
                break
            found.append(other)
        return found


def _entries(observation: Observation) -> int:
    return len(observation.victims) * observation.gradient_rounds**2
