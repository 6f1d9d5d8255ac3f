"""Made-up checks, which a process of their own imports by name; and a selftest's document for the page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from engine.run import run_folder
from workbench.selftest.check_context import CheckContext
from workbench.selftest.registry import Check
from workbench.selftest.results import (
    FOLDER,
    Row,
    Selftest,
    Verdict,
    make_failure,
    make_pass,
    not_possible,
    save,
)

PIDS = "pids.json"


def good(bench: CheckContext) -> Verdict:
    return make_pass("as it should be", {"steps_count": 3})


def bad(bench: CheckContext) -> Verdict:
    return make_failure("7 instead of 8", {"found_count": 7})


def impossible(bench: CheckContext) -> Verdict:
    raise AssertionError("was run though it is not possible")


def no_room(bench: CheckContext) -> str | None:
    return "there is no room"


def noisy(bench: CheckContext) -> Verdict:
    return not_possible("cannot decide: +1 % to +3 %", {"low_fraction": 0.01, "high_fraction": 0.03})


def raises(bench: CheckContext) -> Verdict:
    raise RuntimeError("the bridge is out")


def dies(bench: CheckContext) -> Verdict:
    os.kill(os.getpid(), signal.SIGSEGV)
    return good(bench)


def silent(bench: CheckContext) -> Verdict:
    print("the last words", flush=True)
    os._exit(3)


def hangs(bench: CheckContext) -> Verdict:
    """With a stopped process of its own."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child.send_signal(signal.SIGSTOP)
    bench.keep(PIDS, [os.getpid(), child.pid])
    time.sleep(600)
    return good(bench)


def chatty(bench: CheckContext) -> Verdict:
    """Tells everything it knows: in a log, in documents, in a run's files, its reason and an error."""
    everything = json.dumps(dict(os.environ))
    words = os.environ["PLANTED_WORDS"]
    print(everything, words, dict(os.environ), flush=True)
    for name, value in os.environ.items():
        print(f"{name}={value}", f"NCCL INFO {name} set by environment to {value}.", flush=True)
    bench.keep(
        "everything.json",
        {words: [words, everything], "variables": [f"{k}={v}" for k, v in os.environ.items()]},
    )
    bench.keep("everything.txt", words)
    run = bench.home / "20260101-000000-abcd"
    for part in (run_folder.LOGS, run_folder.FLIGHT):
        (run / part).mkdir(parents=True)
    owner = {"host": os.uname().nodename, "pid": 1}
    run_folder.write_json(
        run / run_folder.STATUS, {"labels": {"selftest": "told"}, "owner": owner, "why": words}
    )
    run_folder.write_json(run / run_folder.FLIGHT / "rank-0.json", {"dump": json.dumps({"frames": [words]})})
    (run / run_folder.LOGS / "rank-0.log").write_text(f"{words}\n{everything}\n")
    return make_failure(f"told: {words}")


def made_up(name: str, limit_seconds: float = 60.0, **others: object) -> Check:
    """A check of this file by its function's name."""
    return Check(name, name.capitalize(), "Nothing.", globals()[name], limit_seconds=limit_seconds, **others)  # type: ignore[arg-type]


def write(home: Path) -> Path:
    """A selftest with one check of each outcome; its folder."""
    folder = home / FOLDER / "20260102-030405-abcd"
    folder.mkdir(parents=True)
    rows = [
        Row("machine", "Environment", "x", "pass", "Python 3.11, 2 cores", 3.2, {}, []),
        Row("gpu_kernels", "Kernels on one GPU", "x", "not_possible", "NVML does not start", 0.9, {}, []),
        Row("equal_peaks", "Equal peaks of equal trials", "x", "fail", "peaks differ by 14.6%", 9.7, {}, []),
    ]
    names = [row.name for row in rows]
    save(folder, Selftest(folder.name, "0.1.0", "auto", 2, 1_767_323_045.0, names, 13.8, True, None, rows))
    return folder
