"""Run folders from somebody else: edited, with links and pipes in them; nothing of it is believed or obeyed."""

from __future__ import annotations

import copy
import json
import os
import shutil
import stat
import subprocess
from itertools import cycle

import jsonschema
import numpy as np
import pytest

from sottovoce import InputError
from sottovoce.run.execute import run_experiment
from sottovoce.run.layout import FILES, Audience
from sottovoce.schemas import schema
from sottovoce.schemas.validation import problem_in
from sottovoce.support.config import parse_experiment
from sottovoce.support.files import state_folder
from sottovoce.support.npz import read_checked_npz, write_npz
from tests.selection import in_turn

DOCUMENT = {
    "name": "sent", "noise_key": 16 * "5a", "topology": {"graph": "ring:4"}, "data": {"rows": 24},
    "training": {"rounds": 4, "bound": 1.0, "clip": "per-example", "batch": "cycle:2x2"},
    "algorithm": {"name": "dp-d-sgd", "sigma": 1.0}, "metrics": {"every": 2, "test_rows": 20},
    "record": {"attackers": [0], "every": 2},
}  # fmt: skip
COMMANDS = {
    "compare": "compare {}",
    "report": "report {}",
    "attack": "attack {} --samples 20",
    "audit": "audit {} --runs 0 --repetitions 100",
    "resume": "run {}/../sent.json --out {}/.. --resume",
}
WRONG = (None, True, -1, 0.5, 1e300, "x", "\x1b[31m", "\ud800", [], [[]], {}, {"x": 1}, 2**70, float("nan"))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A finished run that has every file that there can be, with its settings beside it."""
    place = tmp_path_factory.mktemp("original")
    (place / "edges.txt").write_text("a b\nb c\nc d\nd a\n")
    document = DOCUMENT | {"topology": {"graph": f"file:{place / 'edges.txt'}"}}
    (place / "sent.json").write_text(json.dumps(document))
    run_experiment(parse_experiment(document), place / "sent")
    return place


@pytest.fixture(scope="module")
def complete(original, tmp_path_factory):
    """The same after an attack, an audit and a page."""
    from sottovoce.cli import main

    with pytest.MonkeyPatch.context() as patch:
        for line in ("attack {} --samples 20", "audit {} --runs 0 --repetitions 100", "compare {}"):
            patch.setattr("sys.argv", ["sotto", "--quiet", *line.format(original / "sent").split()])
            with pytest.raises(SystemExit) as stop:
                main()
            assert not stop.value.code
    return original


@pytest.fixture
def sent(complete, tmp_path):
    """A copy of it to change."""
    shutil.copytree(complete, tmp_path / "got")
    return tmp_path / "got" / "sent"


def ends_properly(sotto, line, folder):
    """The command's code; whatever is wrong is one line, and nobody is told of something unexpected."""
    code, out, err = sotto(line.format(folder, folder))
    assert code in (0, 1, 2, 3), (line, code, err)
    assert "Traceback" not in err + out
    assert "unexpected" not in err + out, err
    assert "\x1b" not in err + out
    if code > 1:
        assert err.startswith("sotto: ")
        assert err.count("\n") == 1
    return code


# --- edited files ----------------------------------------------------------------------------------------------------


def places_in(document, path=()):
    """Every field of a document, with one of each list to stand for the others."""
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places_in(value, (*path, key))
    elif isinstance(document, list) and document:
        yield from places_in(document[-1], (*path, len(document) - 1))


def changed(document, path, value):
    """A copy with another value at a place."""
    if not path:
        return value
    out = copy.copy(document)
    out[path[0] if isinstance(out, dict) else int(path[0])] = changed(document[path[0]], path[1:], value)
    return out


def documents(folder):
    """Every JSON file of a run; of metrics the last line."""
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".jsonl", ".key"):
            yield path, json.loads(path.read_text().splitlines()[-1] if path.suffix == ".jsonl" else path.read_text())


def put(path, document):
    text = json.dumps(document)
    if path.suffix == ".jsonl":
        text = "\n".join([*path.read_text().splitlines()[:-1], text])
    path.write_text(text + "\n")


def edits(folder):
    """Every field of every file, with every wrong value in turn."""
    for path, document in documents(folder):
        for place in places_in(document):
            yield path, document, place


def test_every_field_edited_ends_properly(sotto, sent):
    """Every fourth field, with values and commands in turn; the slow test has all of them."""
    values, lines = cycle(WRONG), cycle(COMMANDS.values())
    for path, document, place in list(edits(sent))[::4]:
        before = path.read_bytes()
        put(path, changed(document, place, next(values)))
        ends_properly(sotto, next(lines), sent)
        path.write_bytes(before)


NAMES = (
    "attack.json", "audit.json", "config.json", "graph.json", "metrics.jsonl", "noise.key", "privacy.json",
    "private.json", "result.json",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", NAMES)
def test_every_field_with_every_wrong_value_ends_properly(name, command, sotto, sent):
    assert {path.name for path, _ in documents(sent)} == set(NAMES)
    for path, document, place in edits(sent):
        if path.name == name:
            before = path.read_bytes()
            for value in WRONG:
                put(path, changed(document, place, value))
                ends_properly(sotto, COMMANDS[command], sent)
            path.write_bytes(before)


def rewritten(path, arrays):
    """An npz file with a right checksum, whatever it holds."""
    with path.open("wb") as file:
        write_npz(file, arrays)


BAD_ARRAYS = {
    "nan": lambda array: np.full(array.shape, np.nan),
    "another shape": lambda array: np.zeros((*array.shape, 2), array.dtype),
    "fewer rows": lambda array: array[:1],
    "no dimension": lambda array: np.zeros((), array.dtype),
    "text": lambda array: np.full(array.shape, "x"),
    "booleans": lambda array: np.ones(array.shape, bool),
    "negative": lambda array: np.full(array.shape, -7).astype(array.dtype),
    "empty": lambda array: array[:0],
    "missing": lambda array: None,
}


@pytest.mark.parametrize("how", BAD_ARRAYS)
def test_every_array_edited_ends_properly(how, sotto, sent):
    for path in (sent / "checkpoint.npz", sent / "messages" / "0000002.npz"):
        before, stored = path.read_bytes(), read_checked_npz(path)
        for name, array in stored.items():
            changes = stored | {name: BAD_ARRAYS[how](array)}
            rewritten(path, {key: value for key, value in changes.items() if value is not None})
            ends_properly(sotto, COMMANDS["attack"], sent)
        path.write_bytes(before)


@pytest.fixture(scope="module")
def stopped_once(original, tmp_path_factory):
    """A run that was interrupted after two rounds."""
    place = tmp_path_factory.mktemp("stopped")

    def interrupt(_, state):
        if state.rounds == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(parse_experiment(DOCUMENT), place / "sent", on_round=interrupt)
    return place / "sent"


@pytest.fixture
def stopped(stopped_once, tmp_path):
    return shutil.copytree(stopped_once, tmp_path / "stopped")


ABOUT = {
    "rounds": [-1, 5, 2**62, 1.5, True, None, "2"], "lines": [-1, 9, None], "seconds": [-1.0, "x", None],
    "nonfinite": [-1, 0.5], "wire": [-1], "sent": [[-1, 0], [0], [0, 0, 0], "ab"], "carry": [[], {}, {"array": 9}],
    "parts": [["checkpoint.2.1of2.npz"], ["../sent/checkpoint.2.1of2.npz"], "x"], "format": [0, "x"],
}  # fmt: skip


def test_a_doctored_checkpoint_is_refused_whatever_its_checksum_says(stopped):
    path = stopped / "checkpoint.npz"
    before, stored = path.read_bytes(), read_checked_npz(path)
    about = json.loads(stored["about"].tobytes())
    assert set(ABOUT) | {"fingerprint"} == set(about)
    for key, values in ABOUT.items():
        for value in values:
            text = json.dumps(about | {key: value}).encode()
            rewritten(path, stored | {"about": np.frombuffer(text, np.uint8)})
            with pytest.raises(InputError, match=r"checkpoint[^/]*\.npz: "):
                run_experiment(parse_experiment(DOCUMENT), stopped, resume=True)
    for how in ("nan", "another shape", "fewer rows", "text", "missing"):
        changes = stored | {"0": BAD_ARRAYS[how](stored["0"])}
        rewritten(path, {key: value for key, value in changes.items() if value is not None})
        with pytest.raises(InputError, match=r"checkpoint\.npz: "):
            run_experiment(parse_experiment(DOCUMENT), stopped, resume=True)
    np.savez_compressed(path, **stored)
    with pytest.raises(InputError, match=r"compressed|no checksum"):
        run_experiment(parse_experiment(DOCUMENT), stopped, resume=True)
    path.write_bytes(before)
    assert run_experiment(parse_experiment(DOCUMENT), stopped, resume=True)["rounds"] == 4


# --- links, pipes and devices ----------------------------------------------------------------------------------------


def everything_in(folder):
    """All files and folders of a run."""
    return sorted(path for path in folder.rglob("*"))


def replace_by(kind, path, outside):
    """Put something else in the place of a file or folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a link to nothing":
        path.symlink_to(outside / "nothing")
    else:
        path.symlink_to(outside / path.name)


def contents_of(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


OTHERS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("a link to nothing", "a device", "a folder")]


@pytest.mark.parametrize("kind", ["a link", "a pipe", *OTHERS])
def test_nothing_is_read_or_written_through_what_is_no_file(kind, sotto, sent, tmp_path):
    """Whatever lies in the place of each file, commands end with a line, and nothing outside is touched."""
    outside = shutil.copytree(sent, tmp_path / "outside")
    (outside / "lock").write_text("precious")
    before, lines = contents_of(outside), cycle(COMMANDS.values())
    for path in everything_in(sent):
        kept = shutil.copytree(sent, tmp_path / "kept", symlinks=True)
        if path.parent == sent:
            replace_by(kind, path, outside)
        else:
            replace_by(kind, path, outside / path.parent.name)
        ends_properly(sotto, next(lines), sent)
        assert contents_of(outside) == before, path
        shutil.rmtree(sent)
        kept.rename(sent)


@pytest.mark.parametrize("name", ["attack.json", "audit.json", "report.html"])
def test_results_replace_a_link_instead_of_following_it(name, sotto, sent, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text((sent / name).read_text())
    (sent / name).unlink()
    (sent / name).symlink_to(precious)
    before = precious.read_bytes()
    for line in COMMANDS.values():
        ends_properly(sotto, line, sent)
    assert precious.read_bytes() == before


def test_a_link_in_place_of_what_grows_is_refused(stopped, tmp_path):
    for name in ("metrics.jsonl", "lock", "checkpoint.npz", "privacy.json", "messages"):
        kept = (stopped / name).rename(tmp_path / "kept")
        (stopped / name).symlink_to(kept)
        before = contents_of(kept) if kept.is_dir() else kept.read_bytes()
        with pytest.raises(InputError, match=r" is a link; | is not a folder; "):
            run_experiment(parse_experiment(DOCUMENT), stopped, resume=True)
        assert (contents_of(kept) if kept.is_dir() else kept.read_bytes()) == before
        (stopped / name).unlink()
        kept.rename(stopped / name)


# --- files that settings name ----------------------------------------------------------------------------------------


def test_settings_of_a_finished_run_open_no_file_by_themselves(sotto, sent, tmp_path):
    """A pipe would hang whoever opens it, and the first line of a key file would come to the page."""
    secret = tmp_path / "secret.key"
    secret.write_text("precious-key-material and more\n")
    os.mkfifo(tmp_path / "pipe")
    settings = json.loads((sent / "config.json").read_text())
    for name in ("pipe", "secret.key"):
        for section, key in (("topology", "graph"), ("data", "name")):
            edited = settings | {section: settings[section] | {key: f"file:{tmp_path / name}"}}
            (sent / "config.json").write_text(json.dumps(edited))
            for command in ("compare", "attack", "audit"):
                code, out, err = sotto(COMMANDS[command].format(sent))
                assert code in (0, 1, 2)
                assert "precious" not in out + err + (sent / "report.html").read_text()


def test_data_of_a_finished_run_is_asked_for(sotto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOTTOVOCE_DATA", raising=False)
    rng = np.random.default_rng(0)
    inputs, targets = rng.standard_normal((200, 3)), rng.integers(0, 2, 200)
    (tmp_path / "mine").mkdir()
    np.savez(tmp_path / "mine" / "rows.npz", inputs=inputs, targets=targets)
    document = DOCUMENT | {"data": {"name": "file:mine/rows.npz"}}
    (tmp_path / "own.json").write_text(json.dumps(document))
    assert sotto("run own.json")[0] == 0
    code, _, err = sotto("attack runs/sent")
    assert (code, err.count("\n")) == (2, 1)
    assert (
        "the settings of a finished run never open files on their own; name the folder that holds it with --data" in err
    )
    assert sotto("attack runs/sent --data mine")[0] == 0
    assert sotto("audit runs/sent --data . --runs 0 --repetitions 100")[0] == 0
    code, _, err = sotto("compare runs/sent")
    assert (code, "privacy.json (data.name of the run is the file" in err) == (0, True)
    assert sotto("compare runs/sent --data mine") == (0, *sotto("compare runs/sent --data mine")[1:])


def test_a_graph_from_a_file_is_recorded(complete, sotto, sent):
    """The file is gone or changed, and the run is read as it was."""
    stored = json.loads((sent / "graph.json").read_text())
    assert (stored["labels"], stored["nodes"], len(stored["edges"])) == (list("abcd"), 4, 4)
    edges = complete / "edges.txt"
    kept = edges.rename(complete / "elsewhere")
    try:
        for command in ("compare", "attack", "audit"):
            assert sotto(COMMANDS[command].format(sent))[0] == 0
    finally:
        kept.rename(edges)
    page = (sent / "report.html").read_text()
    assert '"labels":["a","b","c","d"]' in page


# --- claims ----------------------------------------------------------------------------------------------------------


def edit(path, *place, value):
    document = json.loads(path.read_text())
    put(path, changed(document, place, value))


DOCTORED = {
    "epsilon of the headline": lambda folder: edit(folder / "privacy.json", "headline", "epsilon", value=0.5),
    "one figure of a node": lambda folder: edit(
        folder / "privacy.json", "views", 1, "guarantees", 0, "epsilon", value=0.5
    ),
    "epsilon of the result": lambda folder: edit(folder / "result.json", "headline", "epsilon", value=0.5),
    "sigma": lambda folder: edit(folder / "privacy.json", "sigma", value=2.0),
    "rounds": lambda folder: edit(folder / "privacy.json", "rounds", value=3),
    "whom it covers": lambda folder: edit(folder / "privacy.json", "covers", "everyone", value=False),
    "assumptions": lambda folder: edit(folder / "privacy.json", "headline", "assumptions", value=[]),
    "the page": lambda folder: (folder / "report.html").write_text(
        (folder / "report.html").read_text().replace('"epsilon":', '"epsilon":0,"was":', 1)
    ),
    "all figures, and consistently": lambda folder: shrink(folder),
}


def shrink(folder):
    """Every mu halved, with the epsilon that belongs to it: nothing contradicts anything but the settings."""
    from sottovoce.privacy.gaussian_dp import epsilon_of

    def smaller(part):
        if isinstance(part, list):
            return [smaller(one) for one in part]
        if not isinstance(part, dict):
            return part
        out = {key: smaller(value) for key, value in part.items()}
        if isinstance(out.get("mu"), float):
            out["mu"] /= 2
            out |= {"epsilon": epsilon_of(out["mu"], 1e-5)} if "epsilon" in out else {}
        return out

    for name in ("privacy.json", "result.json"):
        put(folder / name, smaller(json.loads((folder / name).read_text())))
    document = json.loads((folder / "privacy.json").read_text())
    put(folder / "privacy.json", document | {"over_rounds": []})
    (folder / "report.html").unlink()


@pytest.mark.parametrize(("how", "command"), in_turn(DOCTORED, ["audit", "compare"]))
def test_a_folder_that_contradicts_itself_is_a_finding(how, command, sotto, sent):
    DOCTORED[how](sent)
    code, out, _ = sotto(COMMANDS[command].format(sent))
    assert (code, out.startswith("Finding: ")) == (1, True), out
    if command == "audit":
        stored = json.loads((sent / "audit.json").read_text())
        assert (stored["consistent"], stored["findings"] != []) == (False, True)


@pytest.mark.parametrize("how", ["epsilon of the headline", "sigma", "one figure of a node"])
def test_a_run_does_not_go_on_with_doctored_guarantees(how, stopped):
    DOCTORED[how](stopped)
    with pytest.raises(InputError, match=r"privacy\.json: .*guarantees follow from the settings; restore"):
        run_experiment(parse_experiment(DOCUMENT), stopped, resume=True)


def test_a_finished_run_with_a_doctored_result_is_not_read(sotto, sent):
    DOCTORED["epsilon of the result"](sent)
    code, _, err = sotto(COMMANDS["resume"].format(sent, sent))
    assert (code, err.count("\n")) == (2, 1)
    assert "result.json: headline.epsilon is 0.5" in err


def test_a_finished_run_that_is_only_read_says_how_far_it_was_checked(sotto, sent):
    code, _, err = sotto(COMMANDS["resume"].format(sent, sent))
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith(f"Finished before, and only read: {sent}/../sent. Not checked: ")
    assert sotto(COMMANDS["resume"].format(sent, sent) + " --json")[::2] == (0, "")


def test_only_reruns_of_this_auditor_are_used(sotto, sent, tmp_path, monkeypatch):
    line = f"audit {sent} --runs 2 --repetitions 100 --jobs 1 --json"
    code, first, err = sotto(line)
    assert (code, err) == (0, "")
    (results,) = (sent / "reruns").iterdir()
    assert sotto(line) == (0, first, "")
    path = results / "0001.npz"
    stored, before = read_checked_npz(path), path.read_bytes()
    rewritten(path, stored | {"losses": stored["losses"] + 5.0})
    code, out, err = sotto(line)
    assert (code, out, err.count("\n")) == (0, first, 1)
    assert "1 of the reruns in" in err
    assert path.read_bytes() == before
    for kind in ("npz", "signature"):
        shutil.copy(results / f"0001.{kind}", results / f"0002.{kind}")
    key = state_folder() / "auditor.key"
    assert (stat.S_IMODE(key.stat().st_mode), len(key.read_bytes())) == (0o600, 32)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another auditor"))
    code, out, err = sotto(line)
    assert (code, out) == (0, first)
    assert "3 of the reruns in" in err, "also the one in another's place"


# --- who may read what -----------------------------------------------------------------------------------------------


def test_everything_in_a_run_folder_is_its_owners_alone(complete, tmp_path, monkeypatch):
    before = os.umask(0)
    try:
        run_experiment(parse_experiment(DOCUMENT), tmp_path / "open" / "sent")
    finally:
        os.umask(before)
    for folder in (complete / "sent", tmp_path / "open" / "sent"):
        for path in (folder, *everything_in(folder)):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    known = {kind.name for kind in FILES}
    assert {path.name for path in (complete / "sent").iterdir()} <= known


def test_comparisons_and_pages_read_no_private_file(sotto, sent, complete):
    page = "compare {} --title same --json"
    code, first, _ = sotto(page.format(sent))
    shown = (sent / "report.html").read_bytes()
    for kind in FILES:
        path = sent / kind.name
        if kind.audience is Audience.PRIVATE and path.exists():
            replace_by("a pipe", path, sent)
    assert (code, sotto(page.format(sent))[:2]) == (0, (0, first))
    assert (sent / "report.html").read_bytes() == shown


def test_no_public_file_holds_the_noise_key(complete):
    for kind in FILES:
        path = complete / "sent" / kind.name
        if path.is_file() and kind.audience is not Audience.PRIVATE:
            assert DOCUMENT["noise_key"].encode() not in path.read_bytes()
    assert DOCUMENT["noise_key"] in (complete / "sent" / "noise.key").read_text()


def test_settings_without_their_key_ask_for_it(sotto, sent):
    (sent / "noise.key").unlink()
    code, _, err = sotto(f"run {sent}/config.json --out {sent.parent / 'again'}")
    assert (code, err.count("\n")) == (2, 1)
    assert "noise.key: not there; the settings take their noise key from it; restore it, or add --set" in err
    assert sotto(f"attack {sent} --samples 20")[0] == 0


# --- leftovers -------------------------------------------------------------------------------------------------------


def test_what_killed_processes_left_is_swept(sotto, sent):
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, other = sent / f"report.html.{gone.pid}.x1y2.part", sent / f"report.html.{os.getpid()}.x1y2.part"
    mine = sent / "report.html.part"
    for path in (left, other, mine):
        path.write_text("half")
    assert sotto(COMMANDS["compare"].format(sent))[0] == 0
    assert [path.exists() for path in (left, other, mine)] == [False, True, True]


# --- the validator ---------------------------------------------------------------------------------------------------


def trimmed(document):
    """With one element of each list."""
    if isinstance(document, dict):
        return {key: trimmed(value) for key, value in document.items()}
    return [trimmed(one) for one in document[-1:]] if isinstance(document, list) else document


@pytest.mark.parametrize("name", ["privacy.json", "attack.json", "noise.key"])
def test_schemas_are_checked_as_the_library_does(name, complete):
    """On every edit that the library refuses, and on what is right."""
    checker = jsonschema.Draft202012Validator(schema(name))
    document = trimmed(next(one for path, one in documents(complete / "sent") if path.name == name))
    assert problem_in(document, name) is None
    for place in places_in(document):
        for value in WRONG:
            edited = changed(document, place, value)
            if not checker.is_valid(edited):
                assert problem_in(edited, name) is not None, (place, value)
