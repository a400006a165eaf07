"""Settings of other frameworks, by their own parameter names, read as DP-SGD settings or as what is known about them.

    flower    LocalDpMod: clipping_norm, sensitivity, epsilon, delta; and rounds, clients, adjacency
    opacus    PrivacyEngine: noise_multiplier, max_grad_norm; and rounds (optimizer steps), batch, records
    nvflare   a filter: fraction, epsilon, noise_var, gamma of SVTPrivacy, or config=FILE; and parameters, rounds

- `LocalDpMod` clips the update of a client to `clipping_norm` and adds noise of deviation
  `sensitivity * sqrt(2 log(1.25 / delta)) / epsilon` to it, in every round. `sensitivity` is a setting of its own: the
  mod does not ask whether it fits the clipping norm. What may change is a client's update.
- Opacus adds noise of deviation `noise_multiplier * max_grad_norm` to the sum of clipped gradients of a Poisson batch;
  its neighbours have one record more or less.
- `SVTPrivacy` chooses a `fraction` of an update's coordinates and sends each with Laplace noise of scale
  `2 gamma / noise_var`, clipped to `gamma`. Its `epsilon` is for the threshold alone: `noise_var` is spent for every
  coordinate that is sent. Two updates that differ by their sign at size gamma are chosen from alike, since sizes
  decide; what is sent tells them apart. That is what `SparseFilter` computes. It leaves out that values above gamma are
  not clipped before the noise is added, which tells more; nothing is proven here from above.
- `PercentilePrivacy` adds no noise: no epsilon is finite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy.signal import fftconvolve

from sottovoce.auditing.given_settings import (
    FULL,
    Adjacency,
    GivenSettings,
    NoiseOn,
    Range,
    SigmaUnit,
    given_settings,
    number,
    parse_pairs,
    positive,
    require_keys,
    whole,
    word,
)
from sottovoce.errors import InputError
from sottovoce.support.text import parse_json, read_text

MOST_COORDINATES = 10_000
"""So many coordinates are counted: what more of them tell is left out."""


class Mechanism(Protocol):
    """Settings whose epsilon is known at least, and perhaps at most; what they say themselves is stated."""

    @property
    def stated_epsilon(self) -> float | None: ...

    @property
    def stated_delta(self) -> float | None: ...

    @property
    def adjacency(self) -> str: ...

    def epsilon(self, delta: float) -> Range:
        """At least and at most; infinite from above where nothing is proven."""

    def facts(self) -> dict[str, str]:
        """For reading."""


@dataclass(frozen=True, kw_only=True)
class SparseFilter:
    """An NVFlare filter on the update of a client: `kept` coordinates of so many, with Laplace noise, or with none."""

    name: str
    parameters: int
    kept: int
    with_replacement: bool
    noise_var: float
    gamma: float
    rounds: int
    stated_epsilon: float | None
    stated_delta: float | None = None
    adjacency: str = "a client's update"

    def epsilon(self, delta: float) -> Range:
        """At least what the signs of what is sent tell; nothing is proven from above."""
        if self.noise_var == 0 or math.isinf(self.noise_var):
            return Range(math.inf, math.inf)
        sent, chance = _distinct(self.kept, self.rounds) if self.with_replacement else (self.kept * self.rounds, 1.0)
        return Range(_of_signs(self.noise_var, min(MOST_COORDINATES, sent), delta / chance), math.inf)

    def facts(self) -> dict[str, str]:
        """For reading."""
        noise = "none" if math.isinf(self.noise_var) else f"Laplace, scale 2 * {self.gamma:g} / {self.noise_var:g}"
        return {
            "filter": self.name,
            "sent": f"{self.kept:,} of {self.parameters:,} parameters, clipped to {self.gamma:g}",
            "noise": noise, "change": "the update of a client is replaced by another", "rounds": f"{self.rounds:,}",
        }  # fmt: skip


def _of_signs(per_coordinate: float, count: int, delta: float) -> float:
    """Epsilon at this delta of `count` coordinates that each fall on one end, between, or on the other.

    The end is that of the sign with probability 1/2, the other end with exp(-e) / 2, and what lies between tells
    nothing: the loss is e, -e or 0. Merging what lies between is a lower bound. The transforms are wrong by less than
    what delta is raised by.
    """
    if not delta < 1:
        return 0.0
    other = math.exp(-per_coordinate) / 2
    one, total, power = np.array([other, 0.5 - other, 0.5]), np.array([1.0]), count
    while power:
        if power & 1:
            total = fftconvolve(total, one)
        power >>= 1
        if power:
            one = fftconvolve(one, one)
    losses, shares = per_coordinate * np.arange(-count, count + 1), np.clip(total, 0.0, None)
    wanted, low, high = delta * (1 + 1e-9) + 1e-11, 0.0, per_coordinate * count
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        above = losses > middle
        reached = float(np.sum(shares[above] * -np.expm1(middle - losses[above])))
        low, high = (middle, high) if reached > wanted else (low, middle)
    return low


# --- frameworks ------------------------------------------------------------------------------------------------------


def _flower(given: Mapping[str, str]) -> Mechanism:
    require_keys(given, ("clipping-norm", "sensitivity", "epsilon", "delta", "rounds"), ("adjacency",))
    delta, epsilon = positive(given, "delta"), positive(given, "epsilon")
    if delta >= 1:
        raise InputError(f"--settings delta={delta:g}", "it lies between 0 and 1", "give 1e-5, for example")
    adjacency = word(given, "adjacency", tuple(Adjacency)) if "adjacency" in given else Adjacency.REPLACE
    return GivenSettings(
        clip=positive(given, "clipping-norm"),
        sigma=number(given, "sensitivity") * math.sqrt(2 * max(0.0, math.log(1.25 / delta))) / epsilon,
        sigma_unit=SigmaUnit.ABSOLUTE, noise_on=NoiseOn.SUM, rounds=whole(given, "rounds"), batch=1, records=1,
        adjacency=Adjacency(adjacency), stated_epsilon=epsilon, stated_delta=delta,
    )  # fmt: skip


def _opacus(given: Mapping[str, str]) -> Mechanism:
    require_keys(given, ("noise-multiplier", "max-grad-norm", "rounds", "batch", "records"))
    records = whole(given, "records")
    return GivenSettings(
        clip=positive(given, "max-grad-norm"), sigma=number(given, "noise-multiplier"), sigma_unit=SigmaUnit.CLIP,
        noise_on=NoiseOn.SUM, rounds=whole(given, "rounds"), records=records,
        batch=records if given["batch"] == FULL else min(records, whole(given, "batch")),
        adjacency=Adjacency.ADD_REMOVE,
    )  # fmt: skip


SVT, PERCENTILE = "SVTPrivacy", "PercentilePrivacy"
DEFAULTS = {
    SVT: {"fraction": "0.1", "epsilon": "0.1", "noise-var": "0.1", "gamma": "1e-5", "tau": "1e-6", "replace": "true"},
    PERCENTILE: {"percentile": "10", "gamma": "0.01"},
}
"""What these filters take where a configuration leaves a parameter out."""


def _nvflare(given: Mapping[str, str]) -> Mechanism:
    own = {key: value for key, value in given.items() if key not in ("config", "parameters", "rounds", "filter")}
    name = given.get("filter", SVT)
    if "config" in given:
        name, read = _filter_in(Path(given["config"]))
        own = {**read, **own}
    word({"filter": name}, "filter", tuple(DEFAULTS))
    settings = {**DEFAULTS[name], **own, **{key: given[key] for key in ("parameters", "rounds") if key in given}}
    require_keys(settings, (*DEFAULTS[name], "parameters", "rounds"), ("data-kinds",))
    parameters, rounds = whole(settings, "parameters"), whole(settings, "rounds")
    if name == PERCENTILE:
        return SparseFilter(
            name=name, parameters=parameters, kept=parameters, with_replacement=False, noise_var=math.inf,
            gamma=positive(settings, "gamma"), rounds=rounds, stated_epsilon=None,
        )  # fmt: skip
    kept = max(1, min(parameters, math.ceil(parameters * positive(settings, "fraction"))))
    return SparseFilter(
        name=name, parameters=parameters, kept=kept,
        with_replacement=word(settings, "replace", ("true", "false")) == "true",
        noise_var=number(settings, "noise-var"), gamma=positive(settings, "gamma"), rounds=rounds,
        stated_epsilon=number(settings, "epsilon"),
    )  # fmt: skip


def _distinct(kept: int, rounds: int) -> tuple[int, float]:
    """How many different coordinates are sent at least, where `kept` are drawn with replacement; and how surely.

    Their mean number in a round is `kept (1 - (1 - 1 / kept)^kept)` or more, and one draw changes it by one at most
    (McDiarmid).
    """
    mean = rounds * kept * (1 - (1 - 1 / kept) ** kept)
    return max(0, math.floor(mean - math.sqrt(rounds * kept * math.log(2) / 2))), 0.5


def _filter_in(path: Path) -> tuple[str, dict[str, str]]:
    """The first privacy filter of a client's configuration, and its arguments."""
    try:
        document = parse_json(read_text(path, "an NVFlare client configuration is JSON", "give config_fed_client.json"))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not JSON", "a configuration is JSON", "give config_fed_client.json") from None
    waiting = [document]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, dict):
            name = str(part.get("name") or part.get("path") or "").rpartition(".")[2]
            if name in DEFAULTS:
                arguments = part.get("args")
                given = arguments.items() if isinstance(arguments, dict) else ()
                return name, {key.replace("_", "-"): _text(value) for key, value in given}
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    raise InputError(f"{path}: no filter that is known", f"known: {', '.join(DEFAULTS)}", "name the file with a filter")


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


PRESETS: dict[str, Callable[[Mapping[str, str]], Mechanism]] = {
    "flower": _flower, "nvflare": _nvflare, "opacus": _opacus,
}  # fmt: skip


def mechanism(settings: str, preset: str | None) -> Mechanism:
    """Settings as they are typed, by the names of a framework if a preset is named."""
    if preset is None:
        return given_settings(settings)
    if preset not in PRESETS:
        raise InputError(f"--preset {preset}", f"known: {', '.join(PRESETS)}", "choose one of them")
    return PRESETS[preset](parse_pairs(settings))
