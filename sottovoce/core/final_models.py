"""Final models: whether a figure is also about the models after the last round, once they are published."""

from __future__ import annotations

from enum import StrEnum

from sottovoce.errors import InputError


class FinalModels(StrEnum):
    """Which models after the last round an adversary sees, or a figure covers: none, their average, or each of them.

    >>> print(FinalModels.AVERAGE.sentence)
    It covers the average of the final models, not the model of each node
    """

    NONE = "none"
    AVERAGE = "average"
    ALL = "all"

    @property
    def noun(self) -> str:
        """What is seen beside the messages."""
        return {
            FinalModels.NONE: "no final models",
            FinalModels.AVERAGE: "the average of the final models",
            FinalModels.ALL: "all final models",
        }[self]

    @property
    def sentence(self) -> str:
        """What a figure says about them."""
        return {
            FinalModels.NONE: "It leaves out the final models: if they are published, more can be learned",
            FinalModels.AVERAGE: "It covers the average of the final models, not the model of each node",
            FinalModels.ALL: "It covers the final models of all nodes",
        }[self]


def parse_final_models(spec: str) -> FinalModels:
    """`none`, `average` or `all`."""
    try:
        return FinalModels(spec)
    except ValueError:
        raise InputError(f"final models {spec!r}", f"known: {', '.join(FinalModels)}", "choose one of them") from None
