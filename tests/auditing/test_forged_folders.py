"""Folders whose files were edited: every number is computed again, or the audit lists it as not checked."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sottovoce.privacy.gaussian_dp import epsilon_of
from sottovoce.run.folder_check import NOT_COMPARED, RENEWED
from sottovoce.run.layout import FILES, Audience
from sottovoce.support.npz import read_checked_npz, write_npz

SETTINGS = """
name = "sent"
noise_key = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
data = {rows = 24}
topology = {graph = "ring:4"}
training = {rounds = 4, batch = "cycle:2x2", clip = "per-example", bound = 1.0}
algorithm = {sigma = 1.0, step_size = 0.5}
privacy = {attackers = "all"}
metrics = {every = 1, test_rows = 20}
record = {attackers = [0], every = 2}
"""
AUDIT = "audit {} --runs 0 --repetitions 100"


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A finished run that has every file that anything is shown from."""
    from sottovoce.cli import main

    place = tmp_path_factory.mktemp("complete")
    (place / "sent.toml").write_text(SETTINGS)
    lines = ("run {}.toml --out {}/.. --baselines", "attack {} --samples 20", "export {}", AUDIT)
    with pytest.MonkeyPatch.context() as patch:
        for line in lines:
            patch.setattr("sys.argv", ["sotto", "--quiet", *line.replace("{}", str(place / "sent")).split()])
            with pytest.raises(SystemExit) as stop:
                main()
            assert not stop.value.code, line
    return place / "sent"


@pytest.fixture
def sent(complete, tmp_path):
    return Path(shutil.copytree(complete, tmp_path / "sent"))


def numbers_in(document, path=()):
    """The place of every number of a document."""
    if isinstance(document, dict | list):
        parts = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in parts:
            yield from numbers_in(value, (*path, key))
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield path


def with_value(document, path, value):
    out = copy.deepcopy(document)
    inner = out
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return out


def at(document, path):
    for key in path:
        document = document[key]
    return document


PAGE_DATA = re.compile(r'(?<=<script id="data" type="application/json">).*?(?=</script>)', re.DOTALL)


def read(path):
    """A file's document: a list of lines for metrics, and what a page carries."""
    text = path.read_text()
    if path.suffix == ".html":
        return json.loads(PAGE_DATA.search(text)[0])
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)


def write(path, document):
    if path.suffix == ".html":
        text = json.dumps(document)
        path.write_text(PAGE_DATA.sub(lambda _: text, path.read_text()))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(line) + "\n" for line in document))
    else:
        path.write_text(json.dumps(document))


JSON_FILES = (
    "metrics.jsonl", "result.json", "privacy.json", "baselines.json", "attack.json", "audit.json", "private.json",
    "config.json", "report.html", "export/model.json",
)  # fmt: skip


def is_listed(not_checked, name, path):
    """Whether the list of what is not checked has the field, or one that holds it."""
    keys = [key for key in path if isinstance(key, str)]
    return any(place in not_checked for place in [name, *(f"{name}: {'.'.join(keys[:n])}" for n in range(1, 9))])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))])
@pytest.mark.parametrize("name", JSON_FILES)
def test_every_number_is_computed_again_or_listed(name, seed, sotto, sent):
    """A number of every field, another one with every seed; of the page those that depend on the run."""
    rng, original = random.Random(f"{name} {seed}"), read(sent / name)
    by_field = {}
    for path in numbers_in(original):
        if name != "report.html" or path[0] in ("runs", "series", "left_out"):
            by_field.setdefault(tuple(key for key in path if isinstance(key, str)), []).append(path)
    fields = sorted(by_field)
    for field in fields if len(fields) < 6 else rng.sample(fields, 6):
        path = rng.choice(by_field[field])
        value = at(original, path)
        forged = value + 1 if isinstance(value, int) else value * 0.9 + 0.003
        write(sent / name, with_value(original, path, forged))
        code, out, err = sotto(f"{AUDIT.format(sent)} --json")
        said = out.partition('"audits"')[0] + err
        if name == "config.json" and code:  # the settings are another run's, so that it is the others that do not fit
            assert code in (1, 2), (path, err)
        elif code:
            assert (code, f'"{name.partition("/")[0].partition(".")[0]}' in said) == (1, True), (path, err)
        elif name != "audit.json" and (name, *path[::2][:2]) != ("report.html", "runs", "audit"):  # written anew
            assert is_listed(json.loads(out)["not_checked"], name, path), (path, value, forged)
        write(sent / name, original)


def test_figures_that_agree_with_each_other_and_not_with_the_run(sotto, sent):
    """Every epsilon and accuracy of the metrics edited, the result copied from them, and the page made again."""
    lines = read(sent / "metrics.jsonl")
    for line in lines:
        line["accuracy"] = {key: min(1.0, value + 0.2) for key, value in line["accuracy"].items()}
        line["epsilon"] = {key: value / 2 for key, value in line["epsilon"].items()}
    write(sent / "metrics.jsonl", lines)
    write(sent / "result.json", read(sent / "result.json") | {"metrics": lines[-1]})
    (sent / "report.html").unlink()
    sotto(f"report {sent}")
    code, out, _ = sotto(AUDIT.format(sent))
    assert code == 1
    assert "metrics.jsonl: [0].accuracy.mean" in out
    assert "metrics.jsonl: [0].epsilon.planned" in out
    assert sotto(f"compare {sent}")[0] == 1


def reordered(lines):
    return [lines[0], lines[2], lines[1], *lines[3:]]


LINES = {
    "one more": lambda lines: [*lines, lines[-1] | {"round": 5}],
    "the last twice": lambda lines: [*lines, lines[-1]],
    "one less": lambda lines: [*lines[:2], *lines[3:]],
    "the first only": lambda lines: lines[:1],
    "in another order": reordered,
    "no start": lambda lines: lines[1:],
}


@pytest.mark.parametrize("how", LINES)
def test_lines_of_metrics_are_those_of_the_rounds(how, sotto, sent):
    write(sent / "metrics.jsonl", LINES[how](read(sent / "metrics.jsonl")))
    code, out, _ = sotto(AUDIT.format(sent))
    assert (code, "Finding: metrics.jsonl: rounds" in out) == (1, True), out


TYPES = {
    "true for 1": ("result.json", '"seed": 0', '"seed": false'),
    "text for a number": ("metrics.jsonl", '"consensus": 0.0', '"consensus": "0.0"'),
    "a key twice": ("result.json", '"seed": 0', '"seed": 1, "seed": 0'),
    "a key twice in a line": ("metrics.jsonl", '{"round": 0', '{"round": 3, "round": 0'),
    "a number beyond all floats": ("attack.json", '"confidence": 0.95', '"confidence": 1e400'),
    "another beyond all floats": ("metrics.jsonl", '"consensus": 0.0', '"consensus": 1e400'),
    "not a number": ("metrics.jsonl", '"consensus": 0.0', '"consensus": NaN'),
    "a key twice in the settings": ("config.json", '"seed": 0', '"seed": 1, "seed": 0'),
}


@pytest.mark.parametrize("how", TYPES)
def test_values_of_another_type_are_refused_by_name(how, sotto, sent):
    name, before, after = TYPES[how]
    text = (sent / name).read_text()
    assert before in text
    (sent / name).write_text(text.replace(before, after, 1))
    for command in (AUDIT, "compare {}"):
        code, _, err = sotto(command.format(sent))
        assert (code, name in err) == (2, True), err


LONGER = {
    "a view": ("privacy.json", ("views",)),
    "a guarantee": ("privacy.json", ("views", 0, "guarantees")),
    "an assumption": ("privacy.json", ("headline", "assumptions")),
    "an earlier end": ("privacy.json", ("over_rounds",)),
    "a class": ("result.json", ("held_out", "by_class")),
    "a node": ("baselines.json", ("nodes",)),
    "a run": ("report.html", ("runs",)),
    "an end": ("report.html", ("runs", 0, "over_rounds")),
}


@pytest.mark.parametrize("less", [False, True])
@pytest.mark.parametrize("what", LONGER)
def test_lists_are_as_long_as_they_were(what, less, sotto, sent):
    name, place = LONGER[what]
    document = read(sent / name)
    there = at(document, place)
    write(sent / name, with_value(document, place, there[:-1] if less else [*there, there[-1]]))
    code, out, err = sotto(AUDIT.format(sent))
    assert (code, name in out + err) == (1, True), (out, err)


def test_a_page_with_another_script_is_no_page_of_the_run(sotto, sent):
    page = sent / "report.html"
    page.write_text(page.read_text().replace("const data = JSON.parse(", "const data = forge(", 1))
    code, out, _ = sotto(AUDIT.format(sent))
    assert (code, "report.html: its text or its scripts" in out) == (1, True)


def test_pages_with_a_contact_or_a_title_and_moved_folders_are_what_they_were(sotto, sent, tmp_path):
    sotto(f"report {sent} --contact", "Dr. Hill, 555")
    moved = shutil.move(sent, tmp_path / "elsewhere")
    assert sotto(AUDIT.format(moved))[0] == 0
    sotto(f"compare {moved} --title", "Another title")
    assert sotto(AUDIT.format(moved))[0] == 0


def test_an_export_is_the_model_of_the_run(sotto, sent):
    card = sent / "export" / "README.md"
    card.write_text(card.read_text().replace("epsilon", "epsilon 0.1, not", 1))
    assert "export/README.md" in sotto(AUDIT.format(sent))[1]
    shutil.rmtree(sent / "export")
    sotto(f"export {sent} --node 1")
    other = (sent / "export" / "model.safetensors").read_bytes()
    assert sotto(AUDIT.format(sent))[0] == 0
    shutil.rmtree(sent / "export")
    sotto(f"export {sent}")
    (sent / "export" / "model.safetensors").write_bytes(other)
    code, out, _ = sotto(AUDIT.format(sent))
    assert (code, "export/model.safetensors" in out) == (1, True)


def test_without_its_key_earlier_rounds_are_listed_and_the_last_is_compared(sotto, sent):
    (sent / "noise.key").unlink()
    code, out, _ = sotto(f"{AUDIT.format(sent)} --json")
    listed = json.loads(out)["not_checked"]
    assert code == 0
    assert "noise key" in listed["metrics.jsonl: accuracy"]
    assert "checkpoint.npz: nonfinite" in listed
    lines = read(sent / "metrics.jsonl")
    lines[-1]["accuracy"]["average"] += 0.1
    write(sent / "metrics.jsonl", lines)
    code, out, _ = sotto(AUDIT.format(sent))
    assert (code, "metrics.jsonl: [4].accuracy.average" in out) == (1, True)


def test_the_checkpoint_of_another_run_is_found(sotto, sent, tmp_path):
    (tmp_path / "other.toml").write_text(SETTINGS.replace("sent", "other").replace("5a5a", "5b5b"))
    sotto(f"run {tmp_path}/other.toml --out {tmp_path}")
    shutil.copy(tmp_path / "other" / "checkpoint.npz", sent / "checkpoint.npz")
    code, out, _ = sotto(AUDIT.format(sent))
    assert (code, "checkpoint.npz" in out) == (1, True)


def test_models_that_a_rerun_does_not_end_with_are_found_though_the_last_line_is_theirs(sotto, sent, tmp_path):
    (tmp_path / "other.toml").write_text(SETTINGS.replace("5a5a", "5b5b"))
    sotto(f"run {tmp_path}/other.toml --out {tmp_path}/more")
    other = tmp_path / "more" / "sent"
    stored = dict(read_checked_npz(other / "checkpoint.npz"))
    about = json.loads(stored["about"].tobytes())
    about["fingerprint"] = json.loads((sent / "private.json").read_text())["fingerprint"]
    stored["about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    with (sent / "checkpoint.npz").open("wb") as file:
        write_npz(file, stored)
    lines = read(sent / "metrics.jsonl")
    lines[-1] = read(other / "metrics.jsonl")[-1]
    write(sent / "metrics.jsonl", lines)
    held_out = read(other / "result.json")["held_out"]
    write(sent / "result.json", read(sent / "result.json") | {"metrics": lines[-1], "held_out": held_out})
    for place in ("report.html", "export"):
        shutil.rmtree(sent / place) if (sent / place).is_dir() else (sent / place).unlink()
    code, out, _ = sotto(AUDIT.format(sent))
    assert (code, "checkpoint.npz: its models are not those that a rerun ends with" in out) == (1, True)
    (sent / "noise.key").unlink()
    code, out, _ = sotto(f"{AUDIT.format(sent)} --json")
    assert "checkpoint.npz: models" in json.loads(out)["not_checked"]


def test_a_finding_leaves_no_trace_in_a_folder_that_was_mended(sotto, sent):
    text = (sent / "result.json").read_text()
    (sent / "result.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    assert sotto(AUDIT.format(sent))[0] == 1
    (sent / "result.json").write_text(text)
    assert sotto(AUDIT.format(sent))[0] == 0


def test_what_else_lies_in_a_folder_is_listed(sotto, sent):
    (sent / "report.pdf").write_bytes(b"%PDF-1.4")
    code, out, _ = sotto(AUDIT.format(sent))
    assert (code, "Not checked: report.pdf" in out) == (0, True)


def test_every_file_that_may_be_shown_is_forged_here():
    tried = {name.partition("/")[0] for name in JSON_FILES} | {"graph.json"}  # its numbers are taken as given
    assert {kind.name for kind in FILES if kind.audience is not Audience.PRIVATE} <= tried


def test_the_docs_have_all_that_is_never_checked():
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    for (file, field), reason in NOT_COMPARED.items():
        rows = re.findall(rf"\| `{file}`: (.*) \| {reason} \|", page)
        assert (field in ", ".join(rows).split(", ")) == (reason != RENEWED), (file, field)


def test_a_page_that_holds_its_data_elsewhere_or_twice_is_no_page_of_the_run(sotto, sent):
    page = sent / "report.html"
    text = page.read_text()
    block = re.search(r'<script id="data" type="application/json">.*?</script>', text, re.DOTALL)[0]
    forged = block.replace('"epsilon"', '"epsilon" ')
    for other in (
        text.replace(block, forged).replace("</style>", f"/* {block} */</style>", 1),
        text.replace(block, "").replace("</style>", f"/* {block} */</style>", 1),
        text.replace("</body>", f"{forged}</body>", 1),
    ):
        page.write_text(other)
        code, out, _ = sotto(AUDIT.format(sent))
        assert (code, "report.html" in out) == (1, True)


def test_a_contact_that_a_page_names_is_listed(sotto, sent):
    sotto(f"report {sent} --contact", "An office has checked this")
    assert "contact (words and names" in " ".join(sotto(AUDIT.format(sent))[1].split())


# --- what is read without an audit -----------------------------------------------------------------------------------


def forged_views(folder):
    """Figures about a node that nothing in the folder contradicts."""
    document = read(folder / "privacy.json")
    view = next(one for one in document["views"] if one["view"] == "node:0")
    for figure in (*view["guarantees"], view["headline"]):
        figure["mu"] = figure["mu"] / 2
        figure["epsilon"] = epsilon_of(figure["mu"], document["delta"])
    write(folder / "privacy.json", document)


def forged_lines(folder):
    """More messages than were sent, in the last line and in the result."""
    lines = read(folder / "metrics.jsonl")
    lines[-1]["messages"] += 1
    write(folder / "metrics.jsonl", lines)
    write(folder / "result.json", read(folder / "result.json") | {"metrics": lines[-1]})


def test_exports_say_that_nothing_measured_was_checked(sotto, sent):
    shutil.rmtree(sent / "export")
    assert "Not checked: held-out figures" in sotto(f"export {sent}")[2]
    shutil.rmtree(sent / "export")
    spent = {"epsilon": 0.001, "delta": 1e-5, "lineage": "rows", "runs": [{"run": "sent", "epsilon": 0.001}]}
    write(sent / "result.json", read(sent / "result.json") | {"spent_in_all": spent})
    sotto(f"export {sent}")
    (line,) = (line for line in (sent / "export/README.md").read_text().splitlines() if "spent on" in line)
    assert "not checked" in line


def test_the_page_of_a_claim_begins_with_findings(sotto, sent):
    forged_lines(sent)
    assert sotto(AUDIT.format(sent), "--claim", "10")[0] == 1
    page = (sent / "claim.html").read_text()
    assert 0 < page.index("Finding: metrics.jsonl") < page.index("proven: at most")


def planted_member(folder):
    """A simulation that says it is a member's run, and has a model of its own choice."""
    write(folder / "result.json", read(folder / "result.json") | {"member": "Hill"})
    np.savez(folder / "model.npz", model=np.zeros(650, np.float32))


FORGED = {"a view": forged_views, "lines": forged_lines, "a member": planted_member}


@pytest.mark.parametrize("how", FORGED)
def test_whoever_reads_a_folder_is_told_of_forged_figures(how, sotto, sent, tmp_path):
    (tmp_path / "sent.toml").write_text(SETTINGS)
    for place in ("report.html", "export"):
        shutil.rmtree(sent / place) if (sent / place).is_dir() else (sent / place).unlink()
    FORGED[how](sent)
    name = "privacy.json" if how == "a view" else "metrics.jsonl" if how == "lines" else "result.json"
    for command in (f"report {sent}", f"compare {sent}", f"compare {sent} --track tensorboard"):
        code, out, _ = sotto(command)
        assert (code, out.startswith(f"Finding: {sent}: {name}")) == (1, True), (command, out)
        assert any(name in line for line in read(sent / "report.html")["runs"][0]["findings"])
    assert not (tmp_path / "tensorboard").exists()
    code, _, err = sotto(f"run {tmp_path}/sent.toml --out {tmp_path}")
    assert (code, name in err) == (2, True), err


def test_a_simulation_that_calls_itself_a_members_run_stays_a_simulation(sotto, sent):
    own = read(sent / "report.html")["runs"][0]
    (sent / "report.html").unlink()
    planted_member(sent)
    sotto(f"report {sent}")
    shown = read(sent / "report.html")["runs"][0]
    assert (shown["member"], shown["plain"]["questions"][0]) == (None, own["plain"]["questions"][0])
    shutil.rmtree(sent / "export")
    assert sotto(f"export {sent}")[0] == 0
    state = read_checked_npz(sent / "checkpoint.npz")["0"]
    exported = np.concatenate([value.ravel() for value in load_file(sent / "export" / "model.safetensors").values()])
    assert np.isclose(np.sort(exported), np.sort(state.mean(axis=0)), atol=1e-6).all()


def test_a_member_in_the_settings_is_another_run(sotto, sent):
    write(sent / "config.json", read(sent / "config.json") | {"member": "Hill"})
    for command in (f"report {sent}", f"export {sent} --out {sent}/again"):
        assert sotto(command)[0] in (1, 2)
    code, _, err = sotto(f"run {sent}/config.json --out {sent.parent}/more")
    assert (code, "Hill" in err) == (2, True)


def test_the_model_of_another_run_is_not_exported(sotto, sent, tmp_path):
    """Its checkpoint and private facts belong together, and not to these settings."""
    (tmp_path / "bare.toml").write_text(SETTINGS.replace("sigma = 1.0", "sigma = 0.0"))
    assert sotto(f"run {tmp_path}/bare.toml --out {tmp_path}/more")[0] == 0
    for name in ("checkpoint.npz", "private.json"):
        shutil.copy(tmp_path / "more" / "sent" / name, sent / name)
    code, _, err = sotto(f"export {sent} --out {tmp_path}/model")
    assert (code, "private.json: of another run" in err) == (2, True), err


def test_what_a_page_shows_unchecked_it_says_beside_the_figures(sotto, sent):
    sotto(f"report {sent}")
    unchecked = read(sent / "report.html")["runs"][0]["unchecked"]
    assert any("accuracy" in line for line in unchecked["learning"])
    assert any("held_out" in line for line in unchecked["plain"])
    assert {"attack.json", "audit.json"} <= {line.partition(" ")[0] for line in unchecked["attacks"]}
    assert not any(line.startswith("privacy.json: views") for line in unchecked.get("who", []))
    assert sotto(AUDIT.format(sent))[0] == 0
    assert "accuracy" not in str(read(sent / "report.html")["runs"][0]["unchecked"])


def test_pages_of_another_version_are_compared_by_their_figures(sotto, sent):
    page = sent / "report.html"
    text, own = page.read_text(), read(page)
    other = text.replace("const data = JSON.parse(", "const  data = JSON.parse(", 1)
    own["version"], own["runs"][0]["verdict"] = "0.1.9 12345678", "In other words."
    del own["runs"][0]["certificate"]
    page.write_text(other)
    write(page, own)
    code, out, _ = sotto(f"{AUDIT.format(sent)} --json")
    listed = json.loads(out)["not_checked"]
    assert (code, listed["report.html: text and scripts"]) == (0, "made by version 0.1.9 12345678")
    assert listed["report.html: runs.verdict"] == "made by version 0.1.9 12345678"
    page.write_text(other)
    own["runs"][0]["over_rounds"][-1]["epsilon"] /= 2
    write(page, own)
    code, out, _ = sotto(AUDIT.format(sent))
    assert (code, "report.html: runs[0].over_rounds[" in out) == (1, True), out
