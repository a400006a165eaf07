"""A member that is killed before and after everything that it writes, and goes on: its run ends all the same."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from sottovoce.federation import joining, member_run
from sottovoce.ledger.database import Database
from sottovoce.ledger.steps import Steps
from sottovoce.run.layout import RunFiles
from tests.federation.clinics import Clinics
from tests.federation.kills import Kills
from tests.federation.memory_links import Killed
from tests.federation.test_kills import ALGORITHMS
from tests.ledger.verified import verify

VICTIM = "Mercy"

CASES = {
    **ALGORITHMS,
    "mafalda": {"algorithm": 'name = "mafalda"\nstep_size = 0.5', "batches": 'batch = "full"'},
    "compressed": {"algorithm": 'name = "dp-csgp"\nstep_size = 0.5\ncompression = "rand:0.5"'},
}
QUICK = ("compressed", "anti-pgd")


@dataclass
class EveryWrite:
    """Kills the victim once before and once after each of its writes. What a dead process would still write is lost."""

    passed: set[tuple[object, ...]] = field(default_factory=set)
    is_dead: bool = False

    def pass_by(self, *write: object) -> None:
        if threading.current_thread().name != VICTIM:
            return
        if self.is_dead:
            raise Killed
        if write not in self.passed:
            self.passed.add(write)
            self.is_dead = True
            raise Killed

    def watch(self, patched: pytest.MonkeyPatch) -> None:
        transaction = Database.transaction

        @contextmanager
        def dying(database, **more):
            if self.is_dead and threading.current_thread().name == VICTIM:
                raise Killed
            before = database._number
            with transaction(database, **more):
                yield
                number = database._number
                if number > before:
                    self.pass_by("before entry", number)
            self.pass_by("after entry", number, number > before)

        patched.setattr(Database, "transaction", dying)
        for where, name in (
            (joining, "write_text"), (member_run, "write"), (member_run, "write_page_of"), (RunFiles, "write_document"),
        ):  # fmt: skip
            patched.setattr(where, name, self._dying_around(name, getattr(where, name)))

    def _dying_around(self, name, act):
        def dying(*some, **more):
            shown = [str(one) for one in some if not isinstance(one, dict | str)]
            self.pass_by("before", name, *shown[:2])
            found = act(*some, **more)
            self.pass_by("after", name, *shown[:2])
            return found

        return dying

    def survived(self, join):
        """Take part, again after every kill; what the last process returned."""
        while True:
            try:
                return join()
            except Killed:
                self.is_dead = False


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in QUICK)]
)
def test_killed_before_and_after_every_write_a_run_ends_all_the_same(tmp_path, monkeypatch, case):
    clinics, seen, writes = Clinics(tmp_path), Kills(), EveryWrite()
    seen.watch(monkeypatch)
    writes.watch(monkeypatch)
    agreement = clinics.agree(**CASES[case], rounds=3)
    results = clinics.run(
        agreement, {VICTIM: lambda: writes.survived(lambda: clinics.join(agreement, VICTIM, resume=True))}
    )
    assert [result for result in results.values() if isinstance(result, BaseException)] == []
    assert len(writes.passed) > 30
    assert {len(digests) for digests in seen.seen.values()} == {1}
    for name in clinics.names:
        folder = clinics.run_folder(agreement, name)
        assert np.isfinite(np.load(folder / "model.npz")["model"]).all()
        assert [line["missing"] for line in clinics.lines(agreement, name, "attendance.jsonl") if line["missing"]] == []
        with clinics.ledger(name) as database:
            steps = Steps(database, agreement.hash)
            verify(steps)
            assert steps.noise() == {}
