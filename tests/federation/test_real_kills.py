"""kill -9 of real processes at random moments, and `sotto peer join --resume` after each."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from tests.federation.clinics import Clinics
from tests.federation.real_members import LONGEST, RealMembers
from tests.federation.undisturbed import models_at_the_end, undisturbed


class Killer:
    """Kills members at moments that a seed decides, starts them again, and looks into their ledgers in between."""

    def __init__(self, members: RealMembers, rng: np.random.Generator) -> None:
        self.members, self.rng = members, rng
        self.when: Counter[str] = Counter()
        self.epsilon = dict.fromkeys(members.clinics.names, 0.0)

    def kill(self, most: int) -> int:
        """Kill so many, or fewer if the run ends; how many were killed."""
        killed = 0
        while killed < most and (alive := [name for name in self.members.processes if not self.members.ended(name)]):
            victims = self.rng.permutation(alive)[: 1 + (self.rng.random() < 0.2)].tolist()
            self._let_pass(victims[0])
            struck = [name for name in victims if not self.members.ended(name)]
            for name in struck:
                self.members.kill(name)
            for name in struck:
                self._look(name)
                self.members.start(name)
            killed += len(struck)
        return killed

    def _let_pass(self, name: str) -> None:
        """Some time, in which a process may still be starting, or some steps and a part of one."""
        process, before = self.members.processes[name], self.members.rounds_heard(name)
        if self.rng.random() < 0.3:
            process.wait(self.rng.uniform(0.0, 0.6))
            return
        steps = int(self.rng.integers(1, 3))
        for _ in range(int(LONGEST / 0.002)):
            if self.members.rounds_heard(name) >= before + steps or process.wait(0.002):
                break
        process.wait(self.rng.uniform(0.0, 0.04))

    def _look(self, name: str) -> None:
        epsilon = self.members.check_counted(name)
        assert epsilon >= self.epsilon[name], "what was spent never becomes less"
        self.epsilon[name] = epsilon
        self.when["in a round" if epsilon > 0 else "before the first"] += 1


def check_whole(members: RealMembers) -> None:
    """All have ended, nobody was left out, and all is there."""
    members.check_fine()
    assert members.missed() == set()
    agreement, rounds = members.agreement, members.agreement.training.rounds
    assert len(members.seen()) == rounds * sum(len(agreement.neighbours(name)) for name in agreement.names)
    for name, process in members.processes.items():
        assert json.loads(process.communicate()[0])["rounds"] == rounds
        assert (members.clinics.run_folder(agreement, name) / "report.html").exists()


def kill_through_runs(clinics: Clinics, kills: int, each: int, rounds: int, seed: int) -> Counter[str]:
    """As many runs as it takes; models of all of them end within the noise of undisturbed ones."""
    rng, ends, when, done = np.random.default_rng(seed), [], Counter(), 0
    while done < kills:
        members = RealMembers(clinics, clinics.agree(rounds=rounds))
        try:
            members.start_all()
            killer = Killer(members, rng)
            done += killer.kill(min(each, kills - done))
            check_whole(members)
        finally:
            members.end()
        when += killer.when
        ends.append(models_at_the_end(clinics, members.agreement))
    undisturbed(clinics, members.agreement).check(ends)
    return when


def test_members_that_are_killed_as_processes_go_on(tmp_path):
    when = kill_through_runs(Clinics(tmp_path, ("Hill", "Mercy")), kills=3, each=3, rounds=6, seed=1)
    assert when.total() >= 3


@pytest.mark.slow
def test_a_hundred_kills_of_processes_at_random_moments(tmp_path):
    """A path of three, so that one has two neighbours; about twelve kills in each run of ten rounds."""
    when = kill_through_runs(Clinics(tmp_path), kills=100, each=12, rounds=10, seed=2)
    assert when.total() >= 100
    assert when["in a round"] >= 50
