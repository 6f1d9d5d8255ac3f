"""How much communication is hidden behind computation: by Holistic Trace Analysis from our traces, and by ourselves.

    python -m benchmarks.hta_overlap [--python PYTHON] [--steps 4] [--save]

Runs are traced while they train, as ``workbench control ID trace`` does it. HTA reads the files of single ranks, in a
virtual environment of its own (``build/hta`` unless a Python with HTA is named): it brings a hundred packages. Ours
comes from the records by ``tests/support/profilers/overlap.py``. HTA rounds to whole microseconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import _table
from engine.config.run_config import RunConfig, parse
from engine.run import progress, run_folder
from engine.session import Session
from profilers.records.reader import RunRecords
from tests.support.profilers.overlap import communication, computation, overlap_fraction
from workbench.home import control, traces
from workbench.home.resolve import Target

HTA = "HolisticTraceAnalysis==0.5.0"
_OWN = Path(__file__).parents[1] / "build" / "hta"
_FIRST_STEP = 8
_SMALL: dict[str, Any] = {
    "batch": {"global_batch": 8, "micro_batch": 1},
    "data": {"sequence_length": 64},
    "train": {"steps": 100_000, "warmup": 1, "validation_batches": 0, "timeout_seconds": 600.0},
    "device": "cpu",
}
RUNS: dict[str, dict[str, Any]] = {
    "dp 2": {"parallel": {"dp": 2}},
    "dp 2, ZeRO 3": {"parallel": {"dp": 2, "zero_stage": 3}},
    "tp 2": {"parallel": {"tp": 2}},
    "pp 2": {"parallel": {"pp": 2}},
    "dp 2, pp 2": {"parallel": {"dp": 2, "pp": 2}},
}
#: In HTA's own environment: its answer for each rank, and how many events of the merged file it reads.
_READER = """
import json, sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_dir=sys.argv[1]).get_comm_comp_overlap(visualize=False)
merged = TraceAnalysis(trace_files={0: sys.argv[2]})
percents = dict(zip(found["rank"].tolist(), found["comp_comm_overlap_pctg"].tolist()))
print(json.dumps({"percents": percents, "merged": len(merged.t.get_trace(0))}))
"""


def own_python() -> str:
    """The Python of an environment with HTA, made once."""
    python = _OWN / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(_OWN)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", HTA], check=True)
    return str(python)


def traced(session: Session, config: RunConfig, steps: int) -> tuple[Path, control.Reply]:
    """A run that was traced, and then stopped."""
    replies: list[tuple[Path, control.Reply]] = []

    def trace(folder: Path) -> None:
        while min((rank.step for rank in progress.read(folder)), default=0) < _FIRST_STEP:
            time.sleep(0.05)
        target = Target("run", folder.name, folder)
        try:
            replies.append((folder, control.ask(target, traces.COMMAND, {"steps": steps})))
        finally:
            control.ask(target, "stop", {})

    def start(folder: Path) -> None:
        threading.Thread(target=trace, args=(folder,), daemon=True).start()

    session.execute(config, {}, lambda: False, start)
    folder, reply = replies[0]
    if reply.file is None:
        raise SystemExit(f"nothing was traced: {reply.text}")
    return folder, reply


def by_hta(python: str, merged: Path) -> tuple[dict[int, float], int]:
    """Percent by rank, and the number of events that HTA reads from the merged file."""
    command = [python, "-c", _READER, str(merged.with_name(traces.EACH)), str(merged)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return {int(rank): percent for rank, percent in answer["percents"].items()}, answer["merged"]


def ours(folder: Path, steps: range) -> dict[int, float]:
    """Percent by rank."""
    records = RunRecords(folder / run_folder.RECORDS)
    fractions = {
        rank: overlap_fraction(
            computation(records.table(rank, "span"), steps), communication(records.table(rank, "comm"), steps)
        )
        for rank in records.ranks()
    }
    return {rank: fraction * 100 for rank, fraction in fractions.items() if fraction is not None}


def rows(session: Session, name: str, python: str, steps: int) -> list[list[str]]:
    """One for each rank of a run."""
    folder, reply = traced(session, parse(_SMALL | RUNS[name]), steps)
    made = traces.list_traces(folder)[0]
    theirs, events = by_hta(python, Path(reply.file or ""))
    mine = ours(folder, range(made.first or 0, (made.first or 0) + made.steps_done))
    return [
        [
            name,
            f"{rank}",
            f"{percent:.2f}",
            f"{mine[rank]:.2f}",
            f"{mine[rank] - percent:+.2f}",
            f"{events:,}",
        ]
        for rank, percent in sorted(theirs.items())
    ]


def main() -> None:
    """One table."""
    parser = _table.parser(__doc__)
    parser.add_argument("--python", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    python = given.python or own_python()
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        found = [row for name in RUNS for row in rows(session, name, python, given.steps)]
    header = ["run", "rank", "HTA, % hidden", "ours, % hidden", "difference", "events of the merged trace"]
    title = f"Overlap of communication and computation over {given.steps} traced steps, beside {HTA}"
    _table.show("hta_overlap", title, header, found, given.save)


if __name__ == "__main__":
    main()
