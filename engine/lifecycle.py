"""The two ends of a run: its start noted; its records summed up and its ending noted."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from engine import devices, layout, rundir
from engine.config import RunConfig
from engine.errors import InputError
from engine.outcome import RunOutcome
from engine.ownership import me
from engine.presets import resolve
from engine.progress import Progress
from engine.workloads.flops import model_flops_per_step
from profilers.summary import RunFacts, RunSummary, summarize
from profilers.tail import RunRecords


def note_start(folder: Path, where: layout.Layout, chosen: devices.Devices) -> None:
    """Give a run its owner, its devices and its page of progress."""
    Progress(folder, where.world_size).close()
    rundir.update_status(
        folder,
        state="running",
        owner=me(),
        started_unix=time.time(),
        world_size=where.world_size,
        layout=where.as_dict(),
        backend=chosen.backend,
        backend_reason=chosen.reason,
        devices=list(chosen.names),
    )


def finish(folder: Path, config: RunConfig, backend: str, outcome: RunOutcome) -> RunSummary:
    """Sum up a run's records and note its ending; a full disk loses the summary, not the records."""
    records = RunRecords(folder / rundir.RECORDS)
    summary = summary_of(config, folder.name, backend, records)
    with contextlib.suppress(OSError):
        rundir.write_json(folder / rundir.SUMMARY, summary.as_dict())
        rundir.update_status(folder, state="ended", ended_unix=time.time(), outcome=outcome.as_dict())
    return summary


def summary_of(config: RunConfig, run: str, backend: str, records: RunRecords | None) -> RunSummary:
    """A run's records with what its configuration says about them; without records, an empty summary."""
    where = layout.layout_of(config)
    try:
        flops, parameters = model_flops_per_step(config), resolve(config.model).parameters
    except InputError:
        flops, parameters = None, 0
    facts = RunFacts(
        run=run,
        layout=where.as_dict(),
        world_size=where.world_size,
        backend=backend,
        tokens_per_step=config.batch.global_batch * config.data.sequence_length,
        model_flops_per_step=flops,
        peak_flops_per_second=None,
        peak_source="no known peak for this device and dtype",
        parameters=parameters,
    )
    return summarize(records or RunRecords(Path()), facts)
