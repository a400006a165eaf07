"""One run as the page shows it: what was trained, its guarantees, who can learn what, and how attacks did."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain

from sottovoce.attacks.registry import PageFigure, page_attacks
from sottovoce.auditing.lower_bound import round_down
from sottovoce.core.graphs import Graph
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.learning.datasets import ELSEWHERE
from sottovoce.privacy.assumptions import AssumptionKind
from sottovoce.privacy.guarantee import PrivacyFigure
from sottovoce.privacy.views import View, read_view
from sottovoce.report.pairwise_leakage import pairwise_leakage
from sottovoce.report.plain_words import plain_words
from sottovoce.report.quality import (
    baseline_rows,
    calibration_table,
    confusion_rows,
    decision_table,
    quality_rows,
)
from sottovoce.report.series import trade_off
from sottovoce.report.wording import (
    adversary,
    headline_sentence,
    heard_text,
    noise_text,
    not_covered,
    percent,
    protects,
    rounded,
    spent_text,
    sums_text,
)
from sottovoce.run.folder_check import FolderCheck
from sottovoce.run.layout import ATTACK, AUDIT, BASELINES, METRICS, PRIVACY, RESULT
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.run.protocol import topology_of
from sottovoce.run.run_documents import RunDocuments, damaged_run
from sottovoce.support.config import Document, Experiment

NODES, EDGES = 400, 4000
"""Graphs with more are not drawn."""

LISTED_NODES = 30
"""Of more nodes the facts are not listed one by one."""

SHOWN_IN = {
    PRIVACY.name: ("summary", "who", "guaranteed"), METRICS.name: ("plain", "summary", "learning", "trade"),
    RESULT.name: ("plain", "trained"), BASELINES.name: ("plain",), ATTACK.name: ("attacks",), AUDIT.name: ("attacks",),
}  # fmt: skip
"""The sections of a page that show what a file says."""

NO_ATTACK = "No membership attack has been made on this run yet."
NOT_RECORDED = (
    "What nodes received was not recorded in this run, so it cannot be attacked. Run it again with recording:"
)
NO_NODES = "Which single node can learn how much was not accounted for in this run. Run it again with all nodes:"
NO_MEMBERS = (
    "What single members can learn is not in this agreement's guarantees: count on the sentence about everyone."
)
MEMBERS_RECORD_NOTHING = "Members of a federation record nothing of what they receive, so there is nothing to attack."
NO_EPSILON_OVER_ROUNDS = (
    "Epsilon was computed for the last round only: the run is long or has many nodes, or nothing is proven for it."
)
NO_CURVE = "The attack was made before ROC curves were stored. Make it again:"


def run_summary(run: RunDocuments, *, pairs: bool = True, without_noise: RunDocuments | None = None) -> Document:
    """All that a page shows of one run. Without `pairs`, who learns what from whom is left out.

    `without_noise` is the same training with no noise, if it is on the page.
    """
    net, privacy = _topology(run), run.privacy
    n, names = (net.n, net.names) if isinstance(net, Topology) else (_named_nodes(run), None)
    if _named_nodes(run) > n:
        raise damaged_run(run.folder)
    graph = _graph(net)
    return {
        **trade_off(run),
        "n": n,
        "member": run.member,
        "plain": plain_words(run, names, n, without_noise),
        "labels": None if names is None else list(names),
        "epsilon": rounded(privacy.headline.epsilon),
        "guess": percent(privacy.headline.guessing_accuracy(privacy.delta)),
        "facts": _facts(run, n, names),
        "verdict": headline_sentence(privacy, names),
        "promises": guarantee_table(privacy, names),
        "protects": protects(privacy.adjacency, "replace"),
        "bound": _sensitivity_sentence(privacy),
        "convexity": privacy.convexity,
        "certificate": privacy.certificate,
        "not_covered": not_covered(privacy, of_member=run.member is not None),
        "over_rounds": [{"round": one.round, "epsilon": rounded(one.epsilon)} for one in privacy.over_rounds],
        "held_out": _quality(run.result.get("held_out")),
        "graph": graph,
        "leaks": pairwise_leakage(privacy, n) if pairs else None,
        "attacks": {
            name: _membership_figures(found) for name, found in _stored_attacks(run, PageFigure.ROC_CURVE).items()
        },
        "audit": _audit(run.audit, names),
        "missing": _missing(run, graph, pairs),
        "findings": list(run.check.findings),
        "unchecked": _unchecked(run.check),
    }


def _quality(scores: Document | None) -> Document:
    """What is drawn of decisions and calibration, and the same in words."""
    found = {key: (scores or {}).get(key) for key in ("threshold", "decisions", "calibration")}
    return {**found, "decision_table": decision_table(scores), "calibration_table": calibration_table(scores)}


def _unchecked(check: FolderCheck) -> dict[str, list[str]]:
    """What nothing was compared with, by the sections of a page that show it."""
    found: dict[str, list[str]] = {}
    for line in check.lines():
        for section in SHOWN_IN.get(re.split(r"[: ]", line)[0], ()):
            found.setdefault(section, []).append(line)
    return found


def guarantee_table(privacy: PrivacyDocument, names: Sequence[str] | None = None) -> list[Document]:
    """The guarantees against everyone, or a coalition: with amplification by sampling, then kind by kind."""
    rows = [] if privacy.sampled is None else [(privacy.sampled.view, privacy.sampled)]
    for view in privacy.views:
        if view.node is None:
            rows += [(view.view, row) for row in _worst_of_kinds(view.guarantees)]
    return [
        {
            "adversary": _against(view, row, names), "protects": protects(privacy.adjacency, row.change),
            "epsilon": rounded(row.epsilon), "guess": percent(row.guessing_accuracy(privacy.delta)),
            "kind": row.kind, "figure": row.figure, "proven": bool(row.proven_for_training),
            "models": row.final_models.sentence,
            "assumptions": [assumption.sentence for assumption in row.assumptions],
        }
        for view, row in rows
    ]  # fmt: skip


def _against(view: View, row: PrivacyFigure, names: Sequence[str] | None) -> str:
    """The adversary of a row; of any coalition of a size also the one that learns most."""
    if view == row.view:
        return adversary(view, names)
    return f"{adversary(view, names)}; most is learned by {adversary(row.view, names)}"


def _sensitivity_sentence(privacy: PrivacyDocument) -> str:
    if math.isinf(privacy.largest_sensitivity):
        return "Gradients are not clipped: Delta, by which a change of data moves a gradient, has no limit."
    if isinstance(privacy.sensitivity, list):
        sizes = f"from {min(privacy.sensitivity):.4g} to {max(privacy.sensitivity):.4g}"
        return f"Delta is {sizes} here, of each node its own: clipping ({privacy.clipping}) sees to it."
    return f"Delta is {privacy.sensitivity:.4g} here: clipping ({privacy.clipping}) sees to it."


def _worst_of_kinds(guarantees: tuple[PrivacyFigure, ...]) -> list[PrivacyFigure]:
    kinds = dict.fromkeys(one.kind for one in guarantees)
    return [max((one for one in guarantees if one.kind == kind), key=lambda one: one.epsilon) for kind in kinds]


def _named_nodes(run: RunDocuments) -> int:
    """So many nodes there are at least: one more than the largest number of a node that is named anywhere."""
    privacy = run.privacy
    figures = [one for view in privacy.views for one in (*view.guarantees, view.headline)]
    figures += [one for one in (privacy.headline, privacy.sampled) if one is not None]
    claimed = [claim for one in run.audit.get("audits", []) for claim in one["claims"]]
    views = {*(view.view for view in privacy.views), *(one.view for one in figures)}
    views |= {read_view(claim["view"]) for claim in claimed}
    nodes = {*(one.victim for one in figures), *(claim["victim"] for claim in claimed)}
    nodes |= {node for view in views for node in (*view.members, *view.secrets_of, *chain(*view.edges))}
    return 1 + max((node for node in nodes if node is not None), default=-1)


def _topology(run: RunDocuments) -> Topology | str:
    """The run's topology, or why it is not there any more."""
    try:
        return topology_of(run.experiment, None, run.graph)
    except InputError as error:
        return f"The graph could not be built again: {error}."


def _graph(net: Topology | str) -> Document:
    """Where nodes are drawn and which are joined, or why nothing is drawn."""
    if isinstance(net, str):
        return {"why": net}
    source = net.graph
    if source is None:
        return {"why": "The graph changes from round to round, so there is no one picture of it."}
    if source.n > NODES or source.edges > EDGES:
        return {
            "why": f"{source.n:,} nodes and {source.edges:,} edges are too many to draw. See leak by distance instead."
        }
    note = "" if net.static else "Not every edge is used in every round."
    return {**_placed(source), "directed": source.directed, "note": note}


def _placed(source: Graph) -> Document:
    import networkx

    drawn = networkx.Graph()
    drawn.add_nodes_from(range(source.n))
    rows, columns = source.adjacency.nonzero()
    drawn.add_edges_from(zip(rows.tolist(), columns.tolist(), strict=True))
    places = networkx.spring_layout(drawn, seed=0, iterations=200)
    return {
        "positions": [[round(float(part), 4) for part in places[node]] for node in range(source.n)],
        "edges": sorted([min(a, b), max(a, b)] for a, b in drawn.edges),
    }


def _facts(run: RunDocuments, n: int, names: Sequence[str] | None) -> list[list[str]]:
    """What was trained, for reading."""
    settings, privacy = run.experiment, run.privacy
    rows = "" if settings.data.rows is None else f", at most {settings.data.rows} records a node"
    clipped, member, scores = settings.training.clip, run.member, run.result.get("held_out")
    data = f"{settings.data.name}, partitioned {settings.data.partition}{rows}"
    return [
        ["algorithm", privacy.algorithm],
        ["graph and weights", f"{privacy.topology}, {n} nodes"],
        ["data", data if member is None else f"the table of {member}; other members have their own"],
        ["model", "that of another framework" if settings.data.columns == ELSEWHERE else settings.model.name],
        ["training", f"{privacy.rounds} rounds, batches {settings.training.batch}"],
        ["clipping", clipped if settings.training.bound is None else f"{clipped} to norm {settings.training.bound:g}"],
        *([["class weights", _weights_text(weights)]] if (weights := settings.training.class_weights) else []),
        ["noise", noise_text(privacy)],
        *_each_node(run, n, names),
        *map(list, {**quality_rows(scores), **confusion_rows(scores), **baseline_rows(run.baselines, scores)}.items()),
        ["seed", f"{settings.seed}, public"],
        ["noise key", _noise_key_sentence(settings)],
        *([] if member is None else _heard(run.result)),
        *([name, text] for name, text in spent_text(run.result).items()),
        ["folder", str(run.folder)],
    ]


def _weights_text(weights: Document) -> str:
    return f"{', '.join(f'{name} {weight:g}' for name, weight in weights.items())}, public"


def _heard(result: Document) -> list[list[str]]:
    """Of a member: whom it heard, and in how many rounds it knew its secure sum."""
    heard = [["heard", heard_text(result["heard"])]] if "heard" in result else []
    return [*heard, *([name, text] for name, text in sums_text(result).items())]


def _each_node(run: RunDocuments, n: int, names: Sequence[str] | None) -> list[list[str]]:
    """Records and noise of each node, where nodes differ in them and are few."""
    records, privacy = run.experiment.data.shards or {}, run.privacy
    if n > LISTED_NODES or not (records or isinstance(privacy.sensitivity, list) or isinstance(privacy.sigma, list)):
        return []
    found = []
    for node in range(n):
        name, noise = str(node) if names is None else names[node], privacy.noise_of(node)
        about = [f"{records[name]:,} records"] if name in records else []
        about += [] if noise is None else [f"noise {noise:.4g}"]
        found.append(f"{name}: {', '.join(about)}")
    return [["each node", "; ".join(found)]] if any(not one.endswith(": ") for one in found) else []


def _noise_key_sentence(settings: Experiment) -> str:
    """Who knows the key of noise and batches; the key itself is never shown."""
    if settings.noise == "secret":
        return AssumptionKind.SECRET_NOISE.value
    if settings.noise_key is None:
        return "made for this run alone, and kept by whoever ran it"
    return AssumptionKind.REPRODUCIBLE_RUN.value


def _stored_attacks(run: RunDocuments, figure: PageFigure) -> dict[str, Document]:
    """The attacks on a run that a figure of the page shows, by name."""
    names = (attack.name for attack in page_attacks(figure))
    return {name: run.attacks[name] for name in names if name in run.attacks}


def _membership_figures(found: Document) -> Document:
    figures = ("method", "auc", "tpr_at_0_1_percent", "tpr_at_1_percent", "advantage", "confidence", "interval")
    counts = ("victims", "pairs", "members", "others", "attacker")
    return {**{key: found[key] for key in (*figures, *counts)}, "roc": found.get("roc")}


def _audit(found: Document, names: Sequence[str] | None) -> list[Document]:
    return [
        {
            "canaries": one["canaries"], "rounds": one["rounds"], "view": adversary(read_view(claim["view"]), names),
            "kind": claim["kind"],
            "found": round_down(float(one["audit"]["epsilon"])), "claimed": rounded(float(claim["epsilon"])),
            "verdict": claim["verdict"], "confidence": one["audit"]["confidence"],
        }
        for one in found.get("audits", []) for claim in one["claims"]
    ]  # fmt: skip


def _missing(run: RunDocuments, graph: Document, pairs: bool) -> dict[str, list[str]]:
    """What a figure says in its place, with the command that would make it; by the name that its script asks for."""
    found = {**_missing_attack(run), **_missing_pairs(run, pairs)}
    if not run.privacy.over_rounds:
        found["over_rounds"] = [NO_EPSILON_OVER_ROUNDS, ""]
    if "why" in graph:
        found["graph"] = [graph["why"], ""]
    return found


def _missing_attack(run: RunDocuments) -> dict[str, list[str]]:
    attacks = _stored_attacks(run, PageFigure.ROC_CURVE)
    if run.member is not None:
        return {"attack": [MEMBERS_RECORD_NOTHING, ""]}
    if not attacks and run.experiment.record.attackers in ("none", []):
        return {"attack": [NOT_RECORDED, _run_again(run, "record.attackers=all", f"{run.name}-recorded")]}
    if not attacks:
        return {"attack": [NO_ATTACK, f"sotto attack {run.folder}"]}
    if not any(found.get("roc") for found in attacks.values()):
        return {"roc": [NO_CURVE, f"sotto attack {run.folder}"]}
    return {}


def _missing_pairs(run: RunDocuments, pairs: bool) -> dict[str, list[str]]:
    if not run.privacy.views:
        return {"pairs": [headline_sentence(run.privacy), ""]}
    if not run.privacy.node_views and run.member is not None:
        return {"pairs": [NO_MEMBERS, ""]}
    if not run.privacy.node_views:
        return {"pairs": [NO_NODES, _run_again(run, "privacy.attackers=all", f"{run.name}-all-nodes")]}
    if not pairs:
        return {"pairs": ["Pairs of this run were left out to keep the page small.", f"sotto compare {run.folder}"]}
    return {}


def _run_again(run: RunDocuments, setting: str, name: str) -> str:
    return f"sotto run {run.folder}/config.json --set {setting} --set name={name}"
