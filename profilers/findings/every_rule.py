"""The records of a run -> what every rule found, above its threshold or not."""

from __future__ import annotations

from collections.abc import Sequence

from profilers.anatomy import hosts_of
from profilers.anatomy_rows import PipelineRow
from profilers.diagnosis.decide import COMPUTE_BOUND
from profilers.diagnosis.setting import Setting
from profilers.diagnosis.verdict import Verdict
from profilers.findings.exposed_rules import exposed_findings
from profilers.findings.exposure import POINT_TO_POINT, exposures
from profilers.findings.machine_rules import machine_findings
from profilers.findings.observed import WORK, Observed
from profilers.findings.pipeline_rules import pipeline_findings
from profilers.findings.step_rules import step_findings
from profilers.findings.units import percent, seconds
from profilers.memory_summary import memory_rows
from profilers.run_summary import CommunicationRow
from profilers.step_join import JoinedSteps
from profilers.table import Table
from profilers.tail import RunRecords


def findings_of(
    records: RunRecords,
    measured: JoinedSteps,
    setting: Setting,
    rows: Sequence[CommunicationRow],
    pipeline: PipelineRow | None,
) -> list[Verdict]:
    """One finding a rule, and for exposed communication one an operation and axis; without thresholds.

    ``rows`` and ``pipeline`` are what the run's summary says. ``measured`` has at least one step.
    """
    tables = [records.table(rank, "comm") for rank in measured.ranks]
    found = exposures(tables, measured, setting.groups)
    seen = Observed(measured, setting, found, hosts_of(records))
    gpus, host = _readings(records), records.table("launcher", "host")
    stages = list(pipeline_findings(seen, rows, pipeline))
    exposed = [
        one
        for one in exposed_findings(seen, rows)
        if not (stages and (one.axis, one.operation) == ("pp", POINT_TO_POINT))
    ]
    timed = [*step_findings(seen, gpus), *exposed, *stages]
    return [*timed, *machine_findings(seen, memory_rows(records), gpus, host), _fine(seen)]


def _readings(records: RunRecords) -> Table:
    """Of the GPUs, if ranks compute on them; else none."""
    told = [
        event.data.get("device", "cpu")
        for rank in records.ranks()
        for event in records.events(rank)
        if event.kind == "environment"
    ]
    table = records.table("launcher", "gpu")
    return table if any(device != "cpu" for device in told) else table.part(0, 0)


def _fine(seen: Observed) -> Verdict:
    """What holds where nothing else does."""
    busy = float(seen.typical(*WORK).mean())
    share = busy / seen.step_seconds
    return Verdict(
        name=COMPUTE_BOUND,
        evidence=f"a rank computes {seconds(busy)} of a step ({percent(share)}); nothing that waits is above its "
        "threshold",
        threshold=None,
        knob="fine as it is; to go on: precision, compile, less memory.recompute, a larger batch.micro_batch, or more "
        "ranks with parallel.dp",
        knobs=["precision", "compile", "memory.recompute", "batch.micro_batch", "parallel.dp"],
    )
