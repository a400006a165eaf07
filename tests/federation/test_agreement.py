"""Agreements: equal at every member, checked when they are read, and without anything private."""

from __future__ import annotations

import copy
import hashlib
import json
import tomllib
from pathlib import Path

import pytest

from sottovoce.errors import InputError
from sottovoce.federation.agreement import first_difference, parse_agreement, read_agreement
from sottovoce.federation.assembly import assemble_agreement
from sottovoce.federation.identity import create_identity
from sottovoce.federation.member import check_name
from sottovoce.support import config
from sottovoce.support.config import set_key
from sottovoce.support.own_code import code_from
from sottovoce.support.text import to_toml
from tests.federation.clinics import Clinics
from tests.federation.federation import COLUMNS, SETTINGS, agreement_in, member_files, prepare


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("clinics")
    prepare(place)
    return place


@pytest.fixture(scope="module")
def agreement(folder):
    return assemble_agreement(folder / "settings.toml", member_files(folder))


def test_an_agreement_is_read_back(agreement, tmp_path):
    (tmp_path / "agreement.toml").write_text(agreement.toml())
    found = read_agreement(tmp_path / "agreement.toml")
    assert (found, found.hash, first_difference(found, agreement)) == (agreement, agreement.hash, None)


def test_the_hash_is_of_what_it_says_and_not_of_how_it_is_written(agreement):
    document = tomllib.loads(agreement.toml())
    reversed_ = {key: document[key] for key in reversed(document)}
    reversed_["privacy"] = {"epsilon": 3, "delta": 0.00001}  # other keys have their defaults
    reversed_["algorithm"]["step_size"] = 0.5
    reversed_["message_range"] = [-1000000, 1e6]
    assert parse_agreement(reversed_, "here").hash == agreement.hash


CHANGES = [
    (["training", "rounds"], 5),
    (["privacy", "delta"], 1e-6),
    (["algorithm", "step_size"], 0.25),
    (["model", "name"], "softmax"),
    (["seed"], 4),
    (["message_range"], [-10.0, 10.0]),
    (["nonce"], "00" * 32),
    (["data", "unit_norm"], True),
    (["topology", "weights"], "max-degree"),
]


@pytest.mark.parametrize(("path", "value"), CHANGES, ids=lambda change: ".".join(change) if change is list else "")
def test_whatever_differs_is_named_and_changes_the_hash(agreement, path, value):
    other = parse_agreement(set_key(tomllib.loads(agreement.toml()), path, value), "here")
    assert other.hash != agreement.hash
    assert first_difference(agreement, other).startswith(".".join(path) + ": ")


def test_members_and_columns_that_differ_are_named(agreement):
    document = tomllib.loads(agreement.toml())
    document["members"][1]["rows"] = 21
    assert first_difference(agreement, parse_agreement(document, "here")) == "members.Mercy.rows: 20 and 21"
    document = tomllib.loads(agreement.toml())
    document["data"]["columns"]["columns"][0]["range"] = [0, 110]
    found = first_difference(agreement, parse_agreement(document, "here"))
    assert found == "data.columns.columns.1. age.range: [0, 120] and [0, 110]"
    columns = tomllib.loads(agreement.toml())["data"]["columns"]["columns"]
    swapped = set_key(
        tomllib.loads(agreement.toml()), ["data", "columns", "columns"], [columns[1], columns[0], columns[2]]
    )
    assert parse_agreement(swapped, "here").hash != agreement.hash


def test_the_same_settings_give_another_agreement_each_time(folder, agreement):
    again = assemble_agreement(folder / "settings.toml", member_files(folder))
    assert first_difference(agreement, again).startswith("nonce: ")


def test_it_holds_nothing_private(folder, agreement):
    text = agreement.toml()
    for path in folder.glob("*/identity.json"):
        private = json.loads(path.read_text())
        parts = [private["exchange_key"], private["secret"], *private["tls_key"].splitlines()[1:-1]]
        assert not any(part in text for part in parts)
    assert str(folder) not in text
    assert "noise_key" not in text


def test_nodes_are_members_in_the_order_of_their_names(folder, agreement):
    assert agreement.topology.graph == "edges:Hill--Mercy,Mercy--North"
    assert agreement.neighbours("Mercy") == ("Hill", "North")
    by_name = SETTINGS.replace("path:3", "edges:Mercy->North,North->Hill,Hill->Mercy").replace("dp-d-sgd", "dp-csgp")
    (folder / "named.toml").write_text(by_name)
    found = assemble_agreement(folder / "named.toml", list(reversed(member_files(folder))))
    assert found.topology.graph == "edges:Hill->Mercy,Mercy->North,North->Hill"
    assert found.neighbours("Mercy") == ("Hill", "North")


def changed(agreement, path, value):
    """The document of the agreement with another value; None removes the key."""
    document = copy.deepcopy(tomllib.loads(agreement.toml()))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    if value is None:
        del place[path[-1]]
    return document


WRONG = [
    (["noise_key"], "00" * 16, "noise_key; every member draws its noise from secrets of its own; leave it out"),
    (["machine"], {"threads": 2}, "machine; apart from precision, each member decides on its own how it computes"),
    (["training", "round"], 2, "training.round; there is no such key; did you mean training.rounds?"),
    (["members", 0, "adress"], "x:1", "did you mean members.0.address?"),
    (["members", 0, "certificate"], "none", "the certificate of Hill is damaged"),
    (["members", 0, "exchange_key"], "12", "the exchange_key of Hill is damaged"),
    (["members", 0, "name"], "MERCY", "MERCY and Mercy have the same name"),
    (["members", 0, "name"], "Zoe", "they must be sorted by name"),
    (["members", 0, "address"], None, "Hill listens and has no address"),
    (["members", 0, "rows"], 0, "members.0.rows = 0"),
    (["members", 0, "rows"], None, "members.0.rows is missing"),
    (["topology", "graph"], "path:3", "names both ends of every edge"),
    (["topology", "graph"], "edges:Hill--Mercy", "North only in the graph, or only among the members"),
    (
        ["topology", "graph"],
        "edges:Hill--Mercy,Mercy--North,North--West",
        "West only in the graph, or only among the members",
    ),
    (["topology", "dropout"], 0.1, "topology.dropout; there is no such key"),
    (["message_range"], [1.0, 2.0], "0 must lie within it"),
    (["nonce"], "1", "64 hexadecimal digits"),
    (["privacy", "exact_noise"], False, "members always use exact noise if it is possible; leave it out"),
    (["data", "path"], "/srv/patients.csv", "data.path; there is no such key"),
    (["data", "columns", "target"], "age2", "target 'age2'"),
]


@pytest.mark.parametrize(("path", "value", "reason"), WRONG, ids=lambda case: case if isinstance(case, str) else "")
def test_what_is_wrong_is_said_in_one_line(agreement, path, value, reason):
    with pytest.raises(InputError) as refusal:
        parse_agreement(changed(agreement, path, value), "agreement.toml")
    assert reason in str(refusal.value)
    assert str(refusal.value).startswith("agreement.toml: ")


def test_one_key_for_two_members_is_refused(agreement):
    document = tomllib.loads(agreement.toml())
    document["members"][0]["certificate"] = document["members"][1]["certificate"]
    with pytest.raises(InputError, match="Hill and Mercy have the same certificate"):
        parse_agreement(document, "here")


def test_an_edge_that_nobody_can_open_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "settings.toml").write_text(SETTINGS)
    (tmp_path / "patients.columns.toml").write_text(COLUMNS)
    for name in ("Hill", "Mercy", "North"):
        create_identity(name, tmp_path / name, address=f"{name}.example:1", listen=name == "Hill")
    with pytest.raises(InputError, match=r"between Mercy and North, and neither listens; .* leave that edge out"):
        assemble_agreement(tmp_path / "settings.toml", member_files(tmp_path))
    (tmp_path / "star.toml").write_text(SETTINGS.replace("path:3", "star:3"))
    assert assemble_agreement(tmp_path / "star.toml", member_files(tmp_path)).neighbours("Hill") == ("Mercy", "North")


DRAFTS = [
    (SETTINGS.replace("Hill = 12\n", ""), "no rows for Hill"),
    (SETTINGS.replace("Hill = 12", "Hill = 12\nWest = 3"), "[rows] names West"),
    (SETTINGS.replace("path:3", "path:4"), "path:4 has 4 nodes; there are 3 member files"),
    (SETTINGS.replace("path:3", "edges:Hill--Mercy,Mercy--Nort"), "nodes and members must be the same"),
    (SETTINGS.replace("seed = 3", 'noise_key = "00112233445566778899aabbccddeeff"'), "noise_key; every member"),
    (SETTINGS.replace("patients.columns.toml", "other.columns.toml"), "other.columns.toml: No such file"),
]


@pytest.mark.parametrize(("settings", "reason"), DRAFTS, ids=[reason for _, reason in DRAFTS])
def test_settings_that_make_no_agreement_are_refused(folder, settings, reason):
    (folder / "draft.toml").write_text(settings)
    with pytest.raises(InputError) as refusal:
        assemble_agreement(folder / "draft.toml", member_files(folder))
    assert reason in str(refusal.value)


def test_a_member_that_could_sign_for_others_is_not_taken(tmp_path):
    agreement = agreement_in(tmp_path)
    (first, *_) = member_files(tmp_path)
    member = tomllib.loads(first.read_text())
    first.write_text(to_toml({**member, "exchange_key": "zz" * 32}))
    with pytest.raises(InputError, match="exchange_key of Hill is damaged"):
        assemble_agreement(Path(tmp_path / "settings.toml"), member_files(tmp_path))
    assert agreement.members[0].name == "Hill"


def test_an_algorithm_that_cannot_be_built_is_refused_on_reading(agreement):
    with pytest.raises(InputError, match="algorithm 'dp-nothing'; known: "):
        parse_agreement(changed(agreement, ["algorithm", "name"], "dp-nothing"), "agreement.toml")


def test_no_agreement_is_made_that_join_would_refuse_for_its_length(tmp_path, monkeypatch):
    agreement = agreement_in(tmp_path)
    monkeypatch.setattr(config, "LONGEST_FILE", len(agreement.toml()) - 1)
    with pytest.raises(InputError, match=r"the agreement of 3 members: [0-9,]+ characters"):
        assemble_agreement(tmp_path / "settings.toml", member_files(tmp_path))
    (tmp_path / "agreement.toml").write_text(agreement.toml())
    with pytest.raises(InputError, match=r"agreement.toml: [0-9,]+ characters"):
        read_agreement(tmp_path / "agreement.toml")
    monkeypatch.setattr(config, "LONGEST_FILE", len(agreement.toml()))
    assert read_agreement(tmp_path / "agreement.toml") == agreement


def test_an_agreement_has_the_fingerprint_of_its_start(tmp_path):
    clinics, weights = Clinics(tmp_path), tmp_path / "start.safetensors"
    weights.write_bytes(b"weights")
    agreement = clinics.agree(model='name = "logistic"\nstart = "start.safetensors"')
    assert agreement.model.settings["start_sha256"] == hashlib.sha256(b"weights").hexdigest()
    weights.write_bytes(b"others")
    with code_from(tmp_path), pytest.raises(InputError, match="start_sha256"):
        clinics.join(agreement, "Hill")


SIMULATION = """
name = "clinics"
noise_key = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
topology.graph = "edges:Nord--Süd,Süd--北京"
data = {name = "table:tables", partition = "tables", columns = "columns.toml", max_norm = 2.0}
model.name = "logistic"
training = {rounds = 6, clip = "per-example", bound = 1.0, class_weights = {no = 1.0, yes = 3.0}, threshold = 0.4}
algorithm = {name = "dp-d-sgd", step_size = 0.5}
privacy = {epsilon = 4.0}
record.attackers = "all"
machine = {threads = 2, precision = "float64"}
"""


def test_a_simulation_becomes_an_agreement_and_is_simulated_again(tmp_path, monkeypatch):
    """By members whose names are in three alphabets."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    for name, rows in (("Nord", 20), ("Süd", 40), ("北京", 10)):
        cells = "".join(f"{30 + at},{'yes' if at % 3 else 'no'}\n" for at in range(rows))
        (tmp_path / f"tables/{name}.csv").write_text(f"age,ill\n{cells}")
        create_identity(name, tmp_path / name / "peer", address="127.0.0.1:7101")
    columns = 'columns = [{name = "age", range = [20, 90]}, {name = "ill", categories = ["no", "yes"]}]'
    (tmp_path / "columns.toml").write_text(f'target = "ill"\n{columns}\n')
    (tmp_path / "run.toml").write_text(SIMULATION)
    agreement = assemble_agreement(tmp_path / "run.toml", sorted(tmp_path.glob("*/*.member.toml")))
    assert {member.name: member.rows for member in agreement.members} == {"Nord": 16, "Süd": 32, "北京": 8}
    (tmp_path / "agreement.toml").write_text(agreement.toml())
    assert read_agreement(tmp_path / "agreement.toml") == agreement
    simulated, again = config.parse_experiment(tomllib.loads(SIMULATION)), agreement.experiment
    for section in ("training", "algorithm", "model", "topology"):
        assert getattr(again, section) == getattr(simulated, section), section
    assert (again.privacy.epsilon, again.machine.precision, again.data.max_norm) == (4.0, "float64", 2.0)
    assert again.noise_key is None
    (tmp_path / "run.toml").write_text(SIMULATION.replace('partition = "tables"', 'partition = "iid"'))
    with pytest.raises(InputError, match="table each"):
        assemble_agreement(tmp_path / "run.toml", sorted(tmp_path.glob("*/*.member.toml")))


@pytest.mark.parametrize("name", ["Süd", "北京", "Больница-2", "مستشفى", "Ward_3"])
def test_names_are_of_any_alphabet(name):
    check_name(name, "here")


@pytest.mark.parametrize(
    "name", ["", "1st", "a b", "a/b", "a.b", "Su\u0308d", "x" * 64, "北" * 22, "a\u202eb", "a:b", "-a"]
)
def test_names_that_break_files_or_can_be_written_in_two_ways_are_refused(name):
    with pytest.raises(InputError, match="NFC"):
        check_name(name, "here")


def test_names_that_differ_only_in_wide_letters_are_one_name(agreement):
    document = tomllib.loads(agreement.toml())
    document["members"][1]["name"] = "\N{FULLWIDTH LATIN CAPITAL LETTER H}ill"
    with pytest.raises(InputError, match="same name"):
        parse_agreement(document, "here")
