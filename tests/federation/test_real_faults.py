"""Members as real processes: gone for good, stopped, cut off, on slow lines, with a full disk, another clock, a copy.

The run ends, nobody waits longer than its patience allows, no place has two messages, and models stay within the noise
of undisturbed runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from functools import partial
from itertools import combinations

import numpy as np
import pytest

from sottovoce.federation.attendance import EXTENDED
from sottovoce.ledger.payloads import Place
from sottovoce.ledger.spending import DEFAULT, Spending
from sottovoce.ledger.steps import Steps
from sottovoce.privacy.composition import compose
from tests.federation.clinics import NAMES, Clinics
from tests.federation.packet_network import Line, enter_namespace, packet_network
from tests.federation.real_members import RealMembers, slow_rounds
from tests.federation.undisturbed import models_at_the_end, undisturbed

pytestmark = pytest.mark.slow

PATIENCE = 5.0
LATE = 3.0
"""Seconds by which a busy machine may be late."""


@contextmanager
def playing(clinics, agreement, **more):
    """All members, begun; nothing is left of them at the end."""
    members = RealMembers(clinics, agreement, **more)
    try:
        members.start_all()
        yield members
    finally:
        members.end()


def slowly(names, seconds):
    return {name: (partial(slow_rounds, seconds),) for name in names}


def check_waiting(members, names, patience=PATIENCE):
    """Nobody waits longer in a round, or at the end, than is said; who is missed again and again is not waited for."""
    for name in names:
        waited = members.waited(name)
        assert max(waited.values()) <= EXTENDED * patience + LATE, waited
        long = [round for round, seconds in waited.items() if seconds > 0.5 * patience]
        assert len(long) <= 8, waited


def test_a_member_that_is_gone_for_good(tmp_path):
    clinics = Clinics(tmp_path, NAMES)
    agreement = clinics.agree(graph="ring:4", rounds=30)
    with playing(clinics, agreement, patience=PATIENCE, within=slowly(NAMES, 0.1)) as members:
        members.until_heard("South", 8)
        members.kill("South")
        others = NAMES[:3]
        members.check_fine(names=others)
        assert {gone for _, gone, _ in members.missed()} == {"South"}
        check_waiting(members, others)
        undisturbed(clinics, agreement).check([models_at_the_end(clinics, agreement, others)], slack=2.0)


def test_a_process_that_is_stopped_for_20_seconds_and_goes_on(tmp_path):
    clinics = Clinics(tmp_path, NAMES)
    agreement = clinics.agree(graph="ring:4", rounds=100)
    with playing(clinics, agreement, patience=PATIENCE, within=slowly(NAMES, 0.3)) as members:
        members.until_heard("South", 8)
        members.processes["South"].send_signal(signal.SIGSTOP)
        assert not members.processes["South"].wait(20.0)
        members.processes["South"].send_signal(signal.SIGCONT)
        members.check_fine()
        assert {gone for name, gone, _ in members.missed() if name != "South"} == {"South"}
        check_back(members, {"South"})
        check_waiting(members, NAMES[:3])
        undisturbed(clinics, agreement).check([models_at_the_end(clinics, agreement)], slack=2.0)


def check_back(members, away):
    """In the last round everybody hears everybody."""
    last = members.agreement.training.rounds - 1
    assert {round for _, _, round in members.missed()} & {last} == set()
    assert away <= {gone for _, gone, _ in members.missed()}


def in_namespaces(network, seconds=0.0):
    """Each member in a namespace of its own."""
    return {
        name: (partial(enter_namespace, network.namespaces[number]), partial(slow_rounds, seconds))
        for number, name in enumerate(NAMES)
    }


def clinics_on(network, folder):
    return Clinics(folder, NAMES, tuple(f"{network.address(number)}:7443" for number in range(4)))


WIDE = 'name = "mlp"\nhidden = [3000]'
"""15,001 parameters, which take 60 kB: 48 ms on a line of 10 Mbit/s."""


def test_lines_with_50_ms_and_1_percent_loss_and_10_mbit(tmp_path):
    """Every message arrives: nobody is missed."""
    with packet_network(4, Line(delay=0.05, loss=0.01, rate=10e6)) as network:
        clinics = clinics_on(network, tmp_path)
        agreement = clinics.agree(graph="ring:4", rounds=20, model=WIDE)
        with playing(clinics, agreement, patience=60.0, within=in_namespaces(network)) as members:
            members.check_fine()
            assert members.missed() == set()
            assert len(members.seen()) == 20 * 8
            check_waiting(members, NAMES, patience=60.0)
        assert network.lost >= 5
        assert network.carried >= 20 * 8 * 40


def test_a_slow_line_within_patience_changes_nothing(tmp_path):
    """Messages take 0.5 seconds under way, which no patience of 5 seconds minds."""
    with packet_network(4, Line(delay=0.5)) as network:
        clinics = clinics_on(network, tmp_path)
        agreement = clinics.agree(graph="ring:4", rounds=10)
        with playing(clinics, agreement, patience=20.0, within=in_namespaces(network)) as members:
            members.check_fine()
            assert members.missed() == set()
            check_waiting(members, NAMES, patience=20.0)
            undisturbed(clinics, agreement).check([models_at_the_end(clinics, agreement)])


def test_a_partition_of_30_seconds(tmp_path):
    """Two and two go on apart, and are whole again at the end."""
    with packet_network(4, Line(delay=0.01)) as network:
        clinics = clinics_on(network, tmp_path)
        agreement = clinics.agree(graph="ring:4", rounds=150)
        with playing(clinics, agreement, patience=PATIENCE, within=in_namespaces(network, 0.3)) as members:
            members.until_heard("Hill", 8)
            network.apart = frozenset({0, 1})
            assert not members.processes["Hill"].wait(30.0)
            network.apart = frozenset()
            members.check_fine()
            crossing = {("Mercy", "North"), ("North", "Mercy"), ("Hill", "South"), ("South", "Hill")}
            assert {(name, gone) for name, gone, _ in members.missed()} <= crossing
            check_back(members, {"Mercy", "North"})
            check_waiting(members, NAMES)
            undisturbed(clinics, agreement).check([models_at_the_end(clinics, agreement)], slack=2.0)


# --- a full disk -----------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(place, megabytes):
    """A disk of its own at a folder, where tests run as root; `fill(bytes)` leaves so much room on it."""
    place.mkdir(mode=0o700)
    size = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "none", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(size, check=False).returncode:
        pytest.skip("a small disk can be mounted by root only")

    def fill(left: int | None) -> None:
        (place / "filling").unlink(missing_ok=True)
        if left is None:
            return
        with (place / "filling").open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while file.write(bytes(4096)) == 4096:
                    pass
            file.truncate(max(0, file.tell() - left))

    try:
        yield fill
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_is_full_again_and_again(tmp_path):
    """A member on a full disk ends with code 1 and one line; the others go on, and it comes back when there is room."""
    rng = np.random.default_rng(5)
    with small_disk(tmp_path / "Mercy", 16) as fill:
        clinics = Clinics(tmp_path)
        agreement = clinics.agree(rounds=60)
        with playing(clinics, agreement, within=slowly(clinics.names, 0.1)) as members:
            for _ in range(10):
                members.until_heard("Mercy", members.rounds_heard("Mercy") + 1)
                fill(4096 * int(rng.integers(0, 12)))
                members.processes["Mercy"].wait(60.0)
                _, err = members.processes["Mercy"].communicate()
                last = err.splitlines()[-1]
                assert (members.processes["Mercy"].returncode, last.startswith("sotto: ")) == (1, True), err
                assert "the disk is full; " in last
                assert "make room" in last
                members.check_counted("Mercy")
                assert not members.ended("Hill")
                fill(None)
                members.start("Mercy")
            members.check_fine()
            assert members.missed() == set(), "sixty seconds of patience were enough for every restart"
            undisturbed(clinics, agreement).check([models_at_the_end(clinics, agreement)])


# --- another clock ---------------------------------------------------------------------------------------------------

CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long ahead(void) { const char *said = getenv("SECONDS_AHEAD"); return said ? atol(said) : 0; }
int clock_gettime(clockid_t which, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, now);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += ahead();
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec, now->tv_usec = at.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *stored) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (stored) *stored = at.tv_sec;
    return at.tv_sec;
}
"""


@pytest.fixture
def other_clock(tmp_path):
    """`other_clock(seconds)` is the environment of a process whose time of day is so much ahead, for TLS too."""
    if shutil.which("cc") is None:
        pytest.skip("another clock needs a C compiler")
    (tmp_path / "clock.c").write_text(CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True)
    return lambda seconds: {"LD_PRELOAD": str(library), "SECONDS_AHEAD": str(seconds)}


def test_clocks_that_are_an_hour_off(tmp_path, other_clock):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=10)
    members = RealMembers(clinics, agreement, patience=60.0, gather=120.0)
    try:
        members.start_interpreter("Hill", other_clock(3600))
        members.start_interpreter("North", other_clock(-3600))
        members.start("Mercy")
        members.check_fine()
    finally:
        members.end()
    assert members.missed() == set()
    times = {name: members.events(name, "round")[-1]["time"] for name in clinics.names}
    hours = {name: np.datetime64(time[:19]) for name, time in times.items()}
    assert hours["Hill"] - hours["Mercy"] > np.timedelta64(50, "m")
    assert hours["Mercy"] - hours["North"] > np.timedelta64(50, "m")


# --- a folder that was put back --------------------------------------------------------------------------------------


def test_a_folder_that_was_put_back_in_the_middle_of_a_run_is_refused(tmp_path):
    clinics = Clinics(tmp_path)
    agreement = clinics.agree(rounds=30)
    with playing(clinics, agreement, patience=PATIENCE, within=slowly(clinics.names, 0.2)) as members:
        members.until_heard("Hill", 3)
        members.kill("Hill")
        shutil.copytree(tmp_path / "Hill", tmp_path / "copy")
        members.start("Hill")
        members.until_heard("Hill", members.rounds_heard("Hill") + 3)
        members.kill("Hill")
        shutil.rmtree(tmp_path / "Hill")
        (tmp_path / "copy").rename(tmp_path / "Hill")
        again = members.start("Hill")
        assert again.wait(120.0)
        out, err = again.communicate()
        assert (again.returncode, out) == (2, ""), err
        assert "Mercy has a message of round" in err.splitlines()[-1]
        codes = members.codes()
        assert (codes["Mercy"], codes["North"]) == (0, 0), "the others go on"
        digests = {len(found) for found in members.seen().values()}
        assert digests == {1}, "nothing else left for a place that was seen"


def test_a_copy_among_new_neighbours_counts_two_releases_with_noise_of_their_own(tmp_path):
    """Messages of one member, of the same round and from the same rows: any two differ by two draws of noise.

    The third run is the second once more, by a copy of the member's folder and a neighbour that remembers nothing.
    """
    clinics, messages = Clinics(tmp_path), []
    shutil.copytree(tmp_path / "Mercy", tmp_path / "copy of Mercy")
    shutil.copytree(tmp_path / "North", tmp_path / "copy of North")
    agreements = []
    for names in (("Hill", "Mercy"), ("Mercy", "North")):
        clinics.names = names
        agreements.append(clinics.agree(rounds=1, model=WIDE))
        messages.append(first_message(clinics, agreements[-1], "Mercy"))
    with clinics.ledger("Mercy") as database:
        found = Spending(database).lineage(DEFAULT)
    one_release = compose([found.runs[0].counted]).epsilon(1e-5)
    assert len(found.runs) == 2
    assert found.counted.epsilon(1e-5) > 1.3 * one_release
    for name in clinics.names:
        shutil.rmtree(tmp_path / name)
        (tmp_path / f"copy of {name}").rename(tmp_path / name)
    messages.append(first_message(clinics, agreements[-1], "Mercy"))
    deviation = noise_in_a_message(clinics, agreements[-1], "Mercy")
    for one, other in combinations(messages, 2):
        ratio = float(((one - other) ** 2).mean() / (2 * deviation**2))
        assert 0.93 < ratio < 1.07, "two draws, neither one nor none"


def first_message(clinics, agreement, sender):
    """Play a run of one round; what a member sent, as its ledger has it."""
    with playing(clinics, agreement, within=dict.fromkeys(clinics.names, (keep_messages,))) as members:
        assert set(members.codes().values()) == {0}
    with clinics.ledger(sender) as database:
        (payload,) = Steps(database, agreement.hash).step(Place(0, 0)).outgoing.values()
    return np.frombuffer(payload, dtype="<f4").astype(float)


def keep_messages():
    """In a member's process: messages stay in its ledger after the run."""
    Steps.forget = lambda *_: None


def noise_in_a_message(clinics, agreement, name):
    """The standard deviation of the noise in the first message: the step size times that of a noisy gradient."""
    privacy = json.loads((clinics.run_folder(agreement, name) / "privacy.json").read_text())
    return agreement.algorithm.settings["step_size"] * privacy["sigma"] * privacy["sensitivity"]
