"""How a run under torchrun ends once a rank fails: that rank tells rank 0, which writes the ending down.

Rank 0 may be waiting in a collective for peers that will never come, with NCCL for ever: a thread of its own hears of
the failure. torchrun ends all other ranks as soon as one is gone, so a rank that failed stays until the ending is
written, and rank 0 puts a request to end off until then. Ranks that are asked to end say so first: one that is gone and
said nothing is where it began.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import timedelta

import torch.distributed as dist

from engine.launch.ending import ProcessExit, outcome_of_ranks
from engine.run.child_process import readable
from engine.run.messages import RankReport
from engine.run.outcome import Ending, RunOutcome

_POLL_SECONDS = 0.25
#: Peers get a moment to tell of theirs: a lost connection is only the consequence of a cause.
_GRACE_SECONDS = 1.0
#: How long a rank that failed waits for the ending to be written.
_PATIENCE = timedelta(seconds=30)
_WRITTEN = "written"
_ASKED_TO_END = 128 + signal.SIGTERM
Dead = Callable[[Sequence[int]], list[ProcessExit]]


class EndingReporter:
    """One rank's part in it; ``store`` is a connection of its own to what all ranks share.

    On rank 0 ``write`` is called with the ending, once, by the main thread or by one beside it; ``dead`` tells which of
    some ranks are known to be gone.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        ranks: int,
        write: Callable[[RunOutcome], None],
        dead: Dead = lambda _: [],
    ) -> None:
        self._store, self._rank, self._ranks, self._write, self._dead = store, rank, ranks, write, dead
        self._lock, self._over = threading.Lock(), threading.Event()
        self._heard: list[RankReport] = []
        self._telling, self._told = False, threading.Event()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, rank 0 ends the run once another one fails, and with it this process; others say that they
        were asked to end before they do.
        """
        if self._ranks == 1:
            yield
            return
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        before = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(wakes)
        released = threading.Event()
        threading.Thread(target=self._attend, args=(woken, released), name="last words", daemon=True).start()
        try:
            yield
        finally:
            self._over.set()
            signal.signal(signal.SIGTERM, before[0])
            signal.set_wakeup_fd(before[1])
            os.close(wakes)  # which wakes the thread
            released.set()

    def tell(self, report: RankReport) -> None:
        """This rank failed. Returns when the ending is written, or nobody will write it."""
        self._telling = True
        if self._rank == 0:
            with self._lock:  # where the other thread came first, it ends this process
                self._settle([report])
            return
        with contextlib.suppress(RuntimeError):  # every error of a store is one
            self._store.set(f"report/{self._store.add('reports', 1)}", json.dumps(asdict(report)))
            self._told.set()
            self._store.wait([_WRITTEN], _PATIENCE)

    def _attend(self, woken: int, released: threading.Event) -> None:
        try:
            if self._rank:
                self._obey(woken)
            else:
                self._listen(woken)
        finally:  # a request to end may still come: it is written into the pipe, which has to have a reader
            released.wait()
            os.close(woken)

    def _obey(self, woken: int) -> None:
        while not self._over.is_set():
            if readable(woken, _POLL_SECONDS) and not self._over.is_set():
                if self._telling:  # it says more than this; once it has, its connection may be waiting
                    self._told.wait(_GRACE_SECONDS)
                else:
                    with contextlib.suppress(RuntimeError):
                        self._store.set(f"asked/{self._rank}", "")
                leave(_ASKED_TO_END)
                return

    def _listen(self, woken: int) -> None:
        while not self._over.is_set():
            asked_to_end = readable(woken, _POLL_SECONDS)
            if self._over.is_set():
                return
            with self._lock:
                if asked_to_end:
                    self._hear(_GRACE_SECONDS, enough=1)
                if self._telling or self._over.is_set():
                    return
                if self._heard or self._more() or (asked_to_end and self._dead(self._silent())):
                    try:
                        self._settle([])
                    finally:
                        leave(1)
                    return
            if asked_to_end:  # nobody failed: it was asked of all ranks
                leave(_ASKED_TO_END)
                return

    def _settle(self, reports: list[RankReport]) -> None:
        if not reports or reports[0].ending.facts.consequence:
            self._hear(_GRACE_SECONDS, enough=self._ranks - 1)
        try:
            self._write(self._ending([*reports, *self._heard]))
        finally:
            self._over.set()
            with contextlib.suppress(RuntimeError):
                self._store.set(_WRITTEN, "")

    def _ending(self, reports: list[RankReport]) -> RunOutcome:
        """A lost connection names nobody while a rank is silent: who tells of one is who is left."""
        outcome = outcome_of_ranks(reports, [])
        if reports and not outcome.ending.facts.consequence:
            return outcome
        silent = self._silent({report.rank for report in reports})
        if exits := self._dead(silent):
            return outcome_of_ranks(reports, exits)
        if not silent:
            return outcome
        reason = f"rank {outcome.rank} lost a connection, and nothing was heard of rank {', '.join(map(str, silent))}"
        return replace(outcome, rank=None, reason=f"{reason}: {outcome.reason}")

    def _silent(self, others: Collection[int] = ()) -> list[int]:
        """Ranks that neither told of a failure nor of a request to end, without rank 0 and ``others``; none where the
        store is gone.
        """
        heard = {0, *others, *(report.rank for report in self._heard)}
        try:
            return [
                rank
                for rank in range(self._ranks)
                if rank not in heard and not self._store.check([f"asked/{rank}"])
            ]
        except RuntimeError:
            return []

    def _hear(self, seconds: float, enough: int) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and len(self._heard) < enough:
            if not self._more():
                time.sleep(_POLL_SECONDS / 5)

    def _more(self) -> bool:
        """Whether one more was told of."""
        key = f"report/{len(self._heard) + 1}"
        try:
            if not self._store.check([key]):
                return False
            report = json.loads(self._store.get(key))
        except RuntimeError:  # the store is gone, and the other ranks with it
            return False
        report |= {"ending": Ending(report["ending"]), "last_lines": tuple(report["last_lines"])}
        self._heard.append(RankReport(**report))
        return True


def leave(code: int) -> None:
    """End this process at once: Python's own way out would wait for threads and groups that hang."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
