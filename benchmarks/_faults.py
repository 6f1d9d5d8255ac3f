"""Faults: what each does to a running study, and which endings are right afterwards."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil

from benchmarks._fault_study import STEPS, Line, Victim, wait_until
from engine.run.progress import RankProgress
from tuning.storage.study_folder import DATABASE

_CGROUPS = Path("/sys/fs/cgroup")
#: Less than a rank touches in a step.
_LIMIT_BYTES = 1 << 20


@dataclass
class Fault:
    """What was done. ``right`` says of a tell that is no completion whether its label is right; ``bites`` that there
    has to be one; ``undo`` ends what outlives the moment. One that found nothing to harm is not ``done``.
    """

    words: str
    right: Callable[[Line], bool] = lambda line: False
    bites: bool = False
    #: Trials whose tell the fault took out of the journal.
    cut: list[Line] = field(default_factory=list)
    undo: Callable[[], None] = lambda: None
    done: bool = True


def kill_rank(victim: Victim, random: Random) -> Fault:
    """kill -9 of a rank."""
    ranks = victim.ranks()
    if not ranks:
        return _idle_rank(victim, random, signal.SIGKILL)
    rank = random.choice(ranks)
    words = f"SIGKILL to rank {rank.rank} in {_place(rank)}"
    os.kill(rank.pid, signal.SIGKILL)

    def right(line: Line) -> bool:
        named = line.get("rank") == rank.rank and "SIGKILL" in line["reason"] and bool(line.get("phase"))
        return line["outcome"] == "crashed" and bool(line.get("killed_from_outside")) and named

    return Fault(words, right, _inside(rank))


def stop_rank(victim: Victim, random: Random) -> Fault:
    """SIGSTOP of a rank: it hangs."""
    ranks = victim.ranks()
    if not ranks:
        return _idle_rank(victim, random, signal.SIGSTOP)
    rank = random.choice(ranks)
    words = f"SIGSTOP to rank {rank.rank} in {_place(rank)}"
    os.kill(rank.pid, signal.SIGSTOP)
    return Fault(words, lambda line: _names(line, "hang", rank.rank), _inside(rank))


def _idle_rank(victim: Victim, random: Random, number: signal.Signals) -> Fault:
    """A rank's process between two runs: it costs none, or the one that was just handed to it."""
    workers = _workers(victim)
    if not workers:
        return Fault(f"{number.name} found no rank", done=False)
    os.kill(random.choice(workers).pid, number)
    outcome = "crashed" if number is signal.SIGKILL else "hang"
    return Fault(f"{number.name} to a rank between runs", lambda line: line["outcome"] == outcome)


def kill_server(victim: Victim, random: Random) -> Fault:
    """kill -9 of the process that ranks are forked from."""
    servers = [process for process in victim.processes() if "forkserver" in " ".join(process.cmdline())]
    parents = [process for process in servers if process.ppid() == _controller(victim)]
    if not parents:
        return Fault("SIGKILL found no fork server", done=False)
    inside = [rank for rank in victim.ranks() if _inside(rank)]
    parents[0].kill()

    def right(line: Line) -> bool:
        said = line["outcome"] == "crashed" and "fork server" in line["reason"]
        return said and bool(line.get("killed_from_outside"))

    return Fault("SIGKILL to the fork server", right, len(inside) == 2)


def kill_controller(victim: Victim, random: Random) -> Fault:
    """kill -9 of the command; it is started again."""
    _kill_controller(victim)
    return Fault("SIGKILL to the controller", _lost)


def memory_cgroup(victim: Victim, random: Random) -> Fault:
    """A rank in a control group whose memory is used up: the kernel kills it."""
    wait_until(lambda: bool(victim.ranks()))
    ranks = victim.ranks()
    if not ranks:
        return Fault("no rank to take memory from", done=False)
    rank = random.choice(ranks)
    group, limit = _group(victim.marker)
    group.mkdir(exist_ok=True)
    limit.write_text(str(_LIMIT_BYTES), encoding="ascii")
    words = f"cgroup limit of {_LIMIT_BYTES >> 20} MiB for rank {rank.rank} in {_place(rank)}"
    try:
        (group / "cgroup.procs").write_text(str(rank.pid), encoding="ascii")
    except OSError:  # it is gone
        words += ", which had ended"

    def undo() -> None:
        for pid in (group / "cgroup.procs").read_text(encoding="ascii").split():
            (group.parent / "cgroup.procs").write_text(pid, encoding="ascii")
        wait_until(lambda: not (group / "cgroup.procs").read_text(encoding="ascii").strip(), 5.0)
        group.rmdir()

    return Fault(words, lambda line: _names(line, "oom", rank.rank), undo=undo)


def memory_rlimit(victim: Victim, random: Random) -> Fault:
    """A rank whose data may not grow any more: its next allocation fails."""
    wait_until(lambda: bool(victim.ranks()))
    ranks = victim.ranks()
    if not ranks:
        return Fault("no rank to take memory from", done=False)
    rank = random.choice(ranks)
    words = f"RLIMIT_DATA for rank {rank.rank} in {_place(rank)}"
    try:
        _, hard = resource.prlimit(rank.pid, resource.RLIMIT_DATA)
        resource.prlimit(rank.pid, resource.RLIMIT_DATA, (_LIMIT_BYTES, hard))
    except ProcessLookupError:
        return Fault(words + ", which had ended", done=False)

    def undo() -> None:
        if psutil.pid_exists(rank.pid):
            resource.prlimit(rank.pid, resource.RLIMIT_DATA, (hard, hard))

    return Fault(words, lambda line: _names(line, "oom", rank.rank), undo=undo)


def disk_full(victim: Victim, random: Random) -> Fault:
    """The file system of the runs is full for a while."""
    filler = victim.home / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 65536):  # the last one fills what is left
            pass
    seconds = random.uniform(0.2, 3.0)
    time.sleep(seconds)
    filler.unlink()
    return Fault(f"the disk is full for {seconds:.1f} s", _lost)


def database_locked(victim: Victim, random: Random) -> Fault:
    """Another process holds Optuna's database."""
    path, seconds = victim.journal.parent / DATABASE, random.uniform(0.5, 4.0)
    if not path.exists():
        return Fault("no database to lock", done=False)
    database = sqlite3.connect(path, isolation_level=None, timeout=10)
    try:
        database.execute("begin exclusive")
        time.sleep(seconds)
    except sqlite3.Error as error:
        return Fault(f"the database could not be locked: {error}", done=False)
    finally:
        database.close()
    return Fault(f"the database is locked for {seconds:.1f} s")


def database_garbage(victim: Victim, random: Random) -> Fault:
    """Optuna's database is overwritten in the middle."""
    path = victim.journal.parent / DATABASE
    if not path.exists():
        return Fault("no database to harm", done=False)
    place = random.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(random.randbytes(4096))
    return Fault(f"4096 bytes of the database overwritten at {place}")


def journal_tail(victim: Victim, random: Random) -> Fault:
    """The journal's end is garbage, or cut off, when the command starts again."""
    _kill_controller(victim)
    data = victim.journal.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    way = random.choice(["cut", "bytes", "line", "zeros", "doubled"])
    if way == "cut":
        keep = random.randrange(last, len(data))
        victim.journal.write_bytes(data[:keep])
        return Fault(f"the journal cut {len(data) - keep} bytes before its end", _lost, cut=_cut(data[last:]))
    tails = {
        "bytes": random.randbytes(random.randrange(1, 200)).replace(b"\n", b"?"),
        "line": b'{"at_unix": 1.0, "kind": "tell", "numb\n',
        "zeros": b"\0" * random.randrange(1, 4096),
        "doubled": data[last:],
    }
    with victim.journal.open("ab") as file:
        file.write(tails[way])
    return Fault(f"{len(tails[way])} bytes ({way}) at the end of the journal", _lost)


def record_tail(victim: Victim, random: Random) -> Fault:
    """The end of a run's record file, or its status, is garbage or cut off when the command starts again."""
    _kill_controller(victim)
    runs = [run for number in victim.open_trials() if (run := victim.run_of(number))]
    runs = runs or sorted(path.parent for path in victim.home.glob("*/status.json"))
    if not runs:
        return Fault("no record to harm", _lost, done=False)
    files = [path for path in [*(runs[-1] / "records").glob("*"), runs[-1] / "status.json"] if path.is_file()]
    path = random.choice(files)
    data = path.read_bytes()
    if random.random() < 0.5:
        path.write_bytes(data[: random.randrange(len(data) + 1)])
        return Fault(f"{path.name} cut off", _lost)
    path.write_bytes(data + random.randbytes(random.randrange(1, 300)))
    return Fault(f"bytes at the end of {path.name}", _lost)


#: By name. The command is dead after those in ``ENDS_COMMAND``.
KINDS: dict[str, Callable[[Victim, Random], Fault]] = {
    "kill_rank": kill_rank,
    "kill_server": kill_server,
    "kill_controller": kill_controller,
    "stop_rank": stop_rank,
    "memory_cgroup": memory_cgroup,
    "memory_rlimit": memory_rlimit,
    "disk_full": disk_full,
    "journal_tail": journal_tail,
    "record_tail": record_tail,
    "database_locked": database_locked,
    "database_garbage": database_garbage,
}


def possible() -> dict[str, str]:
    """Kinds that this machine cannot inject, with the reason."""
    missing = {}
    if os.geteuid() != 0:
        missing["disk_full"] = "mounting a small file system takes root"
    if not os.access(_group("x")[0].parent, os.W_OK):
        missing["memory_cgroup"] = "no control group for memory can be made"
    return missing


def _group(name: str) -> tuple[Path, Path]:
    """A control group and its limit, version 1 or 2."""
    first = _CGROUPS / "memory"
    if first.is_dir():
        return first / f"faults-{name}", first / f"faults-{name}" / "memory.limit_in_bytes"
    return _CGROUPS / f"faults-{name}", _CGROUPS / f"faults-{name}" / "memory.max"


def _kill_controller(victim: Victim) -> None:
    assert victim.controller is not None
    victim.controller.kill()
    victim.controller.wait()


def _controller(victim: Victim) -> int:
    return -1 if victim.controller is None else victim.controller.pid


def _workers(victim: Victim) -> list[psutil.Process]:
    known = {process.pid: process for process in victim.processes()}
    return [
        process
        for process in known.values()
        if process.ppid() in known and process.ppid() != _controller(victim)
    ]


def _cut(line: bytes) -> list[Line]:
    import json

    whole = json.loads(line)
    return [whole] if whole["kind"] == "tell" else []


def _lost(line: Line) -> bool:
    return bool(line["outcome"] == "lost")


def _names(line: Line, outcome: str, rank: int) -> bool:
    return bool(line["outcome"] == outcome and line.get("rank") == rank and line.get("phase"))


def _inside(rank: RankProgress) -> bool:
    """Whether a rank is sure to be needed still."""
    return rank.phase != "finished" and rank.step < STEPS - 1


def _place(rank: RankProgress) -> str:
    return f"{rank.phase} of step {rank.step}"
