"""Processes that this one starts: they end with it, whatever ends it, and signals wait while they start.

`map_in_processes` has one function act on many items, in as many processes as there are cores.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from pathlib import Path
from pickle import PicklingError
from typing import Any, Generic, TypeVar

from sottovoce.errors import SottovoceError
from sottovoce.support.limits import limits_are_lifted, limits_lifted
from sottovoce.support.own_code import code_folder, code_from, raised_in_own_code
from sottovoce.support.threads import WORKERS

Item = TypeVar("Item")
Answer = TypeVar("Answer")

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a process to save what it has and to end."""

STOPPED = "stopped"
"""What a process says that was asked to end."""


class Terminated(KeyboardInterrupt):
    """A process was asked to end by SIGTERM: it saves and stops as after Ctrl-C, and ends with a code of its own."""


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Signals that stop wait until all processes are started; in these, which inherit that, until `unblock_signals`.

    Another thread may take a signal that this one blocks, and Python then calls its handler in this one all the same.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING_SIGNALS)
    try:
        with signals_wait(lambda: None):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals() -> None:
    """In a process that was started: from here on signals arrive, with those that came before."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING_SIGNALS)


@contextmanager
def signals_heard(act: Callable[[int, object], None]) -> Iterator[None]:
    """Signals that stop call `act` instead.

    Only the main thread of a process hears signals; in another one nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {kind: signal.signal(kind, act) for kind in STOPPING_SIGNALS} if is_main else {}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextmanager
def signals_wait(stop: Callable[[], None]) -> Iterator[None]:
    """A signal that stops calls `stop`, which ends the block in its own time; then it does what it would have done."""
    received: list[int] = []

    def note(kind: int, _: object) -> None:
        received.append(kind)
        stop()

    try:
        with signals_heard(note):
            yield
    finally:
        if received:
            signal.raise_signal(received[0])


@contextmanager
def ends_when_stopped(seconds: float = 1.0) -> Iterator[None]:
    """Around long work that leaves nothing half done: a signal that stops ends the process within about `seconds`.

    Otherwise a signal is heard when the main thread comes back from a long computation, or from waiting for threads
    that are at one. Until the time is over the signal does what it would have. Calls of LAPACK
    that hold Python's lock are waited for all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    heard, written = os.pipe()
    os.set_blocking(written, False)

    def watch() -> None:
        while kinds := os.read(heard, 64):
            stopping = next((kind for kind in kinds if kind in STOPPING_SIGNALS), None)
            if stopping is not None and not over.wait(seconds):
                with suppress(OSError):
                    os.write(2, f"sotto: {STOPPED}\n".encode())
                os._exit(128 + stopping)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    before = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(written)
        watcher.join()
        os.close(heard)


def end_with_parent(pipe: int, tidy: Callable[[], None] = lambda: None) -> None:
    """End this process when a pipe closes whose other end only its parent holds: also a parent that was killed.

    `tidy` is called before that.
    """

    def wait_for_parent() -> None:
        wait([pipe])
        try:
            tidy()
        finally:
            os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


# --- one function for many items -------------------------------------------------------------------------------------


def map_in_processes(
    act: Callable[[Item], Answer], items: Sequence[Item], jobs: int | None
) -> Generator[tuple[Item, Answer], None, None]:
    """Each item with what `act` makes of it, as they are ready; one failure, or an interrupt, stops the rest.

    So many `jobs` at once as given, or one for each core; a single one needs no process of its own. Processes end with
    the generator: whoever may not come to its end closes it.
    """
    jobs = min(jobs or WORKERS, len(items))
    if jobs <= 1:
        for item in items:
            yield item, act(item)
        return
    workers: list[_Worker[Item, Answer]] = []
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # which unblocks signals: the first process would start it, and not inherit them
    try:
        with signals_blocked():
            for _ in range(jobs):
                workers.append(_Worker(context, act))
        yield from _answers(workers, deque(items))
    except BaseException:
        for worker in workers:
            worker.interrupt()
        raise
    finally:
        for worker in workers:  # all of them before the first is waited for, which a second signal may break off
            worker.connection.close()
        for worker in workers:
            worker.join()


def _answers(workers: Sequence[_Worker[Item, Answer]], waiting: deque[Item]) -> Iterator[tuple[Item, Answer]]:
    """Every worker has one item at a time; whoever is ready gets the next."""
    free, busy = list(workers), dict[Connection, tuple[_Worker[Item, Answer], Item]]()
    while waiting or busy:
        while free and waiting:
            worker, item = free.pop(), waiting.popleft()
            worker.begin(item)
            busy[worker.connection] = worker, item
        done = [busy.pop(ready) for ready in wait(list(busy)) if isinstance(ready, Connection)]
        answers = [(item, worker.answer()) for worker, item in done]
        free += [worker for worker, _ in done]
        yield from answers


class _Worker(Generic[Item, Answer]):
    """A process that acts on items. All it shares with this one is a pipe: whoever is killed leaves nothing locked."""

    def __init__(self, context: BaseContext, act: Callable[[Item], Answer]) -> None:
        self.connection, theirs = context.Pipe()
        how = (theirs, act, limits_are_lifted(), code_folder())
        self._process = context.Process(target=_work, args=how)  # type: ignore[attr-defined]
        self._process.start()
        self._is_ready = False
        theirs.close()  # so that the pipe ends with the process

    def begin(self, item: Item) -> None:
        with _ended_from_outside():
            self._wait_until_ready()
            self.connection.send(item)

    def answer(self) -> Answer:
        with _ended_from_outside():
            answer, error = self.connection.recv()
        if error is not None:
            raise error
        return answer

    def interrupt(self) -> None:
        """Stop what it does; what it would do next it does not begin."""
        with suppress(EOFError, OSError):
            self._wait_until_ready()
            if self._process.is_alive():
                os.kill(self._process.pid, signal.SIGINT)

    def _wait_until_ready(self) -> None:
        """Until it heeds signals: one that comes before might be lost, and it would never end."""
        if not self._is_ready:
            self._is_ready = self.connection.recv()

    def join(self) -> None:
        """Wait until it has ended, which it does when the pipe is closed and it has nothing more to do."""
        self._process.join()


@contextmanager
def _ended_from_outside() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        raise SottovoceError(
            "a process of the sweep was ended from outside, perhaps because memory ran out; go on with --resume, "
            "with fewer --jobs"
        ) from None


def _work(connection: Connection, act: Callable[[Any], object], lifted: bool, code: Path | None) -> None:
    """In a process of its own, which ends with its parent: act on items until the pipe ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_with_parent(parent.sentinel)
    stop = _Stop()

    def outcome(item: object) -> tuple[object, BaseException | None]:
        try:
            with stop.heeded(), limits_lifted(lifted), code_from(code):
                return act(item), None
        except Exception as error:
            return None, raised_in_own_code(error) or error  # here, since its traceback does not travel
        except BaseException as error:
            return None, error

    with suppress(EOFError, OSError):
        connection.send(True)
        while True:
            found = outcome(connection.recv())
            try:
                connection.send(found)
            except (TypeError, AttributeError, PicklingError) as error:
                connection.send((None, error))


class _Stop:
    """In a process of its own: one signal stops what is done, which then saves undisturbed, and what would follow."""

    def __init__(self) -> None:
        self._asked = self._acting = False
        for kind in STOPPING_SIGNALS:
            signal.signal(kind, self._ask)
        unblock_signals()

    def _ask(self, *_: object) -> None:
        self._asked = True
        if self._acting:
            self._acting = False
            raise KeyboardInterrupt

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """While something is done."""
        self._acting = True
        try:
            if self._asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._acting = False
