"""Records of made-up runs for the rules of the verdicts: all steps alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profilers.model.run_summary import RunFacts, RunSummary
from profilers.model.verdict import Setting, Verdict
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from profilers.summary import summarize
from tests.support.samples import comm_sample, gpu_sample, step_sample

STEPS = 12
START = 1_700_000_000.0


def write(
    folder: Path, ranks: list[dict[str, float]], calls: list[dict[str, Any]] | None = None, **events: Any
) -> None:
    """Ranks whose steps all have these phases, and each of these calls; with ``events`` as their environment."""
    for rank, phases in enumerate(ranks):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            writer.event("environment", **{"host": f"node-{rank}"} | events)
            for step in range(STEPS):
                writer.write(step_sample(step, **phases))
                for call in calls or []:
                    own = {
                        name: value[rank] if isinstance(value, list) else value
                        for name, value in call.items()
                    }
                    writer.write(comm_sample(step, **own))


def summary(
    folder: Path, setting: Setting | None = None, layout: dict[str, int] | None = None, **facts: Any
) -> RunSummary:
    known = RunFacts(
        "x", layout or {}, 1, "gloo", 100, None, None, "no peak", 1, setting=setting or Setting(), **facts
    )
    return summarize(RunRecords(folder), known)


def named(found: RunSummary, name: str) -> Verdict:
    (one,) = [finding for finding in found.findings if finding.name == name]
    return one


UUID = "GPU-ee7954ec-da95-fd7a-ddfd-c6b32cc2f8aa"


def gpu_run(folder: Path, readings: int = 40, device: str = "NVIDIA H100", **values: Any) -> None:
    """One rank on a GPU with these readings during its steps."""
    write(folder, [{"forward": 1.0}], device=device, gpu_uuid=UUID)
    with RecordWriter(folder, "launcher") as writer:
        writer.event("gpus", host="node-0", gpus=[{"gpu": 0, "uuid": UUID, "pci_bus_id": None}])
        for reading in range(readings):
            time = START + STEPS * reading / readings
            known = {"memory_used_bytes": 50, "memory_total_bytes": 100, "utilization_fraction": 1.0}
            writer.write(gpu_sample(time_unix=time, **known | values))
