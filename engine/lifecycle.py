"""The two ends of a run: its start noted; its records summed up and its ending noted."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from engine import devices, layout, rundir
from engine.calibration import fingerprint, store
from engine.config import RunConfig
from engine.diagnosis import setting_of
from engine.errors import InputError
from engine.network import shape_of
from engine.notes import notes_of
from engine.outcome import RunOutcome
from engine.ownership import me
from engine.progress import Progress
from engine.schedules.expected import expected_bubble
from engine.sections import Lab
from engine.workloads import flops, peaks
from profilers.records.reader import RunRecords
from profilers.records.schema import Event
from profilers.summary import RunFacts, RunSummary, summarize


def note_start(folder: Path, config: RunConfig, chosen: devices.Devices, network: str | None = None) -> None:
    """Give a run its owner, its devices, its page of progress and the calibration that it refers to.

    ``network`` tells of links between ranks that are not this host's own.
    """
    where = layout.layout_of(config)
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
        placement=config.parallel.placement,
        lab_hosts=lab_hosts(config),
        **store.reference(folder.parent, fingerprint.here(network)),
    )


def network_of(asked: Lab) -> str | None:
    """A lab in words; None where ranks talk over this host's own links."""
    shape = shape_of(asked)
    return None if shape is None else f"a lab of {shape}"


def lab_hosts(config: RunConfig) -> list[int] | None:
    """The lab's host of each rank; None without a lab."""
    shape = shape_of(config.lab)
    return None if shape is None else shape.hosts_of_ranks(layout.devices_of(config))


def finish(folder: Path, config: RunConfig, backend: str, outcome: RunOutcome) -> RunSummary:
    """Sum up a run's records and note its ending; a full disk loses the summary, not the records.

    ``config`` is what the run began with; where it was changed, what it ended with is summed up.
    """
    records = RunRecords(folder / rundir.RECORDS)
    config = rundir.last_config(folder) or config
    summary = summary_of(config, folder.name, backend, records, referred(folder))
    with contextlib.suppress(OSError):
        rundir.write_json(folder / rundir.SUMMARY, summary.as_dict())
        rundir.update_status(folder, state="ended", ended_unix=time.time(), outcome=outcome.as_dict())
    return summary


def referred(folder: Path) -> store.Found:
    """The calibration that a run folder refers to, or why there is none."""
    return store.referred(folder.parent, rundir.read_json(folder / rundir.STATUS) or {})


def summary_of(
    config: RunConfig,
    run: str,
    backend: str,
    records: RunRecords | None,
    calibrated: store.Found = store.UNKNOWN,
) -> RunSummary:
    """A run's records with what its configuration says about them; without records, an empty summary.

    ``calibrated`` is what the machine was measured to reach.
    """
    records = records or RunRecords(Path())
    where = layout.layout_of(config)
    try:
        work = flops.workload_of(config)
    except InputError:
        work = None
    peak, peak_source = _peak(config, records)
    facts = RunFacts(
        run=run,
        layout=where.as_dict(),
        world_size=where.world_size,
        backend=backend,
        tokens_per_step=config.batch.global_batch * config.data.sequence_length,
        model_flops_per_step=flops.model_flops_per_step(work) if work else None,
        peak_flops_per_second=peak,
        peak_source=peak_source,
        parameters=flops.parameters(work) if work else 0,
        hardware_flops_per_step=flops.hardware_flops_per_step(work) if work else None,
        mfu_convention=flops.CONVENTION,
        notes=notes_of(config, _devices(records)) + _told(records),
        links=calibrated.links(backend),
        links_reason=calibrated.reason,
        setting=setting_of(config),
        pipelines=_pipelines(config, where),
    )
    return _beside_formula(summarize(records, facts), config)


def _pipelines(config: RunConfig, where: layout.Layout) -> tuple[tuple[int, ...], ...]:
    """The ranks of each pipeline; none where there is one stage."""
    several = config.parallel.pp * config.schedule.chunks > 1
    return tuple(map(tuple, where.groups("pp"))) if several else ()


def _beside_formula(summary: RunSummary, config: RunConfig) -> RunSummary:
    """The measured bubble with the one that the schedule has at the measured costs."""
    if summary.pipeline is None:
        return summary
    fraction, source = expected_bubble(config, summary.pipeline.action_seconds)
    row = replace(summary.pipeline, formula_fraction=fraction, formula_source=source)
    return replace(summary, pipeline=row)


def _peak(config: RunConfig, records: RunRecords) -> tuple[float | None, str]:
    """Mean peak of the ranks' devices, for the dtype and the fp32 precision that they told; or the one they told."""
    told = _environments(records)
    if told and told[0].data.get("peak_flops"):  # of a device that only a model has
        return float(told[0].data["peak_flops"]), str(told[0].data["peak_source"])
    names = _devices(records)
    tf32 = any(event.data.get("fp32_precision", "highest") != "highest" for event in told)
    return peaks.mean_peak(names, config.precision, tf32)


def _environments(records: RunRecords) -> list[Event]:
    return [
        event for rank in records.ranks() for event in records.events(rank) if event.kind == "environment"
    ]


def _told(records: RunRecords) -> tuple[str, ...]:
    """What ranks noted themselves, each thing once."""
    events = [event for rank in records.ranks() for event in records.events(rank) if event.kind == "note"]
    return tuple(dict.fromkeys(str(event.data.get("text")) for event in events))


def _devices(records: RunRecords) -> list[str]:
    """What each rank computed on, as it told."""
    return [str(event.data["device"]) for event in _environments(records) if "device" in event.data]
