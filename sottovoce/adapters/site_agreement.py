"""What the sites of somebody else's federation agree on, as a TOML file, and the run that is accounted for.

    name = "mammography-2026"
    sites = ["Hill", "Mercy", "North"]
    aggregators = "in turn"             # or "server", "coin:7", or a list of sites
    rounds = 24
    bound = 1.0                         # of the L2 norm of an update: the model after training less the model before
    [privacy]
    epsilon = 8.0

Every site clips its update as a whole and adds noise to it, so that all data of a site is protected (`user`). Or single
records are, where the gradient of each is there to be clipped: `[records]` says how many each site has, and the steps
of a round, each of which has its own noise. A server
sees every update, and so might anybody who reads messages: figures are about everyone. Where the sites aggregate in
turn, single sites learn less: `view = "coalition:any-1"`, also where some may be missing: `least = 5`.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from sottovoce.core.topologies import Topology, weigh
from sottovoce.errors import InputError
from sottovoce.federation.journal import KEPT_ROUNDS
from sottovoce.learning.datasets import ELSEWHERE, OF_ITS_OWN
from sottovoce.privacy.views import parse_view
from sottovoce.support.config import (
    NAME,
    About,
    AlgorithmChoice,
    DataSettings,
    Experiment,
    MachineSettings,
    MetricsSettings,
    PrivacySettings,
    Section,
    TopologySettings,
    TrainingSettings,
    parse_section,
    read_settings_file,
)

SERVER, IN_TURN = "server", "in turn"


class SitePrivacy(Section):
    """A target, or the noise itself in units of the sensitivity; and the adversary that the headline is about."""

    epsilon: float | None = Field(default=None, gt=0)
    sigma: float | None = Field(default=None, gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    view: str = "everyone"


class RecordSteps(Section):
    """Steps in which the gradient of each record is clipped: how many records each site `held`, which are public.

    Each round has so many `steps` of size `rate`, each on a `batch` that the guard draws.
    """

    held: list[int]
    rate: float = Field(gt=0, allow_inf_nan=False)
    steps: int = Field(default=1, ge=1, le=KEPT_ROUNDS)
    batch: str = "full"


class SiteAgreement(Section):
    """All that sites agree on. `least` sites must be in every mean; `weights` are theirs in it, in the order of sites.

    `again` tells one study from the next: an agreement that was played is never played a second time.
    """

    name: str = Field(pattern=f"^{NAME}$", max_length=200)
    again: str = Field(default="", max_length=200)
    sites: list[Annotated[str, Field(pattern=r"^[^/\\.][^/\\]*$", max_length=200)]] = Field(
        min_length=2, max_length=1000
    )
    aggregators: str | list[str] = SERVER
    weights: list[float] | None = None
    least: int | None = Field(default=None, ge=1)
    rounds: int = Field(ge=1, le=10**6)
    bound: float = Field(gt=0)
    precision: Literal["float32", "float64"] = "float32"
    privacy: SitePrivacy
    records: RecordSteps | None = None
    about: About = About()

    @property
    def fewest(self) -> int:
        """So many sites are in every mean."""
        return len(self.sites) if self.least is None else self.least

    @property
    def steps(self) -> int:
        """What a round releases: an update, or so many noisy gradients."""
        return 1 if self.records is None else self.records.steps

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all that it says."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    def weight(self, site: str) -> float:
        """What a site counts in the mean."""
        return 1.0 if self.weights is None else self.weights[self.sites.index(site)]

    @property
    def turns(self) -> Topology:
        """Who aggregates when, and with which weights."""
        return weigh(self._graph, self._weights)

    def aggregator(self, round: int) -> str | None:
        """The site that takes the mean in a round; None with a server."""
        if self.aggregators == SERVER:
            return None
        (taken,) = set(self.turns.at(round, 1).weights.indices.tolist())
        return self.sites[taken]

    @property
    def experiment(self) -> Experiment:
        """The run that is accounted for: noise of each site's own on every update; and its mean, or the updates, sent.

        A server that sees every update learns what everyone does in plain gossip.
        """
        privacy, records, in_turn = self.privacy, self.records, self.aggregators != SERVER
        held = [1] * len(self.sites) if records is None else records.held
        noise = {} if privacy.sigma is None else {"sigma": privacy.sigma}
        return Experiment(
            name=self.name, noise="secret", about=self.about,
            topology=TopologySettings(graph=self._graph, weights=self._weights if in_turn else "uniform"),
            training=TrainingSettings(
                rounds=self.rounds * self.steps, bound=self.bound, batch="full" if records is None else records.batch,
                clip="whole-gradient" if records is None else "per-example",
            ),
            algorithm=AlgorithmChoice(name="swarm" if in_turn else "dp-d-sgd", **noise),
            privacy=PrivacySettings(
                adjacency="user" if records is None else "record", delta=privacy.delta, epsilon=privacy.epsilon,
                view=privacy.view, attackers="none", exact_noise=True,
            ),
            data=DataSettings(
                name=OF_ITS_OWN, partition=OF_ITS_OWN, columns=ELSEWHERE,
                shards=dict(zip(self.sites, held, strict=True)),
            ),
            metrics=MetricsSettings(every=1), machine=MachineSettings(precision=self.precision),
        )  # fmt: skip

    @property
    def _graph(self) -> str:
        pairs = (f"{one}--{other}" for at, one in enumerate(self.sites) for other in self.sites[at + 1 :])
        return f"edges:{','.join(pairs)}"

    @property
    def _weights(self) -> str:
        order = self.aggregators if isinstance(self.aggregators, list) else None
        words = ["rotating"]
        if order is not None:
            words.append(f"order={'--'.join(order)}")
        elif self.aggregators not in (SERVER, IN_TURN):
            words.append(f"order={self.aggregators}")
        if self.weights is not None:
            words.append(f"shares={':'.join(map(repr, self.weights))}")
        if self.fewest < len(self.sites):
            words.append(f"least={self.fewest}")
        return ",".join(words)


Agreed: TypeAlias = "SiteAgreement | Path | str"


def read_site_agreement(given: Agreed) -> SiteAgreement:
    """An agreement from its file, with all that it says checked."""
    if isinstance(given, SiteAgreement):
        return given
    path = Path(given)
    agreement = parse_section(SiteAgreement, read_settings_file(path), str(path))
    sites, where = agreement.sites, str(path)
    if sites != sorted(set(sites)):
        raise InputError(f"{where}: sites {', '.join(sites)}", "each is named once, in sorted order", "sort them")
    who = agreement.aggregators
    known = set(who) <= set(sites) if isinstance(who, list) else re.fullmatch(f"{SERVER}|{IN_TURN}|coin:[0-9]+", who)
    if not known:
        raise InputError(
            f"{where}: aggregators = {who!r}", f'known: "{SERVER}", "{IN_TURN}", "coin:7", or a list of sites',
            "write one of them",
        )  # fmt: skip
    if any(site.isdecimal() for site in sites) or agreement.turns.names != tuple(sites):
        raise InputError(
            f"{where}: sites {', '.join(sites)}",
            "names have no commas or two hyphens, and are no numbers: views and orders number sites from 0",
            "write site-1, for example",
        )  # fmt: skip
    if (agreement.privacy.epsilon is None) == (agreement.privacy.sigma is None):
        raise InputError(
            f"{where}: both or neither of privacy.epsilon and privacy.sigma", "exactly one decides the noise",
            "give one",
        )  # fmt: skip
    if agreement.records is not None and len(agreement.records.held) != len(sites):
        raise InputError(
            f"{where}: records.held of {len(agreement.records.held)} sites",
            f"there are {len(sites)}",
            "give one number each",
        )
    if agreement.fewest > len(sites):
        raise InputError(f"{where}: least = {agreement.fewest}", f"there are {len(sites)} sites", "lower it")
    alone = parse_view(agreement.privacy.view, labels=tuple(sites)).kind != "everyone"
    if alone and agreement.aggregators == SERVER:
        raise InputError(
            f"{where}: privacy.view = {agreement.privacy.view!r}",
            "what hides a site from others is the noise of all in one mean, and a server sees every update",
            'leave out view, or use aggregators = "in turn"',
        )  # fmt: skip
    if alone and agreement.steps > 1:
        raise InputError(
            f"{where}: privacy.view = {agreement.privacy.view!r} with {agreement.steps} steps in a round",
            "what hides a site from others needs gradients at models that all know", "use records.steps = 1",
        )  # fmt: skip
    return agreement
