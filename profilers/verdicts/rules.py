"""The records of a run -> what every rule found, above its threshold or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profilers.analysis.anatomy import hosts_of
from profilers.analysis.memory import memory_rows
from profilers.analysis.steps import WORK, JoinedSteps, mean_phases
from profilers.gpu.rank_gpus import GpuReadings, RankGpus
from profilers.model.run_summary import CommunicationRow
from profilers.model.verdict import COMPUTE_BOUND, Setting, Verdict, find_keys
from profilers.records.operations import POINT_TO_POINT
from profilers.records.reader import RunRecords, host_name
from profilers.verdicts.communication import exposed_findings
from profilers.verdicts.evidence import Exposure, RuleInputs, exposures, percent, seconds
from profilers.verdicts.experts import expert_findings
from profilers.verdicts.machine import machine_findings
from profilers.verdicts.pipeline import pipeline_findings
from profilers.verdicts.steps import step_findings


def exposures_of(records: RunRecords, measured: JoinedSteps, setting: Setting) -> list[Exposure]:
    """What ranks waited for in these steps: what calls cost by themselves, and what late ranks add. Together they are
    the phase ``communication_exposed``.
    """
    calls = [records.table(rank, "comm") for rank in measured.ranks]
    return exposures(calls, measured, setting.groups)


def findings_of(
    records: RunRecords,
    measured: JoinedSteps,
    setting: Setting,
    waits: list[Exposure],
    rows: Sequence[CommunicationRow],
    breakdown: Mapping[str, Any],
    used: RankGpus,
) -> list[Verdict]:
    """One finding a rule, and for exposed communication one an operation and axis; without thresholds.

    ``rows`` and ``breakdown``, the anatomy, are what the run's summary says, ``used`` are the GPUs that ranks
    compute on, ``waits`` is from ``exposures_of``. ``measured`` has at least one step.
    """
    inputs = RuleInputs(measured, setting, waits, hosts_of(records), _of_tasks(records, measured))
    gpus = [GpuReadings(gpu.gpu, gpu.ranks, records.table(gpu.process, "gpu")) for gpu in used.gpus]
    hosts = {host_name(host): records.table(host, "host") for host in records.hosts()}
    stages = list(pipeline_findings(inputs, rows, breakdown["pipeline"]))
    exposed = [
        finding
        for finding in exposed_findings(inputs, rows)
        if not (stages and (finding.axis, finding.operation) == ("pp", POINT_TO_POINT))
    ]
    return [
        *step_findings(inputs, gpus),
        *exposed,
        *stages,
        *machine_findings(inputs, memory_rows(records), gpus, hosts),
        *expert_findings(breakdown["experts"], setting.has_capacities),
        _compute_bound(inputs),
    ]


def _of_tasks(records: RunRecords, measured: JoinedSteps) -> dict[int, int]:
    """Micro-batches of each rank in the last measured step."""
    last, last_steps = int(measured.steps[-1]), dict[int, int]()
    for rank in measured.ranks:
        table = records.table(rank, "task")
        if len(table):
            counts = table.column("micro_batches").filled(0)
            last_steps[rank] = int(counts[table.column("step").filled(-1) == last].sum())
    return last_steps


def _compute_bound(inputs: RuleInputs) -> Verdict:
    """What holds where nothing else does: whether that is so, the other rules say."""
    phases, step = mean_phases(inputs.measured), inputs.step_seconds
    busy, waits = sum(phases[name] for name in WORK), phases["communication_exposed"] + phases["bubble"]
    advice = (
        "to make it faster: precision, compile, less memory.recompute, a larger batch.micro_batch, or more ranks with "
        "parallel.dp"
    )
    return Verdict(
        name=COMPUTE_BOUND,
        evidence=f"forward, backward and optimizer take {seconds(busy)} of a mean step ({percent(busy / step)}), "
        f"and waiting, for communication and for late ranks, takes {seconds(waits)} ({percent(waits / step)})",
        threshold=None,
        advice=advice,
        knobs=find_keys(advice),
    )
