"""One run, as the page tells it: what was trained, what was promised, who can learn what, how attacks did."""

from __future__ import annotations

from sottovoce.config import Document
from sottovoce.core.graphs import Graph
from sottovoce.core.topologies import Topology
from sottovoce.errors import InputError
from sottovoce.report.pairwise_leakage import leaks, percent, rounded
from sottovoce.report.told import MEMBERSHIP, Told, guess_of
from sottovoce.report.wording import adversary, not_covered, protects, verdict
from sottovoce.run.build_topology import topology_of

NODES, EDGES = 400, 4000
"""Graphs with more are not drawn."""

NO_ATTACK = "Nobody has attacked this run yet."
NOT_RECORDED = (
    "What nodes received was not recorded in this run, so it cannot be attacked. Run it again with recording:"
)
NO_NODES = "Which single node can learn how much was not accounted for in this run. Run it again with all nodes:"
NO_STAGES = "Epsilon was told for the last round only: the run is long or has many nodes, or nothing is proven for it."
NO_CURVE = "The attack was made before curves were kept. Make it again:"


def story(run: Told, *, pairs: bool = True) -> Document:
    """All that a page shows of one run by itself. Without `pairs`, who learns what from whom is left out."""
    net = _topology(run)
    n = net.n if isinstance(net, Topology) else _victims(run.privacy)
    graph = _graph(net)
    return {
        **run.ending(),
        "n": n,
        "epsilon": None if run.privacy["headline"] is None else rounded(run.privacy["headline"]["epsilon"]),
        "facts": _facts(run, n),
        "verdict": verdict(run.privacy),
        "promises": promises(run.privacy),
        "protects": protects(run.privacy["adjacency"], "replace"),
        "bound": _bound(run.privacy),
        "convexity": run.privacy["convexity"],
        "not_covered": not_covered(run),
        "over_rounds": [{**one, "epsilon": rounded(one["epsilon"])} for one in run.privacy.get("over_rounds", [])],
        "graph": graph,
        "leaks": leaks(run.privacy, n) if pairs else None,
        "attacks": {kind: _attack(run.attacks[kind]) for kind in MEMBERSHIP if kind in run.attacks},
        "solved": run.attacks.get("reconstruction"),
        "audit": _audit(run.audit),
        "missing": _missing(run, graph, pairs),
    }


def promises(privacy: Document) -> list[Document]:
    """The table of guarantees for whoever hears everything, or a coalition: with sampling, then kind by kind."""
    rows = [] if privacy["sampled"] is None else [privacy["sampled"]]
    for view in privacy["views"]:
        if not view["view"].startswith("node:"):
            rows += [{"view": view["view"], "change": "replace", **one} for one in _worst_of_kinds(view["guarantees"])]
    return [
        {
            "adversary": adversary(row["view"]), "protects": protects(privacy["adjacency"], row["change"]),
            "epsilon": rounded(row["epsilon"]), "guess": percent(guess_of(row, privacy["delta"])),
            "kind": row["kind"], "proven": bool(row["proven_for_training"]), "assumptions": row["assumptions"],
        }
        for row in rows
    ]  # fmt: skip


def _bound(privacy: Document) -> str:
    most = privacy["sensitivity"]
    if float(most) == float("inf"):
        return "Gradients are not clipped: Delta, by which a change of data moves a gradient, has no limit."
    return f"Delta is {most:.4g} here: clipping ({privacy['clipping']}) sees to it."


def _worst_of_kinds(guarantees: list[Document]) -> list[Document]:
    kinds = dict.fromkeys(one["kind"] for one in guarantees)
    return [
        max((one for one in guarantees if one["kind"] == kind), key=lambda one: float(one["epsilon"])) for kind in kinds
    ]


def _victims(privacy: Document) -> int:
    found = [one["victim"] for view in privacy["views"] for one in view["guarantees"]]
    return 1 + max(found, default=-1)


def _topology(run: Told) -> Topology | str:
    """The run's topology, or why it is not there any more."""
    try:
        return topology_of(run.experiment, None)
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
    labels = None if source.labels is None else [str(label) for label in source.labels]
    note = "" if net.static else "Not every edge is used in every round."
    return {**_placed(source), "labels": labels, "directed": source.directed, "note": note}


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


def _facts(run: Told, n: int) -> list[list[str]]:
    """What was trained, for reading."""
    settings, privacy = run.experiment, run.privacy
    rows = "" if settings.data.rows is None else f", at most {settings.data.rows} records a node"
    sigma = privacy["sigma"]
    size = f"from {min(sigma):.4g} to {max(sigma):.4g}" if isinstance(sigma, list) else f"{sigma or 0:.4g}"
    noise = "none" if sigma is None else f"sigma {size} times what one change of data can do"
    clipped = settings.training.clip
    return [
        ["algorithm", privacy["algorithm"]],
        ["graph and weights", f"{privacy['topology']}, {n} nodes"],
        ["data", f"{settings.data.name}, dealt {settings.data.partition}{rows}"],
        ["model", settings.model.name],
        ["training", f"{privacy['rounds']} rounds, batches {settings.training.batch}"],
        ["clipping", clipped if settings.training.bound is None else f"{clipped} to norm {settings.training.bound:g}"],
        ["noise", noise],
        ["seed", str(settings.seed)],
        ["folder", str(run.folder)],
    ]


def _attack(found: Document) -> Document:
    kept = ("method", "auc", "tpr_at_0_1_percent", "tpr_at_1_percent", "advantage", "confidence", "interval")
    counts = {key: found[key] for key in ("victims", "pairs", "members", "others", "attacker")}
    return {**{key: found[key] for key in kept}, **counts, "roc": found.get("roc")}


def _audit(found: Document) -> list[Document]:
    return [
        {
            "canaries": one["canaries"], "rounds": one["rounds"], "view": claim["view"], "kind": claim["kind"],
            "found": one["audit"]["epsilon"], "claimed": rounded(claim["epsilon"]), "verdict": claim["verdict"],
            "confidence": one["audit"]["confidence"],
        }
        for one in found.get("audits", []) for claim in one["claims"]
    ]  # fmt: skip


def _missing(run: Told, graph: Document, pairs: bool) -> Document:
    """What a figure says in its place, with the command that would make it."""
    again = f"sotto run {run.folder}/config.json"
    out: dict[str, list[str]] = {}
    if not any(kind in run.attacks for kind in MEMBERSHIP):
        if run.experiment.record.attackers in ("none", []):
            out["attack"] = [NOT_RECORDED, f"{again} --set record.attackers=all --set name={run.name}-recorded"]
        else:
            out["attack"] = [NO_ATTACK, f"sotto attack {run.folder}"]
    elif not any(run.attacks[kind].get("roc") for kind in MEMBERSHIP if kind in run.attacks):
        out["roc"] = [NO_CURVE, f"sotto attack {run.folder}"]
    if not any(view["view"].startswith("node:") for view in run.privacy["views"]):
        out["pairs"] = [NO_NODES, f"{again} --set privacy.attackers=all --set name={run.name}-all-nodes"]
        if not run.privacy["views"]:
            out["pairs"] = [verdict(run.privacy), ""]
    elif not pairs:
        out["pairs"] = ["Pairs of this run were left out to keep the page small.", f"sotto compare {run.folder}"]
    if not run.privacy.get("over_rounds"):
        out["over_rounds"] = [NO_STAGES, ""]
    if "why" in graph:
        out["graph"] = [graph["why"], ""]
    return out
