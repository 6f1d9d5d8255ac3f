"""One run folder, read: configuration, status, summary, and whether its owner still lives. No torch.

Numbers of a run that has no summary yet: one that still goes on, or one that was cut off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config.errors import InputError
from engine.config.layout import RANKS
from engine.lifecycle import calibration_or_reason, summary_of, summary_of_job
from engine.run import answers as orders
from engine.run import run_folder
from engine.run.outcome import Ending, RecordedOutcome
from engine.run.ownership import is_alive
from engine.run.run_folder import RunStatus
from tuning.storage.study_folder import STUDIES
from workbench.home.settings import JOBS
from workbench.records import archive
from workbench.records import summary as summaries

if TYPE_CHECKING:
    from engine.config.run_config import RunConfig
    from profilers.model.rows import ChangeRow, MemoryPlanRow, PlanRow
    from profilers.model.run_summary import RunSummary

#: A run is created before its owner has signed the status; after this long without a signature it is lost.
SIGNING_SECONDS = 30.0
LOST_REASON = "the process that ran it is gone and recorded no ending"


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as its folder tells it. ``state`` is starting, running or ended.

    ``job`` is what is known of one that is not ours.
    """

    id: str
    folder: Path
    state: str
    status: RunStatus
    outcome: str | None
    reason: str
    summary: RunSummary | None
    job: run_folder.ForeignJob | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Study, trial and purpose, where they apply."""
        return dict(self.status.labels)

    @property
    def last_lines(self) -> list[str]:
        """What the rank that caused a bad ending said last."""
        return list(self.status.outcome.last_lines) if self.status.outcome else []

    @property
    def orders(self) -> list[orders.RankReply]:
        """What ranks did when they were asked to, each with its files."""
        return orders.run_answers(self.folder)

    @property
    def changes(self) -> list[ChangeRow]:
        """Values that were changed while it went; with the step times around them once it has ended."""
        if self.summary is not None:
            return self.summary.changes
        from profilers.analysis.events import change_rows
        from profilers.records.reader import RunRecords

        if not (self.folder / run_folder.STARTED).exists():
            return []
        return change_rows(RunRecords(self.folder / run_folder.RECORDS))

    @property
    def plans(self) -> list[PlanRow]:
        """Plans of compression that it followed so far."""
        if self.summary is not None:
            return self.summary.plans
        from profilers.analysis.events import plan_rows
        from profilers.records.reader import RunRecords

        if not (self.folder / run_folder.STARTED).exists():
            return []
        return plan_rows(RunRecords(self.folder / run_folder.RECORDS))

    @property
    def memory_plans(self) -> list[MemoryPlanRow]:
        """What each stage does with its blocks' activations, of a run with a budget for them."""
        if self.summary is not None:
            return self.summary.memory_plans
        from profilers.analysis.events import memory_plan_rows
        from profilers.records.reader import RunRecords

        if not (self.folder / run_folder.STARTED).exists():
            return []
        return memory_plan_rows(RunRecords(self.folder / run_folder.RECORDS))

    @property
    def layout(self) -> dict[str, int]:
        """Degrees of parallelism and the ZeRO stage."""
        return layout_of(self.folder, self.status)

    def config(self) -> RunConfig:
        """The configuration that ran, checked again.

        Raises:
            InputError: the folder has no readable config.json, or the run is a job that is not ours.
        """
        from engine.config import run_config

        if self.job is not None:
            raise InputError("run", self.id, "is a foreign job, which has no configuration of ours")
        return run_config.load(self.folder / run_folder.CONFIG)


def run_folders(home: Path) -> Iterator[Path]:
    """Every run folder of a home, oldest first."""
    try:
        names = sorted(os.listdir(home))  # noqa: PTH208  (there may be 10,000)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        status = f"{home}/{name}/{run_folder.STATUS}"
        if name not in (STUDIES, JOBS) and os.path.isfile(status):  # noqa: PTH113
            yield home / name


def load(folder: Path) -> RunView:
    """A run folder as it stands now; parts that are missing or unreadable are absent."""
    status = RunStatus.from_folder(folder)
    state, outcome, reason = ending(status)
    job = run_folder.ForeignJob.from_folder(folder)
    return RunView(folder.name, folder, state, status, outcome, reason, summaries.summary_of(folder), job)


def ending(status: RunStatus) -> tuple[str, str | None, str]:
    """State, ending and reason of a status; a run that lost its owner has ended as lost, or as the hang noted in it."""
    outcome, lost = status.outcome, Ending.LOST.value
    if status.state == "ended" or outcome is not None:
        return "ended", (outcome and outcome.ending) or lost, outcome.reason if outcome else ""
    if _is_abandoned(status):
        hang = status.hang or RecordedOutcome(reason=LOST_REASON)
        return "ended", hang.ending or lost, hang.reason
    return status.state or "starting", None, ""


def layout_of(folder: Path, status: RunStatus) -> dict[str, int]:
    """The layout a status names, else the one its configuration asks for."""
    layout: Any = status.layout
    if layout == {}:  # of a job that is not ours
        return {}
    if not isinstance(layout, dict):
        layout = (run_folder.read_json(folder / run_folder.CONFIG) or {}).get("parallel") or {}
    names = {"dp": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "zero_stage": 0}
    of_others = {RANKS: int(layout[RANKS])} if RANKS in layout else {}
    return {name: int(layout.get(name, usual)) for name, usual in names.items()} | of_others


def document(view: RunView) -> dict[str, Any]:
    """The JSON of a run, as ``train`` and ``show`` print it."""
    status_fields = ("world_size", "backend", "backend_reason", "created_unix", "started_unix", "ended_unix")
    machine = ("fingerprint", "calibration", "calibration_reason")
    outcome = view.status.outcome or RecordedOutcome()
    return {
        "id": view.id,
        "outcome": view.outcome,
        "reason": view.reason,
        "state": view.state,
        "layout": view.layout,
        "placement": placement(view.status),
        **_results(view),
        "rank": outcome.rank,
        "phase": outcome.phase,
        "last_lines": view.last_lines,
        "orders": [answer.as_dict() for answer in view.orders],
        "changes": [asdict(row) for row in view.changes],
        "plans": [asdict(row) for row in view.plans],
        "memory_plans": [asdict(row) for row in view.memory_plans],
        "labels": view.labels,
        **{name: getattr(view.status, name) for name in status_fields + machine},
        "folder": str(view.folder),
        "job": None if view.job is None else asdict(view.job),
        "config": run_folder.read_json(view.folder / run_folder.CONFIG),
    }


def placement(status: RunStatus) -> list[dict[str, Any]] | None:
    """The device of each rank, and its host where that is known; None where ranks are in order."""
    if not status.placement:
        return None
    hosts = {rank: host.name for host in status.hosts for rank in host.ranks}
    hosts |= {rank: f"lab host {host}" for rank, host in enumerate(status.lab_hosts or [])}
    return [
        {"rank": rank, "device": device, "host": hosts.get(rank)}
        for rank, device in enumerate(status.placement)
    ]


_EMPTY_RESULTS: dict[str, Any] = {
    "first_step": 0,
    "resumed": None,
    "left_alone": {},
    "outer": None,
    "checkpoints": [],
    "measured_from_step": None,
    "losses": [],
    "quality": [],
    "gradient_norms": [],
    "step_seconds": None,
    "tokens_per_second": None,
    "phases": None,
    "exposed_seconds_by_axis": {},
    "hidden_seconds_by_axis": {},
    "pipeline": None,
    "experts": [],
    "tasks": [],
    "expert_slots": [],
    "sequence_groups": [],
    "sequence_plans": [],
    "batches_ahead": [],
    "networks": [],
    "adapted": None,
    "update": None,
    "partial_products": None,
    "gaps": [],
    "warmup_steps": None,
    "warmup_steps_found": None,
    "clocks": [],
    "rank_skew_seconds": None,
    "slowest_rank": None,
    "slowest_rank_host": None,
    "slowest_rank_share": None,
    "communication": [],
    "peak_bandwidth_reason": None,
    "message_seconds_reason": None,
    "wire_bytes_per_step": None,
    "wire_bytes_measured": None,
    "wire_bytes_reason": None,
    "peak_memory_bytes": None,
    "peak_memory_phase": None,
    "peak_memory_rank": None,
    "memory": [],
    "hosts": [],
    "mfu": None,
    "environment": [],
    "findings": [],
    "verdicts": [],
}


def _results(view: RunView) -> dict[str, Any]:
    results = view.summary.as_dict() if view.summary else {}
    own_keys = ("id", "outcome", "reason", "state", "layout", "world_size", "backend")
    return _EMPTY_RESULTS | {key: value for key, value in results.items() if key not in own_keys}


def _is_abandoned(status: RunStatus) -> bool:
    if "owner" in status.keys:
        return not is_alive(status.owner)
    return time.time() - (status.created_unix or 0.0) > SIGNING_SECONDS


def add_numbers_so_far(view: RunView, newest_steps: int | None = None) -> RunView:
    """The same view, with a summary of the records that are there by now, or of those of so many of the last steps."""
    if view.summary is not None:
        return view
    records = archive.records(view.folder / run_folder.RECORDS, newest_steps)
    if view.job is not None:
        return replace(view, summary=summary_of_job(view.folder, records))
    try:
        config = view.config()
    except InputError:
        return view
    backend = view.status.backend or "none"
    return replace(
        view, summary=summary_of(config, view.id, backend, records, calibration_or_reason(view.folder))
    )
