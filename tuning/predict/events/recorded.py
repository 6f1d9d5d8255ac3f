"""A simulated run: a run folder with the records that real ranks would have written, marked as simulated."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.lifecycle import finish
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from profilers.model.run_summary import RunSummary
from profilers.records.writer import RecordWriter
from tuning.predict.events.memory import MemoryLine, memory_of
from tuning.predict.events.played import Simulated
from tuning.predict.events.player import play
from tuning.predict.events.samples import PlayedStep
from tuning.predict.hardware import Cluster
from tuning.predict.messages.wire import Wire

#: The backend and the label of runs that nobody ran.
SIMULATED = "simulated"
_NOTE = (
    "simulated: no rank ran. Times are those of a model of {cluster}, bytes and memory are by formula; losses and "
    "processor seconds do not exist"
)


def write_run(
    home: Path,
    config: RunConfig,
    simulated: Simulated,
    steps: int = 3,
    labels: dict[str, str] | None = None,
) -> tuple[str, RunSummary]:
    """The id and the summary of a new run of so many steps; each is played with another seed where work jitters.

    ``simulated`` is a step of ``config`` (``step_of``). All ranks of a place write alike.

    Raises:
        InputError: the home folder cannot be written.
        ValueError: the step was made for another layout.
    """
    layout, step = layout_of(config), simulated.step
    if layout.world_size != step.places * step.width:
        ranks = step.places * step.width
        raise ValueError(f"simulated: a step of {ranks:,} ranks for a layout of {layout.world_size:,}")
    config = config.with_values({"train.steps": steps, "train.warmup": 0})
    cluster = simulated.machine.cluster.name
    folder = run_folder.create(home, config, {SIMULATED: cluster, **(labels or {})})
    with run_folder.writable(home):
        note_start(folder, config, simulated.machine.cluster)
        _write(folder, config, _played(simulated, steps))
    outcome = RunOutcome(Ending.COMPLETED, f"simulated on a model of {cluster}")
    return folder.name, finish(folder, config, SIMULATED, outcome)


def note_start(folder: Path, config: RunConfig, cluster: Cluster) -> None:
    """Give a run that nobody runs its layout and devices, and say that it is simulated."""
    layout = layout_of(config)
    run_folder.update_status(
        folder,
        state="running",
        started_unix=time.time(),
        world_size=layout.world_size,
        layout=layout.as_dict(),
        backend=SIMULATED,
        backend_reason=f"a model of {cluster.name}, no rank ran",
        devices=[group.accelerator.name for group in cluster.groups],
    )


def _played(simulated: Simulated, steps: int) -> list[Simulated]:
    """As many steps; without jitter they are all alike."""
    machine, found = simulated.machine, [simulated]
    for number in range(1, steps):
        seeded = replace(machine, seed=machine.seed + number)
        found.append(play(simulated.step, seeded) if machine.jitter else simulated)
    return found


def _write(folder: Path, config: RunConfig, played: Sequence[Simulated]) -> None:
    step, lines, began = played[0].step, memory_of(config, played[0]), [time.time()]
    for one in played:
        began.append(began[-1] + one.seconds)
    for place in range(step.places):
        numbered = enumerate(zip(played, began, strict=False))
        parts = [PlayedStep(one, place, number, at, one.seconds) for number, (one, at) in numbered]
        for rank in range(place * step.width, (place + 1) * step.width):
            with RecordWriter(folder / run_folder.RECORDS, f"rank-{rank}") as writer:
                _write_rank(writer, config, rank, parts, lines[place // step.replicas])


def _write_rank(
    writer: RecordWriter, config: RunConfig, rank: int, parts: Sequence[PlayedStep], line: MemoryLine
) -> None:
    machine, layout = parts[0].simulated.machine, layout_of(config)
    device = rank if machine.device_of is None else machine.device_of[rank]
    group, node = machine.cluster.node_of(device)
    name = machine.cluster.groups[group].accelerator.name
    writer.event("environment", device=name, host=f"{machine.cluster.name}, group {group}, node {node}")
    writer.event("note", text=_NOTE.format(cluster=machine.cluster.name))
    tokens = config.batch.global_batch * config.data.sequence_length // layout.data
    dtype = Wire(config).dtype
    for part in parts:
        writer.write(part.step_sample(tokens))
        writer.write_many(part.calls(layout.pp, dtype))
        writer.write_many(part.actions() if part.simulated.step.plan.stages > 1 else [])
        writer.write_many(part.spans())
        writer.write_many(part.memory(line))
