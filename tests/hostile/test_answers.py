"""Answers that misled once: each test asks the question again, and compares with what plain code finds."""

from __future__ import annotations

import copy
import json
import re
import shutil
import tomllib
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
import torch
import typer
from dp_accounting import pld
from torch import nn
from torch.nn.utils import parametrize

from sottovoce import Graph, InputError, account, algorithm, simulate, trace, weigh
from sottovoce.cli.app import app, load_commands
from sottovoce.core.graphs import graph
from sottovoce.learning import models
from sottovoce.learning.datasets import Dataset, from_arrays
from sottovoce.learning.engines import Stack
from sottovoce.learning.partitioning import partition
from sottovoce.learning.tasks import Task, task
from sottovoce.planning.question import Question
from sottovoce.privacy import views
from sottovoce.report.page import write_page_of
from sottovoce.report.quality import OF_MODEL
from sottovoce.report.wording import adversary
from sottovoce.run.build import build_run
from sottovoce.run.execute import run_experiment
from sottovoce.run.finished_run import open_run
from sottovoce.run.privacy_document import PrivacyDocument
from sottovoce.support.config import parse_experiment
from tests.browser import inside, questions
from tests.run.test_privacy_report import rows

# --- models that look like logistic regression and are not ----------------------------------------------------------


class Squares(nn.Module):
    """A parametrisation that squares what it is given."""

    def forward(self, weight):
        return weight.square()


def squared_outputs(*call):
    return call[-1].square()


def with_forward_hook() -> nn.Module:
    module = nn.Linear(3, 1)
    module.register_forward_hook(squared_outputs)
    return module


def with_hook_on_the_container() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 1))
    module.register_forward_hook(squared_outputs)
    return module


def with_forward_pre_hook() -> nn.Module:
    module = nn.Linear(3, 1)
    module.register_forward_pre_hook(lambda _, inputs: (inputs[0] ** 2,))
    return module


def with_backward_hook() -> nn.Module:
    module = nn.Linear(3, 1)
    module.register_full_backward_hook(lambda _, inputs, outputs: None)
    return module


def with_backward_pre_hook() -> nn.Module:
    module = nn.Linear(3, 1)
    module.register_full_backward_pre_hook(lambda _, outputs: (outputs[0] * 100,))
    return module


def with_forward_of_its_own() -> nn.Module:
    module = nn.Linear(3, 1)
    module.forward = lambda x: nn.functional.linear(x, module.weight, module.bias) ** 2
    return module


def with_call_of_its_own() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 1))
    module._call_impl = lambda x: module[0](x) ** 2
    return module


def parametrised() -> nn.Module:
    module = nn.Linear(3, 1)
    parametrize.register_parametrization(module, "weight", Squares())
    return module


DISGUISED = [
    with_forward_hook, with_hook_on_the_container, with_forward_pre_hook, with_backward_hook, with_backward_pre_hook,
    with_forward_of_its_own, with_call_of_its_own, parametrised,
]  # fmt: skip


def logistic_task(module: nn.Module) -> Task:
    data = rows(60)
    return task(data, partition(data, 5), models.wrap_module(module, "logistic", name="logistic"))


@pytest.mark.parametrize("make", DISGUISED)
def test_only_plain_modules_are_taken_for_logistic_regression(make):
    assert logistic_task(nn.Sequential(nn.Linear(3, 1))).convex_model == "logistic"
    assert logistic_task(make()).convex_model is None


@pytest.mark.parametrize(
    "register", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]
)
def test_hooks_on_all_modules_count_too(register):
    plain = logistic_task(nn.Linear(3, 1))
    handle = getattr(nn.modules.module, f"register_module_{register}")(lambda *call: None)
    try:
        assert plain.convex_model is None
    finally:
        handle.remove()
    assert plain.convex_model == "logistic"


def test_a_hooked_layer_does_expand_and_trains_as_it_computes():
    """Two models move apart by a step that logistic regression allows, and the engine's gradient is autograd's."""
    module = with_forward_hook()
    job = logistic_task(module)
    inputs, targets = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([1.0])
    near, far = (torch.tensor([[weight, 0.0, 0.0, 0.0]]) for weight in (0.05, -0.05))
    stack = Stack(inputs.expand(1, 1, 3), targets.expand(1, 1), torch.ones(1, 1))
    step = {point: point - 4.0 * job.engine.total(point, stack) for point in (near, far)}
    assert torch.linalg.norm(step[near] - step[far]) > 2 * torch.linalg.norm(near - far)
    own = copy.deepcopy(module)
    with torch.no_grad():
        own.weight.copy_(near[:, :3])
        own.bias.zero_()
    nn.functional.binary_cross_entropy_with_logits(own(inputs).squeeze(-1), targets).backward()
    by_autograd = torch.cat([own.weight.grad.flatten(), own.bias.grad])
    assert torch.allclose(job.engine.total(near, stack)[0], by_autograd, atol=1e-6)


# --- one final figure, in every table ------------------------------------------------------------------------------

SWEEP = """
name = "study"
noise_key = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
seeds = [0, 1]
topology.graph = "ring:4"
training = {rounds = 40, batch = "full", clip = "per-example", bound = 1.0}
algorithm = {sigma = 0.5, step_size = 0.5}
data.rows = 20
metrics.every = 1
privacy.attackers = "none"
grid = {"algorithm.sigma" = [0.5, 5.0]}
"""


def measured(folder: Path, last: int) -> float:
    """The accuracy of the average model, read from the lines of a run: the mean over its last evaluations."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return float(np.mean([line["accuracy"]["average"] for line in lines[-last:]]))


@pytest.mark.parametrize(("setting", "last"), [("metrics.every=1", 1), ("metrics.final_rounds=7", 7)])
def test_tables_plots_and_comparisons_have_the_same_final_figure(setting, last, sotto, tmp_path, monkeypatch):
    """That of the model that comes out of the run, unless a mean over last rounds is asked for, and then it is said."""
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(SWEEP)
    code, out, err = sotto(f"run study.toml --json --jobs 1 --set {setting}")
    assert code == 0, err
    compared = json.loads(sotto("compare runs/study --out page.html --json")[1])["runs"]
    for number, row in enumerate(json.loads(out)["runs"]):
        folders = [Path(f"runs/study/sigma={(0.5, 5.0)[number]},seed={seed}") for seed in (0, 1)]
        found = [measured(folder, last) for folder in folders]
        assert row["average_model"]["mean"] == pytest.approx(np.mean(found), abs=1e-12)
        own = {one["folder"]: one["average_model"] for one in compared}
        assert [own[str(folder)] for folder in folders] == pytest.approx(found, abs=1e-12)
        page = inside(Path("page.html"))
        assert page["series"][number]["final"] == pytest.approx(np.mean(found), abs=1e-12)
        (run,) = (one for one in page["runs"] if one["folder"] == str(folders[0]))
        plain = questions(run)[OF_MODEL]
        assert f"is right for {100 * found[0]:.1f} % (test accuracy {found[0]:.3f}" in plain
        assert ("mean over the last 7 rounds" in plain) == (last == 7)
    words = "mean over the last 7 rounds" if last == 7 else "after the last round"
    assert f"Test accuracy and loss: {words}, in the mean over 2 seeds" in Path("runs/study/results.md").read_text()
    assert page["final_rounds"] == words
    told = [sotto(command)[1] for command in ("compare runs/study", f"run study.toml --resume --set {setting}")]
    assert all((f"Test figures: {words}." in out) == (last == 7) for out in told)


@pytest.mark.parametrize("last", [1, 5])
def test_a_run_prints_what_a_comparison_prints(last, sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(re.sub("seeds.*|grid.*", "", SWEEP))
    _, out, _ = sotto(f"run study.toml --baselines --set metrics.final_rounds={last}")
    (printed,) = re.findall(r"accuracy of the average model +([0-9.]+)", out)
    assert float(printed) == pytest.approx(measured(Path("runs/study"), last), abs=1e-4)
    assert ("mean over the last 5 rounds" in out) == (last == 5)
    cost = questions(inside(Path("runs/study/report.html"))["runs"][0])[OF_MODEL]
    after = f"After the last round it is right for {100 * measured(Path('runs/study'), 1):.1f} %."
    assert (after in cost) == (last == 5), cost


# --- edge lists with headings ---------------------------------------------------------------------------------------

HOSPITALS = ["Mercy,Hill", "Hill,Charite", "Charite,Mercy"]


@pytest.mark.parametrize("heading", ["Hospital A,Hospital B", "from to", "source,target"])
@pytest.mark.parametrize("edges", [HOSPITALS, ["0,1", "1,2"], ["Mercy,0", "0,Hill"]], ids=" ".join)
@pytest.mark.parametrize("comment", ["", "# hospitals\n\n"])
def test_a_heading_is_never_an_edge(heading, edges, comment, tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text(comment + "\n".join([heading, *edges]))
    with pytest.raises(InputError) as refusal:
        graph(f"file:{path}")
    assert f"line {3 if comment else 1}" in str(refusal.value)
    path.write_text("\n".join(["# " + heading, *edges]))
    assert graph(f"file:{path}").edges == len(edges)


def test_no_edge_is_dropped_for_a_heading(tmp_path):
    """Every graph can be written: with the first edge twice where its ends have no other neighbours."""
    path = tmp_path / "edges.csv"
    path.write_text("\n".join(["source,target", "source,target", *HOSPITALS]))
    assert {str(label) for label in graph(f"file:{path}").labels} == {"source", "target", "Mercy", "Hill", "Charite"}
    path.write_text("Mercy,Hill")
    assert graph(f"file:{path}").edges == 1


def test_the_mark_of_a_spreadsheet_is_no_part_of_a_name(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("\n".join(HOSPITALS), encoding="utf-8-sig")
    assert sorted(map(str, graph(f"file:{path}").labels)) == ["Charite", "Hill", "Mercy"]


# --- groups and nodes of the same names ------------------------------------------------------------------------------

NAMES = ["Hill", "Charite", "Mercy", "Bellevue", "Anna", "Zion"]


def hospitals(names=NAMES) -> Dataset:
    """Rows whose first feature says which hospital they come from."""
    whose = np.arange(120) % len(names)
    inputs = np.column_stack([whose, np.ones(120), np.arange(120)]).astype(np.float32)
    targets = np.array(["ill", "well"])[np.arange(120) // len(names) % 2]
    return from_arrays(inputs, targets, groups=np.array(names)[whose], name="hospitals")


def ring_of(names) -> str:
    return "\n".join(f"{one},{other}" for one, other in zip(names, [*names[1:], names[0]], strict=True))


@pytest.mark.parametrize("names", [NAMES, [str(number) for number in (30, 4, 1, 200, 7, 11)], list("012345")], ids=str)
def test_a_node_has_the_data_of_the_group_of_its_name(names, tmp_path):
    path, data = tmp_path / "edges.csv", hospitals(names)
    path.write_text(ring_of(names))
    np.savez(
        tmp_path / "data.npz", inputs=data.inputs, targets=data.targets, groups=np.array(data.group_names)[data.groups],
        test_inputs=data.test_inputs, test_targets=data.test_targets,
    )  # fmt: skip
    for seed in range(5):
        settings = {
            "name": "named", "seed": seed, "topology": {"graph": f"file:{path}"}, "training": {"rounds": 1},
            "data": {"name": f"file:{tmp_path / 'data.npz'}", "partition": "user"}, "model": {"name": "logistic"},
            "algorithm": {"sigma": 1.0, "step_size": 0.1},
        }  # fmt: skip
        run = build_run(parse_experiment(settings))
        held = [set(run.task.dataset.inputs[rows][:, 0]) for rows in run.task.shards.indices]
        assert held == [{float(names.index(str(label)))} for label in run.topology.graph.labels]


@pytest.mark.parametrize("names", [["Mercy", "Hill", "Charite", "Bellevue", "Anna", "Bethel"], NAMES[:5]], ids=len)
def test_names_of_which_only_some_agree_are_refused(names):
    with pytest.raises(InputError, match="a group and a node called 'Anna'"):
        partition(hospitals(), len(names), "user", node_names=names)


def test_other_names_and_other_partitions_are_left_alone():
    data = hospitals()
    for how, node_names in (("user", list("abcdef")), ("user", range(6)), ("iid", NAMES)):
        shards, plain = partition(data, 6, how, node_names=node_names), partition(data, 6, how)
        assert all((one == other).all() for one, other in zip(shards.indices, plain.indices, strict=True))


def test_a_simulation_of_hospitals_with_each_others_data_is_refused():
    data, net = (
        hospitals(),
        weigh(Graph.from_edges([line.split(",") for line in ring_of(NAMES).splitlines()]), "metropolis"),
    )
    built = algorithm("dp-d-sgd", sigma=1.0, step_size=0.1)
    softmax = models.model("softmax", data)
    with pytest.raises(InputError, match="holds rows of"):
        simulate(built, net, task(data, partition(data, 6, "user", seed=3), softmax), rounds=1)
    by_name = partition(data, 6, "user", seed=3, node_names=net.graph.labels)
    assert simulate(built, net, task(data, by_name, softmax), rounds=1).models.shape[0] == 6


# --- pages and commands that answer alike ----------------------------------------------------------------------------

SMALL = """
name = "small"
noise_key = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
topology.graph = "file:edges.csv"
training = {rounds = 3, batch = "full", clip = "per-example", bound = 1.0}
algorithm = {name = "dp-d-sgd", sigma = 2.0, step_size = 0.5}
data.rows = 30
record = {attackers = "all", every = 1}
"""
DECOR = re.sub("algorithm = .*", 'algorithm = {name = "decor", sigma = 2.0, sigma_pair = 4.0, step_size = 0.5}', SMALL)


@pytest.fixture(scope="module")
def named_run(tmp_path_factory):
    """The folder of a finished run of six hospitals, in a folder with the list of their edges."""
    place = tmp_path_factory.mktemp("named")
    (place / "edges.csv").write_text(ring_of(NAMES))
    settings = tomllib.loads(SMALL) | {"topology": {"graph": f"file:{place / 'edges.csv'}"}}
    run_experiment(parse_experiment(settings), place / "runs" / "small")
    write_page_of(place / "runs" / "small", again=False)
    return place / "runs" / "small"


@pytest.fixture
def at_named_run(named_run, tmp_path, monkeypatch):
    monkeypatch.chdir(named_run.parents[1])
    return shutil.copytree(named_run, tmp_path / "small")


def test_a_pooled_attack_is_on_the_page(at_named_run, sotto):
    assert "attack" in inside(at_named_run / "report.html")["runs"][0]["missing"]
    assert sotto(f"attack {at_named_run} --attack pooled --json")[0] == 0
    stored = json.loads((at_named_run / "attack.json").read_text())["pooled"]
    (shown,) = inside(at_named_run / "report.html")["runs"]
    assert "attack" not in shown["missing"]
    assert (shown["attack"]["attack"], shown["attack"]["value"]) == ("pooled", stored["auc"]["value"])
    assert shown["attacks"]["pooled"]["roc"] == stored["roc"]


@pytest.mark.parametrize("settings", [SMALL, DECOR], ids=["dp-d-sgd", "decor"])
def test_sentence_and_card_show_the_same_guess(settings, tmp_path):
    """The card is drawn from `guess`; on a page of DECOR it had the figure of whoever knows no secrets."""
    document = tomllib.loads(settings) | {"topology": {"graph": "ring:6"}}
    run_experiment(parse_experiment(document), tmp_path / "run")
    write_page_of(tmp_path / "run", again=False)
    (shown,) = inside(tmp_path / "run" / "report.html")["runs"]
    (said,) = re.findall(r"right at most ([0-9.]+) %", shown["verdict"])
    assert shown["guess"] == float(said)
    script = (tmp_path / "run" / "report.html").read_text()
    assert "accuracyText(one.guess)" in script.split("function drawSummary")[1].split("\nfunction ")[0]


def test_lists_of_attackers_take_names(tmp_path):
    (tmp_path / "edges.csv").write_text(ring_of(NAMES))
    settings = tomllib.loads(SMALL) | {
        "topology": {"graph": f"file:{tmp_path / 'edges.csv'}"}, "privacy": {"attackers": ["Mercy", "Hill"]},
        "record": {"attackers": ["Mercy"]},
    }  # fmt: skip
    run_experiment(parse_experiment(settings), tmp_path / "run")
    privacy = PrivacyDocument.read(json.loads((tmp_path / "run" / "privacy.json").read_text()))
    assert {NAMES[node] for node in privacy.node_views} == {"Mercy", "Hill"}
    assert open_run(tmp_path / "run").messages.attackers == (NODE,)
    with pytest.raises(InputError, match="no node called 'Marcy'"):
        run_experiment(parse_experiment(settings | {"privacy": {"attackers": ["Marcy"]}}), tmp_path / "other")


@pytest.mark.parametrize(("asked", "seen"), [("none", "average"), ("all", "all")])
def test_a_run_has_figures_of_single_nodes_with_its_final_models_and_without(asked, seen, tmp_path):
    document = tomllib.loads(SMALL) | {"topology": {"graph": "ring:7"}, "privacy": {"and_final_models": asked}}
    run_experiment(parse_experiment(document), tmp_path / "run")
    write_page_of(tmp_path / "run", again=False)
    stored = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert (stored["and_final_models"], stored["covers"]) == (asked, {"everyone": True, "colluders": "any"})
    (shown,) = inside(tmp_path / "run" / "report.html")["runs"]
    for node in range(7):
        without, published = (
            {one["victim"]: one for view in stored["views"] for one in view["guarantees"]
             if view["view"].split(" and ")[0] == f"node:{node}" and one["kind"] == "fixed-streams"
             and one["final_models"] == which}
            for which in ("none", seen)
        )  # fmt: skip
        assert all(published[victim]["epsilon"] >= one["epsilon"] for victim, one in without.items())
        far = (node + 3) % 7
        assert published[far]["epsilon"] > 1.3 * without[far]["epsilon"]
        lines = [shown["leaks"][key]["fixed-streams"]["epsilon"][node][far] for key in ("ways", "with_models")]
        for line, figure in zip(lines, (without, published), strict=True):
            assert line == pytest.approx(figure[far]["epsilon"], rel=2e-3)
    assert shown["leaks"]["with_models"]["fixed-streams"]["models"][1].startswith("It covers")
    assert "any number of nodes together" in shown["verdict"]


def options_of(command: str) -> dict[str, object]:
    load_commands()
    found = typer.main.get_command(app).commands[command]
    return {option.name: option.default for option in found.params}


@pytest.mark.parametrize(
    "name", ["rounds", "adjacency", "delta", "view", "participation", "convex", "weights", "and_final_models"]
)
def test_an_option_has_one_default(name):
    defaults = {command: options_of(command)[name] for command in ("account", "calibrate", "plan")}
    assert len(set(defaults.values())) == 1, defaults


NODE = NAMES.index("Mercy")


@pytest.mark.parametrize(
    "line",
    [
        "plan --graph file:edges.csv --epsilon 2 --records 20 --rounds 3 --json --view node:{}",
        "account --graph file:edges.csv --rounds 3 --json --view node:{}",
        "account --graph file:edges.csv --rounds 3 --json --view node:Hill --victim {}",
        "calibrate --graph file:edges.csv --rounds 3 --epsilon 2 --json --view coalition:{},Hill",
        "account --graph file:edges.csv --rounds 3 --json --view coalition:any-2 --victim {}",
        "attack runs/small --json --attacker {}",
        "attack runs/small --json --attack pooled --view coalition:{},Hill",
    ],
)
def test_a_name_is_as_good_as_a_number(line, at_named_run, sotto):
    (code, by_name, err), by_number = sotto(line.format("Mercy")), sotto(line.format(NODE))
    assert (code, err) == (0, by_number[2])
    documents = [json.loads(re.sub("coalition:Mercy", f"coalition:{NODE}", text)) for text in (by_name, by_number[1])]
    for document in documents:
        document.pop("seconds", None)
    assert documents[0] == documents[1]
    code, _, err = sotto(line.format("Nowhere"))
    assert (code, "no node called 'Nowhere'" in err) == (2, True)


def test_a_run_is_calibrated_for_a_name(at_named_run):
    settings = tomllib.loads(SMALL) | {"algorithm": {"step_size": 0.5}}
    by_name, by_number = (
        build_run(parse_experiment(settings | {"privacy": {"epsilon": 2.0, "view": f"node:{name}"}}))
        for name in ("Mercy", NODE)
    )
    assert by_name.algorithm.noise.sigma == by_number.algorithm.noise.sigma


def test_python_takes_names(at_named_run):
    system = trace(algorithm("dp-d-sgd", sigma=2.0), weigh("file:edges.csv", "metropolis"), rounds=3)
    by_name, by_number = (account(system, f"node:{name}") for name in ("Mercy", NODE))
    assert by_name.guarantees == by_number.guarantees
    assert str(by_name.view) == f"node:{NODE}"
    question = {"graph": system.topology.graph, "rounds": 3, "epsilon": 2.0, "delta": 1e-5, "records": 9}
    assert Question(**question, dimension=5, view="node:Mercy").view == f"node:{NODE}"


def test_pages_call_nodes_by_their_names(at_named_run):
    (shown,) = inside(at_named_run / "report.html")["runs"]
    assert shown["labels"] == NAMES
    both = adversary(views.coalition(NODE, 0), NAMES)
    assert both.startswith(f"nodes 0 (Hill) and {NODE} (Mercy) together")
    _, scripts = (at_named_run / "report.html").read_text().split("// What all figures share")
    assert not re.search(r"String\((attackers\[a\]|one\.node|i)\)|about \$\{i\}|node \$\{solved", scripts)


# --- one definition of sigma, and that of Opacus beside it -----------------------------------------------------------


@pytest.mark.parametrize("batch", ["full", "cycle:2x3"])
def test_the_multiplier_that_opacus_users_know_gives_the_printed_epsilon(batch, sotto, tmp_path, monkeypatch):
    """Noise of m times the bound on a sum that a replaced record moves by twice the bound, as dp-accounting counts."""
    monkeypatch.chdir(tmp_path)
    Path("try.toml").write_text(SMALL.replace("file:edges.csv", "ring:4").replace("rounds = 3", "rounds = 6"))
    code, out, err = sotto("run try.toml --set", f"training.batch={batch}")
    assert code == 0, err
    (multiplier,) = re.findall(r"noise multiplier as in Opacus: ([0-9.]+)", out)
    (epsilon,) = re.findall(r"epsilon +([0-9.]+) at delta 1e-05", out)
    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(float(multiplier) / 2), 6 if batch == "full" else 2)
    assert float(epsilon) == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    facts = dict(inside(Path("runs/small/report.html"))["runs"][0]["facts"])
    assert f"noise multiplier as in Opacus: {multiplier}" in facts["noise"]


def test_sigma_has_one_definition():
    """No page or help calls sigma itself the noise multiplier."""
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "sottovoce" / "cli").glob("*.py")]
    wrong = re.compile(r"sigma`? \(?(is|=)? ?the noise multiplier|[Nn]oise multiplier: standard", re.IGNORECASE)
    assert [page.name for page in pages if wrong.search(page.read_text(encoding="utf-8"))] == []
