"""Metrics of members, for whoever watches their machines."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request

import pytest

from sottovoce.errors import InputError
from sottovoce.federation import peer_transport
from sottovoce.federation.metrics import Metrics, exported
from sottovoce.federation.rehearsal import free_ports
from tests.federation.clinics import Clinics


def read(text):
    """Values by name with labels; refuses what Prometheus does not read."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            name, labels, value = re.fullmatch(r"(sottovoce_[a-z_]+)(\{[^{}]*\})? (\S+)", line).groups()
            assert f"# TYPE {name} " in text
            found[name.removeprefix("sottovoce_") + (labels or "")] = float(value)
    return found


def test_metrics_say_what_a_member_has_done_and_whom_it_has_heard(tmp_path):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=4)
    results = clinics.run(agreement)
    found = read(clinics.metrics["Mercy"].text())
    assert (found["rounds"], found["rounds_planned"], found["finished"]) == (4, 4, 1)
    for other in ("Hill", "North"):
        heard, missed = (found[f'{what}_total{{member="{other}"}}'] for what in ("heard", "missed"))
        assert (heard, missed) == (results["Mercy"]["heard"]["members"][other], 0)
        assert found[f'last_message_timestamp_seconds{{member="{other}"}}'] > 1.7e9
    assert found["epsilon_spent"] == found["epsilon_planned"] == pytest.approx(3.0, rel=0.01)
    assert found["sent_bytes_total"] > 4 * 2 * 8
    assert found['certificate_ends_timestamp_seconds{member="Mercy"}'] > 2.0e9
    assert 'heard_total{member="North"}' not in read(clinics.metrics["Hill"].text())


def test_they_are_served_and_written_and_one_who_says_nothing_keeps_nobody_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr("sottovoce.federation.metrics.SECONDS", 0.2)
    (port,), file, metrics = free_ports(1), tmp_path / "member.prom", Metrics()
    with exported(metrics, f"127.0.0.1:{port}", file), socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(bytes(1000))
        metrics.add("refused", member="Hill", reason="its length")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20.0) as answer:
            assert read(answer.read().decode()) == {'refused_total{member="Hill",reason="its length"}': 1}
        metrics.set("rounds", 7)
        with pytest.raises(InputError, match="a free port"), exported(metrics, f"127.0.0.1:{port}", None):
            pass
    assert read(file.read_text())["rounds"] == 7
    assert file.stat().st_mode & 0o777 == 0o644
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_neighbour_whose_models_are_poison_is_named_and_counted_in_units_of_noise(tmp_path, monkeypatch):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree('name = "dp-d-sgd"\nstep_size = 0.5\naggregation = "clipped:1.0"', rounds=4)
    encoded = peer_transport._encoded

    def poisoned(outgoing):
        lies = threading.current_thread().name == "Mercy"
        return encoded({one: 1000 * tensor if lies else tensor for one, tensor in outgoing.items()})

    monkeypatch.setattr(peer_transport, "_encoded", poisoned)
    results = clinics.run(agreement)
    distance = {name: read(clinics.metrics[name].text()) for name in clinics.names}
    assert distance["Hill"]['distance{member="Mercy"}'] > 100
    assert {facts["members"][0] for event, facts in clinics.events["Hill"] if event == "far"} == {"Mercy"}
    assert results["Hill"]["rounds"] == 4
    monkeypatch.undo()
    (tmp_path / "honest").mkdir()
    honest = Clinics(tmp_path / "honest")
    honest.run(honest.agree(rounds=4))
    found = read(honest.metrics["Mercy"].text())
    assert all(0.1 < found[f'distance{{member="{other}"}}'] < 3 for other in ("Hill", "North"))
    assert not any(event == "far" for event, _ in honest.events["Mercy"])
