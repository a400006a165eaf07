"""The report page: its numbers are those of the run's files, and it works in a real browser, offline and from disk."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from sottovoce import InputError
from sottovoce.cli.app import app, load_commands
from sottovoce.privacy import views
from sottovoce.privacy.covering_views import NAMED_ONLY, Coverage
from sottovoce.privacy.gaussian_dp import guessing_accuracy_bound
from sottovoce.report.page import write_page, write_page_of
from sottovoce.report.pairwise_leakage import PAIRS
from sottovoce.report.plain_words import _by_victim, plain_words
from sottovoce.report.quality import OF_MODEL, OF_NOISE
from sottovoce.report.wording import KINDS, percent, rounded
from sottovoce.run.build import build_run
from sottovoce.run.execute import run_experiment
from sottovoce.run.privacy_report import report_privacy
from sottovoce.run.run_documents import read_runs
from sottovoce.support.config import parse_experiment
from tests.browser import inside, open_page, questions

AGAIN = "sotto run {}/config.json --set "
EVIL = "</script><script>window.bad=1</script>"
COMMON = {
    "noise_key": 16 * "5a", "data": {"rows": 20}, "topology": {"graph": "erdos-renyi:8,p=0.4,seed=3"},
    "training": {"rounds": 12, "batch": "cycle:4x3", "clip": "per-example", "bound": 1.0},
    "algorithm": {"name": "dp-d-sgd", "sigma": 2.0, "step_size": 0.5}, "metrics": {"every": 3},
    "record": {"attackers": "all", "every": 6}, "privacy": {"attackers": "all"},
}  # fmt: skip
RUNS = {
    "noisy": {},
    "convex": {"data": {"name": "breast-cancer", "rows": 20, "unit_norm": True}, "model": {"name": "logistic"}},
    "plain": {"algorithm": {"name": "d-psgd", "step_size": 0.5}},
    "mute": {"record": {}, "privacy": {"attackers": "none"}, "seed": 1},
    "unclipped": {"training": {"rounds": 12}},
    "fresh": {"topology": {"graph": "erdos-renyi:8,p=0.5", "fresh": True}, "privacy": {"attackers": [2]}},
    "poisson": {"training": COMMON["training"] | {"batch": "poisson:0.5", "rounds": 3}, "privacy": {"attackers": [0]}},
    "zip-dl": {"algorithm": {"name": "zip-dl", "sigma": 2.0, "step_size": 0.5}, "privacy": {"attackers": [1]}},
}  # fmt: skip


def attack(folder: Path) -> None:
    load_commands()
    typer.main.get_command(app)(["--quiet", "attack", str(folder)], standalone_mode=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """`runs("noisy")` is the folder of a finished run; the first of them was attacked."""
    out = tmp_path_factory.mktemp("runs")

    def find(name: str) -> Path:
        if not (out / name).exists():
            run_experiment(parse_experiment(COMMON | {"name": name} | RUNS[name]), out / name)
            if name == "noisy":
                attack(out / name)
        return out / name

    return find


def stored(folder: Path, name: str = "privacy.json") -> dict:
    return json.loads((folder / name).read_text())


def shown_rightly(shown, value) -> bool:
    """Rounded up, by less than one in a thousand."""
    value = float(value)
    return shown == "inf" if math.isinf(value) else value <= shown <= value * 1.0011


# --- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["noisy", "convex", "plain", "zip-dl", "fresh"])
def test_pairs_are_those_of_the_promise(name, runs, tmp_path):
    found = inside(write_page(tmp_path / "page.html", [runs(name)]))["runs"][0]["leaks"]
    every = stored(runs(name))["views"]
    views = {view["view"]: view["guarantees"] for view in every if " and " not in view["view"]}
    assert {f"node:{attacker} and the average of the final models" for attacker in found["attackers"]} == {
        view["view"] for view in every
    } - views.keys()
    assert {f"node:{attacker}" for attacker in found["attackers"]} == {*views} - {"everyone"}
    seen = 0
    for figure_kind, counts in (
        ("proven", lambda one: one["proven_for_training"]),
        ("fixed-streams", lambda one: one["kind"] == "fixed-streams"),
    ):
        every = []
        for row, attacker in enumerate(found["attackers"]):
            for victim in range(8):
                mine = [one for one in views[f"node:{attacker}"] if one["victim"] == victim and counts(one)]
                if figure_kind not in found["ways"]:
                    assert mine == []
                    continue
                shown = found["ways"][figure_kind]["epsilon"][row][victim]
                if victim == attacker:
                    assert shown is None
                    continue
                best = min(mine, key=lambda one: float(one["epsilon"]))
                assert shown_rightly(shown, best["epsilon"])
                assert found["distance"][row][victim] == best["distance"]
                assert (
                    found["ways"][figure_kind]["kinds"][found["ways"][figure_kind]["kind"][row][victim]] == best["kind"]
                )
                right = statistics.NormalDist().cdf(float(best["mu"]) / 2)
                assert right <= found["ways"][figure_kind]["guess"][row][victim] / 100 <= right + 0.00101
                every.append((best["distance"], float(best["epsilon"])))
                seen += 1
        for one in found["ways"].get(figure_kind, {"by_distance": []})["by_distance"]:
            figures = sorted(epsilon for hops, epsilon in every if hops == one["distance"])
            assert one["pairs"] == len(figures)
            assert shown_rightly(one["least"], figures[0])
            assert shown_rightly(one["most"], figures[-1])
    assert seen >= 7


def test_curves_and_attacks_are_those_that_were_measured(runs, tmp_path):
    page = inside(write_page(tmp_path / "page.html", [runs("noisy")]))
    lines = [json.loads(line) for line in (runs("noisy") / "metrics.jsonl").read_text().splitlines()]
    (series,) = page["series"]
    assert series["round"] == [line["round"] for line in lines] == [0, 3, 6, 9, 12]
    assert series["megabytes"] == [line["bytes"] / 1e6 for line in lines]
    for key in ("average", "mean", "min", "max"):
        assert series[key] == [line["accuracy"][key] for line in lines]
    (run,) = page["runs"]
    stages = stored(runs("noisy"))["over_rounds"]
    assert [one["round"] for one in run["over_rounds"]] == [one["round"] for one in stages]
    assert all(
        shown_rightly(ours["epsilon"], theirs["epsilon"])
        for ours, theirs in zip(run["over_rounds"], stages, strict=True)
    )
    assert run["over_rounds"][-1]["epsilon"] == run["epsilon"]
    made = stored(runs("noisy"), "attack.json")["threshold"]
    assert run["attacks"]["threshold"]["roc"] == made["roc"]
    assert run["attack"] == {"attack": "threshold", **made["auc"]}
    assert run["missing"] == {}


def test_graphs_are_drawn_as_they_are(runs, tmp_path):
    from sottovoce.core.graphs import graph

    drawn = inside(write_page(tmp_path / "page.html", [runs("noisy")]))["runs"][0]["graph"]
    rows, columns = graph(COMMON["topology"]["graph"]).adjacency.nonzero()
    assert {tuple(edge) for edge in drawn["edges"]} == {
        (a, b) for a, b in zip(rows.tolist(), columns.tolist(), strict=True) if a < b
    }
    assert len({tuple(place) for place in drawn["positions"]}) == 8


def test_what_is_infinite_or_not_proven_is_said_plainly(runs, tmp_path):
    plain, unclipped = inside(write_page(tmp_path / "page.html", [runs("plain"), runs("unclipped")]))["runs"]
    assert plain["epsilon"] == "inf"
    assert plain["verdict"].startswith("Nothing is hidden: epsilon is infinite.")
    assert all(one["epsilon"] == "inf" and one["guess"] == 100 for one in plain["promises"])
    assert unclipped["epsilon"] == "inf"
    assert unclipped["verdict"].startswith("Epsilon is infinite: nothing is proven for this run")
    assert "radients are not clipped" in unclipped["verdict"]
    assert unclipped["promises"] == []


@pytest.mark.parametrize(
    ("name", "figure", "words", "command"),
    [
        ("mute", "attack", "not recorded", AGAIN + "record.attackers=all --set name=mute-recorded"),
        ("mute", "pairs", "not accounted for", AGAIN + "privacy.attackers=all --set name=mute-all-nodes"),
        ("plain", "attack", "No membership attack", "sotto attack {}"),
        ("fresh", "graph", "changes from round to round", ""),
        ("unclipped", "pairs", "not clipped", ""),
        ("unclipped", "over_rounds", "nothing is proven", ""),
    ],
)  # fmt: skip
def test_what_a_run_does_not_have_is_said_with_the_command_that_makes_it(name, figure, words, command, runs, tmp_path):
    missing = inside(write_page(tmp_path / "page.html", [runs(name)]))["runs"][0]["missing"][figure]
    assert words in missing[0]
    assert missing[1] == command.format(runs(name))


def test_commands_that_a_page_names_work(sotto, runs, tmp_path):
    missing = inside(write_page(tmp_path / "page.html", [runs("mute")]))["runs"][0]["missing"]
    code, _, err = sotto(missing["pairs"][1].removeprefix("sotto ") + f" --out {tmp_path}")
    assert (code, err) == (0, "")
    assert len(inside(tmp_path / "mute-all-nodes" / "report.html")["runs"][0]["leaks"]["attackers"]) == 8


def test_promises_are_told_kind_by_kind_in_plain_words(runs, tmp_path):
    (poisson,) = inside(write_page(tmp_path / "page.html", [runs("poisson")]))["runs"]
    first, *others = poisson["promises"]
    assert first["protects"] == "one record, made to count as nothing"
    assert shown_rightly(first["epsilon"], stored(runs("poisson"))["sampled"]["epsilon"])
    assert {one["protects"] for one in others} == {"one record, replaced by another"}
    assert [one["kind"] for one in others] == ["any-training", "fixed-streams"]
    assert [one["proven"] for one in others] == [True, False]
    assert any("chance" in line for line in poisson["not_covered"])
    assert {one["kind"] for one in poisson["promises"]} <= {*KINDS}


def test_a_guess_is_right_as_often_as_the_definition_allows():
    """An adversary of (epsilon, delta): with delta it knows, else it hears a coin of odds e^epsilon."""
    odds, delta = math.exp(1.5), 1e-3
    assert guessing_accuracy_bound(None, 1.5, delta) >= delta + (1 - delta) * odds / (1 + odds)
    assert guessing_accuracy_bound(None, 1.5, 0.0) == pytest.approx(odds / (1 + odds))
    assert guessing_accuracy_bound(None, math.inf, delta) == guessing_accuracy_bound(math.inf, math.inf, delta) == 1
    assert (percent(0.5), percent(0.50001), rounded(1.00001), rounded(math.inf)) == (50, 50.1, 1.001, "inf")


def test_seeds_are_averaged_and_runs_that_differ_by_noise_lie_on_one_curve(sotto, runs, tmp_path):
    for name, more in (("s1", {"seed": 5}), ("loud", {"algorithm": COMMON["algorithm"] | {"sigma": 4.0}})):
        run_experiment(
            parse_experiment(COMMON | {"name": f"sweep/{name}", "privacy": {"attackers": "none"}} | more),
            tmp_path / "sweep" / name,
        )
    page = inside(write_page(tmp_path / "page.html", [runs("noisy"), tmp_path / "sweep"], title="Ours"))
    assert page["title"] == "Ours"
    assert [run["run"] for run in page["runs"]] == ["noisy", "sweep/loud", "sweep/s1"]
    assert [one["runs"] for one in page["series"]] == [[0, 2], [1]]
    assert len({one["curve"] for one in page["series"]}) == 1
    (tmp_path / "sweep" / "stopped").mkdir()
    shutil.copy(runs("noisy") / "config.json", tmp_path / "sweep" / "stopped")
    alone = inside(write_page(tmp_path / "page.html", [tmp_path / "sweep"]))
    assert [run["label"] for run in alone["runs"]] == ["loud", "s1"]
    assert alone["left_out"] == 1
    _, _, err = sotto(f"compare {tmp_path / 'sweep'}")
    assert err.startswith(f"Left out, stopped or diverged: {tmp_path / 'sweep' / 'stopped'}\n")
    ours, theirs = (
        [json.loads(line)["accuracy"]["average"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (runs("noisy"), tmp_path / "sweep" / "s1")
    )
    assert page["series"][0]["average"] == pytest.approx([(a + b) / 2 for a, b in zip(ours, theirs, strict=True)])


def test_large_graphs_are_summed_up(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("sottovoce.report.pairwise_leakage.PAIRS", 10)
    monkeypatch.setattr("sottovoce.report.run_summary.NODES", 7)
    (run,) = inside(write_page(tmp_path / "page.html", [runs("noisy")]))["runs"]
    assert "too many to draw" in run["missing"]["graph"][0]
    figure_kind = run["leaks"]["ways"]["fixed-streams"]
    assert "epsilon" not in figure_kind
    assert sum(figure_kind["histogram"]["counts"]) == sum(one["pairs"] for one in figure_kind["by_distance"]) == 8 * 7


# --- in plain words ------------------------------------------------------------------------------------------------


TOGETHER = "What if some of them work together?"


def test_plain_words_say_what_the_run_guarantees(runs, tmp_path):
    page = inside(write_page(tmp_path / "page.html", [runs("noisy"), runs("plain")]))
    noisy, plain = (questions(run) for run in page["runs"])
    headline = stored(runs("noisy"))["headline"]
    right = percent(guessing_accuracy_bound(headline["mu"], headline["epsilon"], 1e-5))
    found = noisy["Who could learn what, and how surely?"]
    who, how_surely, *_ = found.split(". ")
    assert who.startswith("Anybody who reads every message that was sent, the other nodes included, could learn")
    assert f"at most {right:g} % of the time; somebody who tosses a coin is right 50 % of the time" in how_surely
    assert "epsilon" not in found.partition("Experts call this")[0]
    assert "delta is a small probability, here 1 in 100,000, for which epsilon promises nothing" in found
    assert "two who share everything they received, and even if all 7 others do" in noisy[TOGETHER]
    assert "several records" in noisy["What is not covered?"]
    own, without = (run["average_model"] for run in page["runs"])
    assert f"is right for {100 * own:.1f} % (test accuracy {own:.3f})" in noisy[OF_MODEL]
    cost = noisy[OF_NOISE]
    assert f"Trained without noise, which protects nobody, it is right for {100 * without:.1f} %" in cost
    answer = plain["Who could learn what, and how surely?"]
    assert answer.startswith("Epsilon is infinite")
    assert "could learn one record exactly" in answer
    assert [one["guess"] for one in page["runs"][0]["plain"]["members"]] == 8 * [right]
    assert [one["guess"] for one in page["runs"][1]["plain"]["members"]] == 8 * [None]


def test_lines_of_members_are_about_the_worst_single_node(runs, tmp_path):
    (run,) = inside(write_page(tmp_path / "page.html", [runs("convex")]))["runs"]
    guesses = run["leaks"]["ways"]["proven"]["guess"]
    for victim, line in enumerate(run["plain"]["members"]):
        worst = max(row[victim] for row in guesses if row[victim] is not None)
        assert line["closest"]["guess"] == worst
        alike = [str(node) for node, row in enumerate(guesses) if row[victim] == worst]
        assert line["closest"]["names"] == alike


def test_nobody_is_said_to_learn_most_where_some_nodes_are_not_accounted_for(runs):
    (run,) = read_runs([runs("convex")])
    some = tuple(view for view in run.privacy.stored_views if not view["view"].startswith("node:5"))
    assert len(some) < len(run.privacy.stored_views)
    members = plain_words(replace(run, privacy=replace(run.privacy, stored_views=some)), None, 8, None)["members"]
    assert [line["closest"] is None for line in members] == [True] * 5 + [False] + [True] * 2


def test_a_number_about_one_node_is_told_as_such(runs):
    (run,) = read_runs([runs("noisy")])
    headline = replace(run.privacy.headline, view=views.node(3))
    run = replace(run, privacy=replace(run.privacy, headline=headline, covers=NAMED_ONLY))
    found = questions({"plain": plain_words(run, None, 8, None)})
    who = found["Who could learn what, and how surely?"]
    assert who.startswith("Node 3, with what it receives, could learn something about one record")
    assert "not covered" in found[TOGETHER]


@pytest.mark.parametrize(
    ("covers", "who", "together"),
    [
        (Coverage(everyone=True, colluders=1), "Anybody who reads every message that was sent, or any single node,",
         "about one node alone. If two share what they received, it does not hold."),
        (Coverage(everyone=False, colluders=3), "Any 3 nodes together could learn", "up to 3 nodes together."),
    ],
)  # fmt: skip
def test_whom_a_number_holds_for_is_said_first(covers, who, together, runs):
    (run,) = read_runs([runs("noisy")])
    run = replace(run, privacy=replace(run.privacy, covers=covers))
    found = questions({"plain": plain_words(run, None, 8, None)})
    assert found["Who could learn what, and how surely?"].startswith(who)
    assert together in found[TOGETHER]


def test_a_report_without_a_contact_says_how_to_name_one_and_does(sotto, runs, tmp_path):
    folder, out = runs("noisy"), tmp_path / "page.html"
    write_page(out, [folder])
    told = questions(inside(out)["runs"][0])["Whom can I ask?"]
    assert "Ask whoever gave it to you" in told
    assert "below a line [about]" in told
    (command,) = re.findall('sotto (report .* --contact) "Name, telephone"', told)
    code, _, err = sotto(*command.split(), "Office, ext. 4711", "--out", str(out))
    assert (code, err.partition(": ")[0], err.count("\n")) == (0, "Not checked", 1)
    assert questions(inside(out)["runs"][0])["Whom can I ask?"] == "Office, ext. 4711"


def test_about_stands_on_top(tmp_path):
    about = {"title": "Which digit?", "purpose": "To read letters.", "contact": "office@example.org"}
    settings = COMMON | {"name": "told", "about": about, "privacy": {"attackers": "none"}, "record": {}}
    run_experiment(parse_experiment(settings), tmp_path / "told")
    page = inside(write_page(tmp_path / "page.html", [tmp_path / "told"]))
    assert page["title"] == "Which digit?"
    assert page["runs"][0]["plain"]["purpose"] == "To read letters."
    assert questions(page["runs"][0])["Whom can I ask?"] == "office@example.org"


def words_of_pages(pdf: bytes) -> list[int]:
    """How often each page of a file of Chromium shows some text."""
    parts = dict(re.findall(rb"(\d+) 0 obj\n(.*?)\nendobj", pdf, flags=re.DOTALL))
    pages = [part for part in parts.values() if re.search(rb"/Type /Page\s", part)]
    content = [parts[re.search(rb"/Contents (\d+) 0 R", page)[1]] for page in pages]
    texts = [zlib.decompress(one[one.index(b"stream\n") + 7 : one.rindex(b"\nendstream")]) for one in content]
    return [len(re.findall(rb"T[jJ]\b", text)) for text in texts]


def test_a_report_can_be_printed(sotto, runs, chromium, tmp_path):
    code, out, err = sotto(f"report {runs('convex')} --out {tmp_path / 'page.html'} --pdf --json")
    assert (code, err) == (0, "")
    printed = Path(json.loads(out)["pdf"])
    assert printed == tmp_path / "page.pdf"
    assert printed.read_bytes().startswith(b"%PDF")
    assert all(words > 40 for words in words_of_pages(printed.read_bytes())), "no page is empty"
    pages = re.findall(rb"/MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", printed.read_bytes())
    assert {(round(float(wide)), round(float(high))) for wide, high in pages} == {(595, 842)}


def test_without_a_browser_a_report_is_not_printed(sotto, runs, tmp_path, monkeypatch):
    monkeypatch.setattr("sottovoce.report.page_pdf.BROWSERS", ("no-such-browser",))
    code, _, err = sotto(f"report {runs('convex')} --out {tmp_path / 'page.html'} --pdf")
    assert (code, err.count("\n")) == (2, 1)
    assert "no browser is installed" in err


# --- files ---------------------------------------------------------------------------------------------------------


def measured_otherwise(folder: Path) -> Path:
    """The same run, as if it had learned a value."""
    for name in ("metrics.jsonl", "result.json"):
        (folder / name).write_text((folder / name).read_text().replace('"accuracy"', '"rmse"'))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"held_out": {"rows": 9, "rmse": 0.5, "mae": 0.4}}))
    return folder


def test_numbers_that_no_run_writes_are_refused(sotto, runs, tmp_path):
    folder = shutil.copytree(runs("noisy"), tmp_path / "diverged")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    last["accuracy"] = dict.fromkeys(last["accuracy"], math.nan)
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    code, _, err = sotto(f"compare {folder} --out {tmp_path / 'page.html'}")
    assert (code, err.count("\n")) == (2, 1)
    assert f"metrics.jsonl: damaged: line {len(lines)}: it is not JSON" in err
    assert not (tmp_path / "page.html").exists()


def test_errors_are_better_when_they_are_smaller(runs, tmp_path):
    folder = measured_otherwise(shutil.copytree(runs("noisy"), tmp_path / "value"))
    page = inside(write_page(tmp_path / "page.html", [folder]))
    last = json.loads((runs("noisy") / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]
    assert (page["metric"], page["less_is_better"]) == ("rmse", True)
    assert page["runs"][0]["worst_node"] == last["max"]


def test_wrong_folders_get_one_clear_line(sotto, runs, tmp_path, capsys):
    runs("noisy"), capsys.readouterr()
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    shutil.copy(runs("noisy") / "config.json", tmp_path / "begun")
    (tmp_path / "broken").mkdir()
    for name in ("config.json", "result.json", "metrics.jsonl"):
        shutil.copy(runs("noisy") / name, tmp_path / "broken")
    (tmp_path / "broken" / "privacy.json").write_text("{}")
    measured_otherwise(shutil.copytree(runs("noisy"), tmp_path / "value"))
    (shutil.copytree(runs("noisy"), tmp_path / "cut") / "attack.json").write_text('{"threshold": {}}')
    for words, folders in (
        ("no such folder", ["nowhere"]), ("no run", ["empty"]), ("unfinished", ["begun"]), ("damaged", ["broken"]),
        ("damaged", ["cut"]),
        ("one scale cannot show both", [runs("noisy"), "value"]),
    ):  # fmt: skip
        out = tmp_path / "page.html"
        code, said, err = sotto("compare --out", str(out), *(str(tmp_path / folder) for folder in folders))
        assert (code, said, err.count("\n")) == (2, "", 1)
        assert words in err
        assert not out.exists()
    with pytest.raises(InputError, match="no such folder"):
        write_page(tmp_path / "not" / "there.html", [runs("noisy")])
    with pytest.raises(InputError, match="at least one"):
        read_runs([])


def test_compare_prints_trade_offs_and_writes_the_page(sotto, runs, tmp_path):
    both = f"{runs('noisy')} {runs('plain')}"
    code, out, err = sotto(f"compare {both} --out {tmp_path / 'both.html'}")
    assert code == 0
    assert re.fullmatch(r"Not checked: \d+ parts of 2 folders; .*\nPage: .*/both.html\n", err), err
    noisy, plain = out.splitlines()[1:]
    assert re.search(r"noisy +dp-d-sgd .* any-training +everyone +0\.\d+ \(0\.\d+ to 0\.\d+\) threshold", noisy)
    assert re.search(r"plain +d-psgd .* inf +any-training +everyone +not attacked", plain)
    document = json.loads(sotto(f"compare {both} --json")[1])
    assert document["page"] == str(runs("noisy").parent / "compare.html")
    assert [one["epsilon"] for one in document["runs"]] == [stored(runs("noisy"))["headline"]["epsilon"], "inf"]
    assert inside(Path(document["page"]))["title"] == "2 runs compared"


def test_a_runs_own_page_is_written_once_and_renewed_by_attacks(runs, tmp_path):
    folder = shutil.copytree(runs("noisy"), tmp_path / "noisy")
    write_page_of(folder, again=True)
    assert not (folder / "report.html").exists()
    (folder / "attack.json").unlink()
    write_page_of(folder, again=False)
    assert inside(folder / "report.html")["runs"][0]["attacks"] == {}
    attack(folder)
    assert "threshold" in inside(folder / "report.html")["runs"][0]["attacks"]


# --- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(chromium, written):
    """The page about all kinds of runs, drawn once for the tests that only look and choose; and what went wrong."""
    wrong = []
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light", offline=True)
    yield open_page(context, written, wrong), wrong
    context.close()


@pytest.fixture
def page(shown):
    """The same page with its first choices; nothing may complain and nothing may be asked for."""
    page, wrong = shown
    for choice, first in (("#run", "0"), ("#attacker", "0"), ("#figure-kind", "proven")):
        page.select_option(choice, first)
    yield page
    assert wrong == []


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    """One page about all kinds of runs."""
    return write_page(tmp_path_factory.mktemp("page") / "page.html", [runs(name) for name in RUNS])


def text(page, selector: str) -> str:
    return page.inner_text(selector)


def numbers(page, figure: str) -> str:
    """The table behind a figure."""
    return page.locator(f"#{figure} details table").evaluate("table => table.textContent")


def test_a_page_is_small_and_soon_there(written, page):
    assert written.stat().st_size < 300_000  # the largest that is allowed is 1.5 MB
    first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert first < 30_000  # milliseconds, on a machine that does other things as well


def test_pairs_of_a_page_leave_it_below_a_megabyte_and_a_half(runs, tmp_path, monkeypatch):
    """By what each pair of a small run takes, in every kind of figure; further runs leave theirs out."""
    convex, noisy = runs("convex"), runs("noisy")
    (run,) = inside(write_page(tmp_path / "page.html", [convex]))["runs"]
    leaks, keys = run["leaks"], ("epsilon", "guess", "kind")
    tables = [one[key] for some in ("ways", "with_models") for one in leaks[some].values() for key in keys]
    for_each = len(json.dumps([*tables, leaks["distance"]], separators=(",", ":"))) / 8**2
    assert for_each * PAIRS + 300_000 < 1_500_000
    monkeypatch.setattr("sottovoce.report.page.PAIRS", 8 * 8 + 1)
    both = inside(write_page(tmp_path / "page.html", [convex, noisy]))["runs"]
    assert [one["leaks"] is None for one in both] == [False, True]
    assert "to keep the page small" in both[1]["missing"]["pairs"][0]


def test_every_figure_is_drawn_from_disk_without_a_single_request(page):
    for figure in ("graph", "rounds", "bytes", "epsilon-over-rounds", "roc", "privacy"):
        assert page.locator(f"#{figure} .plot svg").count() > 0, figure
        assert len(text(page, f"#{figure} figcaption")) > 80, figure
        assert len(numbers(page, figure)) > 40, figure
    assert "any-training" in text(page, "#guarantees")


def test_clicking_a_node_changes_figures_table_and_captions(written, page):
    data = inside(written)["runs"][0]
    pairs = data["leaks"]["ways"]["proven"]
    before = {figure: (text(page, f"#{figure} figcaption"), numbers(page, figure)) for figure in ("graph", "pairs")}
    assert "Node 0 is the adversary" in before["graph"][0]
    page.locator("#graph").scroll_into_view_if_needed()
    label = page.locator("#graph .dot .name", has_text=re.compile("^5$")).bounding_box()
    page.mouse.click(label["x"] + label["width"] / 2, label["y"] + label["height"] / 2)
    page.wait_for_function("document.getElementById('attacker').value === '5'")
    assert "Node 5 is the adversary" in text(page, "#graph figcaption")
    assert "learned by node 5" in text(page, "#distance .legend")
    assert "node 5" in text(page, "#pairs figcaption")
    assert "node 5, the chosen adversary" in text(page, "#guarantees")
    after = numbers(page, "graph")
    assert after != before["graph"][1]
    cells = page.locator("#graph details table").evaluate(
        "t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))"
    )
    assert [row[0] for row in cells] == [str(node) for node in range(8) if node != 5]
    for node, hops, epsilon, guess, kind, figure, *_ in cells:
        assert float(epsilon) == pairs["epsilon"][5][int(node)]
        assert int(hops) == data["leaks"]["distance"][5][int(node)]
        assert (float(guess.split()[0]), kind) == (pairs["guess"][5][int(node)], "any-training")
        assert figure == "a bound"
    frame = page.evaluate("document.querySelector('#pairs .plot').chart.marks.find(mark => mark.kind === 'guide').row")
    assert frame == 5
    drawn = page.evaluate("document.querySelector('#distance .plot').chart.marks[1].dots.map(dot => dot.y)")
    assert sorted(drawn) == sorted(value for value in pairs["epsilon"][5] if value is not None)


def test_keys_do_what_clicks_do_and_the_idealisation_is_named(written, page):
    page.focus("#attacker")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.getElementById('attacker').value === '1'")
    assert "Node 1 is the adversary" in text(page, "#graph figcaption")
    page.select_option("#figure-kind", "fixed-streams")
    for figure in ("graph", "distance", "pairs"):
        assert "idealisation, no proof for training" in text(page, f"#{figure} .legend")
    ideal = inside(written)["runs"][0]["leaks"]["ways"]["fixed-streams"]["epsilon"][1]
    assert str(ideal[0]) in numbers(page, "graph")


def test_choosing_a_run_shows_what_it_has_and_says_what_it_has_not(written, page):
    by_name = {run["run"]: number for number, run in enumerate(inside(written)["runs"])}
    page.select_option("#run", str(by_name["convex"]))
    assert "convex-training" in numbers(page, "graph")
    page.select_option("#run", str(by_name["plain"]))
    assert "infinite" in text(page, "#cards")
    assert "Nothing is hidden" in text(page, "#headline")
    assert "infinite: nothing protects" in text(page, "#graph .legend")
    page.select_option("#run", str(by_name["mute"]))
    assert "privacy.attackers=all" in text(page, "#graph .missing")
    assert not page.locator("#graph .plot").is_visible()
    page.select_option("#run", str(by_name["unclipped"]))
    assert "infinite" in text(page, "#cards")
    page.select_option("#run", str(by_name["fresh"]))
    assert "changes from round to round" in text(page, "#graph .missing")
    assert "Each node that is accounted for can learn the same about every other" in text(page, "#distance .plain")
    assert len(numbers(page, "distance")) > 40
    assert not page.locator("#pairs").is_visible()  # nothing differs, and the sentence stands once
    page.select_option("#run", str(by_name["mute"]))
    assert text(page, "#who").count("not accounted for") == 1
    page.select_option("#run", str(by_name["noisy"]))
    assert page.locator("#graph .plot").is_visible()


@pytest.mark.parametrize(
    ("width", "height", "dark"),
    [(360, 740, True), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((360, 740, False), (1280, 900, True)))],
)
def test_it_fits_a_phone_and_follows_dark_mode(width, height, dark, written, opened, tmp_path):
    page = opened(written, width=width, height=height, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground, ink = (page.evaluate(f"getComputedStyle(document.body).{part}") for part in ("backgroundColor", "color"))
    plotted = page.evaluate("getComputedStyle(document.querySelector('#rounds .plot svg')).fill")
    assert (brightness(ground) < 60) == dark
    assert (brightness(ink) > 200) == dark
    assert (brightness(plotted) > 140) == dark
    picture = page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert len(picture) > 50_000


def brightness(colour: str) -> float:
    parts = [int(part, 16) for part in re.findall("..", colour[1:])] if colour[0] == "#" else re.findall(r"\d+", colour)
    return sum(map(int, parts[:3])) / 3


def test_the_page_of_one_run_leaves_out_what_cannot_be_chosen_or_was_not_done(runs, opened, tmp_path):
    page = opened(write_page(tmp_path / "page.html", [runs("plain")]))
    assert page.locator("#controls").evaluate("form => form.closest('main') !== null")
    assert page.evaluate("document.querySelector('#plain').getBoundingClientRect().top") < page.evaluate(
        "document.querySelector('#controls').getBoundingClientRect().top"
    )
    assert not page.locator("#run").is_visible()
    assert page.locator("#attacker").is_visible()
    assert not page.locator("#success").is_visible()
    assert "No membership attack" in text(page, "#roc .missing")
    mute = opened(write_page(tmp_path / "mute.html", [runs("mute")]))
    assert not mute.locator("#controls").is_visible()


def test_a_member_without_figures_about_single_members_sees_who_hears_whom_by_name(runs, opened, tmp_path):
    folder = shutil.copytree(runs("mute"), tmp_path / "member")
    names = [f"Clinic {letter}" for letter in "ABCDEFGH"]
    graph = {"name": "file:edges.txt", "nodes": 8, "directed": False, "labels": names}
    graph["edges"] = [[at, (at + 1) % 8] for at in range(8)]
    (folder / "graph.json").write_text(json.dumps(graph))
    for name, change in (
        ("config.json", {"topology": {"graph": "file:edges.txt"}, "member": "Clinic C"}),
        ("result.json", {"member": "Clinic C"}),
    ):
        found = stored(folder, name)
        found |= {key: {**found[key], **value} if isinstance(value, dict) else value for key, value in change.items()}
        (folder / name).write_text(json.dumps(found))
    lines = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(
        re.sub(r'"bytes": (\d+)', lambda one: f'"bytes": {int(one[1]) // 1000}', lines)
    )
    page = opened(write_page(tmp_path / "page.html", [folder]))
    assert page.locator("#graph .dot .name").all_text_contents() == names
    assert text(page, "#graph figcaption").startswith("This is the page of Clinic C. What single members can learn")
    assert "Clinic BClinic A, Clinic C" in numbers(page, "graph")
    assert not page.locator("#distance").is_visible()
    assert not page.locator("#pairs").is_visible()
    assert "kilobytes sent by Clinic C" in page.locator("#bytes .plot").text_content()
    told = page.locator("#plain p", has_text="by itself was not computed")
    assert told.locator("code").inner_text() == "sotto peer join --baselines"


def test_names_cannot_break_out_of_the_page(runs, opened, tmp_path):
    folder = shutil.copytree(runs("noisy"), tmp_path / "evil")
    ring = [EVIL, *"bcdefgh"]
    edges = [[at, (at + 1) % 8] for at in range(8)]
    graph = {"name": "file:edges.txt", "nodes": 8, "directed": False, "labels": ring, "edges": edges}
    (folder / "graph.json").write_text(json.dumps(graph))
    settings = stored(folder, "config.json")
    settings["topology"]["graph"] = "file:edges.txt"
    (folder / "config.json").write_text(json.dumps(settings))
    file = write_page(tmp_path / "page.html", [folder], title=EVIL + "&amp;")
    assert EVIL in inside(file)["runs"][0]["labels"]
    assert EVIL not in file.read_text()
    page = opened(file)
    assert page.evaluate("window.bad") is None
    assert text(page, "h1") == EVIL + "&amp;"
    assert EVIL in numbers(page, "graph") + text(page, "#graph figcaption")


def test_a_large_run_has_a_histogram_instead(runs, opened, tmp_path, monkeypatch):
    monkeypatch.setattr("sottovoce.report.pairwise_leakage.PAIRS", 10)
    monkeypatch.setattr("sottovoce.report.run_summary.NODES", 7)
    page = opened(write_page(tmp_path / "page.html", [runs("noisy")]))
    assert page.locator("#histogram .plot").is_visible()
    assert "too many to draw" in text(page, "#graph .missing")
    assert page.locator("#distance .plot").is_visible()


HIDDEN = [
    ({"name": "decor", "sigma": 1.0, "sigma_pair": 4.0}, "path:6", {}),
    ({"name": "secure-gossip", "sigma": 2.0}, "ring:8", {}),
    ({"name": "dp-d-sgd", "sigma": 2.0}, "ring:6", {"view": "coalition:any-2"}),
    ({"name": "dp-d-sgd", "sigma": 2.0}, "ring:6", {}),
]


@pytest.mark.parametrize(("algorithm", "graph", "privacy"), HIDDEN)
def test_no_node_is_promised_more_than_every_single_node_lets_it_be(algorithm, graph, privacy):
    settings = COMMON | {
        "name": "hidden", "algorithm": algorithm, "topology": {"graph": graph}, "privacy": privacy,
        "training": {"rounds": 4, "clip": "per-example", "bound": 1.0},
    }  # fmt: skip
    run = build_run(parse_experiment(settings))
    stated = report_privacy(run, attackers=range(run.topology.n)).stated
    rows = _by_victim(stated)
    for attacker, view in stated.node_views.items():
        for victim in set(range(run.topology.n)) - {attacker}:
            proven = [one.epsilon for one in view.guarantees if one.victim == victim and one.proven_for_training]
            assert rows.get(victim, stated.headline).epsilon >= min(proven, default=0) * (1 - 1e-12)


def test_without_scripts_a_page_has_its_text_and_tables(runs, tmp_path, chromium):
    (run,) = inside(write_page(tmp_path / "page.html", [runs("convex")]))["runs"]
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    text = page.inner_text("body")
    context.close()
    for question, answers in run["plain"]["questions"]:
        assert question in text
        assert all(" ".join(answer.split()) in " ".join(text.split()) for answer in answers)
    assert all(str(promise["epsilon"]) in text for promise in run["promises"])
    assert all(name in text for name, _ in run["facts"])
    assert "Who can learn what from whom" not in text, "headings of figures that are not there"


def test_figures_that_are_nearly_alike_have_colours_that_are(runs, tmp_path, chromium):
    write_page(tmp_path / "page.html", [runs("convex")])
    text = (tmp_path / "page.html").read_text().replace('<script>"use strict";\n{', "<script>", 1)
    at = text.rindex("}</script>")
    (tmp_path / "open.html").write_text(text[:at] + text[at + 1 :])
    page = chromium.new_page()
    page.goto((tmp_path / "open.html").as_uri())
    page.evaluate("() => { figures().epsilon = [[1.978, 2.0]]; }")
    near, far = page.evaluate(
        "() => { const { share } = scale(); return [share(2) - share(1.978), share(2) - share(0.5)]; }"
    )
    page.close()
    assert near < 0.02
    assert far == pytest.approx(1)
