"""A simulated run: a run folder with the records that real ranks would have written, marked as simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.lifecycle import finish
from engine.run import run_folder
from engine.run.outcome import Ending, RunOutcome
from profilers.model.run_summary import RunSummary
from profilers.records.operations import RECV, SEND
from profilers.records.schema import PHASES, ActionSample, CommSample, MemorySample, SpanSample, StepSample
from profilers.records.writer import RecordWriter
from tuning.predict.model.hardware import Cluster
from tuning.predict.simulation.event_loop import simulate
from tuning.predict.simulation.program import Code
from tuning.predict.simulation.step_result import MemoryLine, SimulatedStep, memory_of
from tuning.predict.traffic.calls import Wire


@dataclass(frozen=True)
class PlayedStep:
    """One step at one place: its number, and the unix seconds at which it began and at which the next one does."""

    simulated: SimulatedStep
    place: int
    step: int
    start_unix: float
    length: float

    def step_sample(self, tokens: int) -> StepSample:
        """Its phases; what is left until the slowest place is through counts to ``other``."""
        seconds = dict.fromkeys(PHASES, 0.0)
        for phase in self.simulated.phases(self.place):
            seconds[phase.phase] += phase.end - phase.start
        seconds["other"] += max(0.0, self.length - sum(seconds.values()))
        phases = {f"{name}_seconds": value for name, value in seconds.items()}
        whole = sum(seconds.values())
        fields = {"tokens": tokens, "loss": None, "gradient_norm": None}
        return StepSample(self.step, True, self.start_unix, whole, 0.0, **phases, **fields)  # type: ignore[arg-type]

    def actions(self) -> list[ActionSample]:
        """Of its schedule."""
        return [
            ActionSample(
                self.step,
                str(span.action.work),
                span.action.stage,
                span.action.micro_batch,
                self.start_unix + span.start,
                span.end - span.start,
            )
            for span in self.simulated.spans(self.place)
        ]

    def spans(self) -> list[SpanSample]:
        """Its phases in time."""
        phases = self.simulated.phases(self.place)
        return [
            SpanSample(self.step, phase.phase, self.start_unix + phase.start, phase.end - phase.start)
            for phase in phases
            if phase.end > phase.start
        ]

    def calls(self, pp: int, dtype: str) -> list[CommSample]:
        """Collectives, and messages to and from other stages, by their begin."""
        samples = [
            CommSample(
                self.step,
                call.call.operation,
                call.call.axis,
                call.call.dtype,
                call.call.group_size,
                round(call.call.bytes),
                self.start_unix + call.begin,
                call.seconds,
                call.exposed,
            )
            for call in self.simulated.calls(self.place)
        ]
        return sorted([*samples, *self._messages(pp, dtype)], key=attrgetter("start_unix"))

    def memory(self, line: MemoryLine) -> list[MemorySample]:
        """The most that the step holds, and what is left at its end, as a device's allocator would tell."""
        highest = max(line.activations, key=lambda activation: activation[1])
        resting = line.resting_bytes
        moments = ((highest[0], line.peak_bytes, "backward"), (self.length, resting, "optimizer"))
        return [
            MemorySample(self.step, self.start_unix + offset, 0, 0, bytes_, line.peak_bytes, None, phase)
            for offset, bytes_, phase in moments
        ]

    def _messages(self, pp: int, dtype: str) -> Iterator[CommSample]:
        """A send lasts until it is there, a receive from when its rank has nothing else to do."""
        simulated, free = self.simulated, 0.0
        starts, ends = simulated.starts[self.place], simulated.ends[self.place]
        arrivals, replicas = simulated.arrivals, simulated.step.replicas

        def message(name: str, bytes_: float, begin: float, end: float) -> CommSample:
            began, seconds = self.start_unix + begin, max(0.0, end - begin)
            return CommSample(self.step, name, "pp", dtype, pp, round(bytes_), began, seconds, 0.0)

        for number, op in enumerate(simulated.program(self.place)):
            if op.needs:
                yield message(RECV.name, op.arriving, free, arrivals[self.place][number] or 0.0)
            if op.to >= 0:
                arrival = arrivals[op.to * replicas + self.place % replicas][op.slot] or 0.0
                yield message(SEND.name, op.bytes, ends[number], arrival)
            if op.code != Code.START:
                free = max(starts[number], ends[number])


#: The backend and the label of runs that nobody ran.
SIMULATED = "simulated"
_NOTE = (
    "simulated: no rank ran. Times are those of a model of {cluster}, bytes and memory are by formula; losses and "
    "processor seconds do not exist"
)


def write_run(
    home: Path,
    config: RunConfig,
    simulated: SimulatedStep,
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
    with run_folder.check_writable(home):
        note_start(folder, config, simulated.machine.cluster)
        _write(folder, config, _simulate_steps(simulated, steps))
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


def _simulate_steps(simulated: SimulatedStep, steps: int) -> list[SimulatedStep]:
    """As many steps; without jitter they are all alike."""
    machine, simulated_steps = simulated.machine, [simulated]
    for number in range(1, steps):
        seeded = replace(machine, seed=machine.seed + number)
        simulated_steps.append(simulate(simulated.step, seeded) if machine.jitter else simulated)
    return simulated_steps


def _write(folder: Path, config: RunConfig, played: Sequence[SimulatedStep]) -> None:
    step, lines, began = played[0].step, memory_of(config, played[0]), [time.time()]
    for simulated in played:
        began.append(began[-1] + simulated.seconds)
    for place in range(step.places):
        numbered = enumerate(zip(played, began, strict=False))
        parts = [
            PlayedStep(step, place, number, start_unix, step.seconds)
            for number, (step, start_unix) in numbered
        ]
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
