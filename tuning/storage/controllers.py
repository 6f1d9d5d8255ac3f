"""The controllers that work on a study now, and the one that holds its folder.

Each leaves a small file in the folder while it lives, with its pid, start time and host.

``running_trials`` and ``controller_rows`` say what runs now and who runs it, for people and ``--json``.
"""

from __future__ import annotations

import fcntl
import functools
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, get_type_hints

import msgspec

from engine.config.errors import InputError
from engine.run import ownership, run_folder
from engine.run.ownership import Owner
from tuning.spec.study_file import StudyFile
from tuning.storage.journal import UnreachableError
from tuning.storage.state import StudyState, Trial

CONTROLLERS = "controllers"
#: A controller on another host cannot be seen; it counts as alive while it was heard of in so many seconds.
FRESH_SECONDS = 60.0
#: How often a controller says that it lives, and how long it believes what it knows of others.
BEAT_SECONDS, LOOK_SECONDS = 5.0, 1.0


@dataclass(frozen=True, slots=True)
class Controller(Owner):
    """A process that works on a study, as its file has it: how many answers it found when it joined, since when it
    works, and when it last said that it lives.
    """

    answered_before: int = 0
    since_unix: float = 0.0
    seen_unix: float = 0.0


@dataclass(frozen=True, slots=True)
class ControllerRow(Owner):
    """A controller for people and ``--json``: whether it is ``here``, on this folder, and the trial that it runs."""

    since_unix: float | None = None
    here: bool = False
    trial: int | None = None
    run: str | None = None


class LeasedTrial(Protocol):
    """A trial that runs."""

    @property
    def number(self) -> int:
        """Its number."""

    @property
    def lease(self) -> Owner | None:
        """Who runs it."""


class StudyControllers:
    """The controllers of a study that is kept in a folder, seen by one of them."""

    def __init__(self, folder: Path, me: Owner) -> None:
        self.me = Controller(me.pid, me.start_time, me.host)
        self._folder = folder / CONTROLLERS
        self._beaten = self._looked = float("-inf")
        self._seen: list[Controller] = []

    def join(self, answered: int) -> int:
        """Be one of them. A study that somebody runs goes on as it is, paused or stopping; to a new start what was
        commanded before says nothing. Returns how many answers that are: of all ``answered``, or as the others have it.
        """
        others = self.other_members()
        _forget_dead(self._folder)
        heard = min([other.answered_before for other in others], default=answered)
        self.me = replace(self.me, answered_before=heard, since_unix=time.time())
        self._enter()
        self._looked = float("-inf")
        return heard

    def leave(self) -> None:
        """Be gone."""
        self._looked = float("-inf")
        self._place(self.me).unlink(missing_ok=True)

    def heartbeat(self) -> None:
        """Show now and then that this one lives."""
        if time.monotonic() - self._beaten > BEAT_SECONDS:
            self._beaten = time.monotonic()
            self._enter()

    def living(self) -> Sequence[Controller]:
        """All of them that live, this one among them, the oldest first."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            with suppress(UnreachableError):
                self._look_again()
        return self._seen

    def other_members(self) -> list[Controller]:
        """Those that live, without this one."""
        return [member for member in self.living() if not is_same_member(member, self.me)]

    def is_in_folder(self, member: Controller) -> bool:
        """Whether one of them works in this very folder."""
        return True

    def has(self, lease: Owner | None) -> bool:
        """Whether another one that lives holds a lease: somebody who came in this very moment may.

        Raises:
            UnreachableError: that is not known now.
        """
        self._look_again()
        return lease is not None and any(is_same_member(member, lease) for member in self.other_members())

    def may_be_gone(self, lease: Owner | None) -> bool:
        """Whether a trial with this lease may be settled: nobody who lives holds it."""
        return not self.has(lease)

    def _enter(self) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            run_folder.write_json(self._place(self.me), asdict(replace(self.me, seen_unix=time.time())))
        except OSError as error:
            remedy = f"cannot be written ({error.strerror}); free space or give another --home"
            raise InputError("home", str(self._folder), remedy) from None

    def _look_again(self) -> None:
        self._seen = self._look()
        self._looked = time.monotonic()

    def _look(self) -> list[Controller]:
        return present_controllers(self._folder.parent)

    def _place(self, member: Owner) -> Path:
        return self._folder / f"{member.host}-{member.pid}.json"


def present_controllers(folder: Path) -> list[Controller]:
    """The controllers that left their file in a study's folder and live, the oldest first."""
    present = []
    for path in sorted((folder / CONTROLLERS).glob("*.json")):
        member = _read(path)
        if member is not None and _member_lives(member):
            present.append(member)
    return sorted(present, key=lambda member: member.since_unix)


def _read(path: Path) -> Controller | None:
    """A controller's file; None if it is gone, or damaged."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(run_folder.read_json(path), Controller | None)
    return None


def _forget_dead(folder: Path) -> None:
    """Remove the files of controllers that were killed on this host."""
    for path in folder.glob("*.json"):
        member = _read(path)
        if member is not None and is_here(member) and not _member_lives(member):
            path.unlink(missing_ok=True)


def is_same_member(first: Owner, second: Owner) -> bool:
    """Whether two of them are the same process; a lease of long ago does not name its host, which was this one."""
    hosts = host_of(first) == host_of(second)
    return hosts and first.pid == second.pid and abs(first.start_time - second.start_time) < 1.0


def host_of(member: Owner) -> str:
    """The host of a controller; this one where it was not noted."""
    return socket.gethostname() if member.host is None else member.host


def words(member: Owner | None) -> str:
    """A controller in words."""
    return "another process" if member is None else f"process {member.pid} on {host_of(member)}"


def select_local(under_way: Sequence[LeasedTrial]) -> list[LeasedTrial]:
    """The trials that run on this host; a study that began before hosts were noted has no others."""
    return [trial for trial in under_way if trial.lease is None or is_here(trial.lease)]


def is_here(member: Owner) -> bool:
    """Whether a controller runs on this host."""
    return host_of(member) == socket.gethostname()


def _member_lives(member: Controller) -> bool:
    if member.host != socket.gethostname():
        return time.time() - member.seen_unix < FRESH_SECONDS
    return ownership.is_alive(member)


LOCK = ".lock"
HELD = ("running", "paused", "stopping")


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """What ``status.json`` of a study says. A key that is missing or null has the default, and unknown ones are
    ignored: studies of older and newer versions can be read. :func:`update_status` changes a file.
    """

    study: str = ""
    #: running, paused, stopping, interrupted, ended or continued; empty in a file that does not say.
    state: str = ""
    phase: str = ""
    #: The controller that wrote this.
    owner: Owner | None = None
    #: A run of its own, else the newest of the others.
    current_run: str | None = None
    trials_done: int | None = None
    trials_total: int | None = None
    running: Sequence[RunningTrial] = ()
    controllers: list[ControllerRow] = field(default_factory=list)
    #: As ``budgets.document`` has it; plain values in a status that was read.
    budget: Any = None
    #: The names that the study had before, and the one under which it went on.
    continues: list[str] = field(default_factory=list)
    continued_in: str | None = None
    skipped_illegal: int = 0
    #: What its Optuna database lacks, in words.
    optuna_lag: str = ""
    updated_unix: float = 0.0

    @classmethod
    def from_folder(cls, folder: Path) -> StudyStatus:
        """The status of a study's folder; ``StudyStatus()`` if there is none, or if it cannot be read. A field of
        another shape counts as missing.
        """
        document = run_folder.read_json(folder / run_folder.STATUS) or {}
        types, values = _types(), dict[str, Any]()
        for key in types:
            if document.get(key) is not None:
                with suppress(msgspec.ValidationError):
                    values[key] = msgspec.convert(document[key], types[key])
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for ``status.json``."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @property
    def alive(self) -> bool:
        """Whether the owner still runs the study, or another controller on the same folder."""
        if self.state not in HELD:
            return False
        others = [member for member in self.controllers if member.here]
        return any(self._is_alive(member) for member in (self.owner, *others))

    def _is_alive(self, member: Owner | None) -> bool:
        if member is not None and member.host != socket.gethostname():
            return time.time() - self.updated_unix < FRESH_SECONDS
        return ownership.is_alive(member)


@functools.cache
def _types() -> dict[str, Any]:
    return get_type_hints(StudyStatus)


def update_status(folder: Path, **changes: Any) -> None:
    """Merge changes into a study's status file; all else in it stays."""
    path = folder / run_folder.STATUS
    run_folder.write_json(path, (run_folder.read_json(path) or {}) | msgspec.to_builtins(changes))


def take(folder: Path, join: bool = False, ways: str = "work on it together with --join, ") -> Owner:
    """Make this process the owner of a study, or one of them where it may ``join`` others; returns what names it.
    ``ways``: how else one would work on it together.

    Raises:
        InputError: another live process owns the study, or the folder cannot be written.
    """
    try:
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held only while deciding: two starts at once must not both win
            status = StudyStatus.from_folder(folder)
            others, owner = present_controllers(folder), ownership.this_process()
            if (others or status.alive) and not join:
                raise busy(folder.name, others[0] if others else status.owner, ways)
            if others or status.alive:
                return owner
            update_status(folder, state="running", owner=owner, updated_unix=time.time(), current_run=None)
            return owner
    except OSError as error:
        remedy = f"the study's folder cannot be written ({error.strerror}); give another --home or free space"
        raise InputError("home", str(folder), remedy) from None


def give_up(folder: Path) -> None:
    """After :func:`take`, when a study could not begin: nobody runs it, unless others do."""
    if not present_controllers(folder):
        with suppress(OSError):
            update_status(folder, state="interrupted")


def busy(name: str, owner: Owner | None, ways: str) -> InputError:
    """That somebody runs a study already."""
    remedy = f"watch it, {ways}or end it with: workbench stop {name}"
    return InputError("study", name, f"is already being run by {words(owner)}; {remedy}")


@dataclass(frozen=True, slots=True)
class ControllerName:
    """Who runs or ran a trial; the host is not known of studies that began before it was noted."""

    pid: int
    host: str | None = None


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial without an end."""

    trial: int
    run: str | None
    source: str
    confirms: int | None
    label: str
    began_unix: float
    controller: ControllerName | None = None


def running_trials(state: StudyState, file: StudyFile) -> list[RunningTrial]:
    """Every trial without an end, oldest first."""
    space = file.search_space
    return [
        RunningTrial(
            trial.number,
            trial.run,
            trial.source,
            trial.confirms,
            space.remember("label", trial.config, space.label),
            trial.proposed_unix,
            controller_of(trial),
        )
        for trial in state.under_way
    ]


def controller_of(trial: Trial) -> ControllerName | None:
    """Who runs or ran a trial."""
    return ControllerName(trial.lease.pid, trial.lease.host) if trial.lease else None


def controller_rows(members: StudyControllers, state: StudyState) -> list[ControllerRow]:
    """The controllers that live, each with the trial that it runs."""
    return [_row(member, members.is_in_folder(member), state) for member in members.living()]


def _row(member: Controller, here: bool, state: StudyState) -> ControllerRow:
    at = next(
        (trial for trial in state.under_way if trial.lease and is_same_member(trial.lease, member)), None
    )
    began = member.since_unix or None
    number, run = (at.number, at.run) if at else (None, None)
    return ControllerRow(member.pid, member.start_time, member.host, began, here, number, run)
