"""The result of a step that was played: spans, waits, collectives, messages, and memory in time.

Memory is the engine's formulas at the times of the simulated actions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.config.run_config import RunConfig
from engine.footprint.activations import ActivationBytes
from engine.footprint.footprint import footprints, parts_of
from engine.footprint.side_activations import kept_of
from engine.schedules.actions import Work
from engine.schedules.simulate import Span, Timeline
from tuning.predict.simulation.machine import Machine
from tuning.predict.simulation.program import Code, Op
from tuning.predict.simulation.step import Collective, Step

_EXPOSED, _BUBBLE = "communication_exposed", "bubble"


class CollectiveSpan(NamedTuple):
    """A collective at one place: seconds since the step began, and how long the place stood waiting for it."""

    call: Collective
    begin: float
    seconds: float
    exposed: float


class Phase(NamedTuple):
    """What a place did for a while; see ``profilers.records.schema.PHASES``."""

    phase: str
    start: float
    end: float


@dataclass(frozen=True)
class SimulatedStep:
    """A step that was played. ``starts`` and ``ends`` are by place and operation of ``ops[pipeline rank]``."""

    step: Step
    machine: Machine
    ops: tuple[tuple[Op, ...], ...]
    starts: tuple[list[float], ...]
    ends: tuple[list[float], ...]
    arrivals: tuple[list[float | None], ...]

    @property
    def seconds(self) -> float:
        """Until the last place is through."""
        return max(ends[-1] for ends in self.ends)

    def program(self, place: int) -> tuple[Op, ...]:
        """The operations of a place."""
        return self.ops[place // self.step.replicas]

    def spans(self, place: int) -> tuple[Span, ...]:
        """Its actions, in the order of its list: from the begin of their work to its end, calls inside included."""
        actions = self.step.plan.actions[place // self.step.replicas]
        spans = list[list[float]]()
        for op, start, end in zip(self.program(place), self.starts[place], self.ends[place], strict=True):
            if op.code != Code.WORK or op.action < 0:
                continue
            if op.action == len(spans):
                spans.append([start, end])
            else:
                spans[op.action][1] = end
        return tuple(Span(action, *times) for action, times in zip(actions, spans, strict=True))

    def timeline(self, replica: int = 0) -> Timeline:
        """One pipeline's actions."""
        places = range(replica, self.step.places, self.step.replicas)
        return Timeline(tuple(self.spans(place) for place in places))

    @property
    def bubble_fraction(self) -> float:
        """Share of the first pipeline's time in which a rank has no action."""
        return self.timeline().bubble_fraction

    def levels(self, place: int, change: Mapping[tuple[Work, int], float]) -> list[tuple[float, float]]:
        """(seconds, level) after each change: by (work, stage), a forward's when it begins, others' when they end."""
        times = [
            (span.start if span.action.work is Work.FORWARD else span.end, number, span.action)
            for number, span in enumerate(self.spans(place))
        ]
        level, levels = 0.0, list[tuple[float, float]]()
        for time, _, action in sorted(times, key=lambda change_at: change_at[:2]):
            level += change[action.work, action.stage]
            levels.append((time, level))
        return levels

    def phases(self, place: int) -> Iterator[Phase]:
        """What it did from the begin of the step to its own end, without gaps: waits are bubble before an action,
        exposed communication elsewhere.
        """
        now = 0.0
        for op, start, end in zip(self.program(place), self.starts[place], self.ends[place], strict=True):
            if op.code == Code.START:
                continue
            if start > now:
                yield Phase(_BUBBLE if op.action >= 0 else "other", now, start)
            yield from _of_work(op, start, end) if op.code == Code.WORK else [Phase(_EXPOSED, start, end)]
            now = end

    def calls(self, place: int) -> Iterator[CollectiveSpan]:
        """Its collectives, in the order in which they begin."""
        waits = [phase for phase in self.phases(place) if phase.phase == _EXPOSED and phase.end > phase.start]
        for op, start, end in zip(self.program(place), self.starts[place], self.ends[place], strict=True):
            if op.code == Code.WORK:
                scale = (end - start) / op.seconds if op.seconds else 0.0
                for inner in op.inner:
                    seconds = inner.seconds * scale
                    yield CollectiveSpan(inner.call, start + inner.offset * scale, seconds, seconds)
            elif op.call is not None and op.code == Code.MEET:
                yield CollectiveSpan(op.call, start, end - start, end - start)
            elif op.call is not None:
                yield CollectiveSpan(op.call, start, end - start, _overlap(start, end, waits))


def _of_work(op: Op, start: float, end: float) -> Iterator[Phase]:
    """Work, cut where its place's ranks wait for each other."""
    scale, now = (end - start) / op.seconds if op.seconds else 0.0, start
    for inner in op.inner:
        begin = start + inner.offset * scale
        after = begin + inner.seconds * scale
        yield Phase(op.phase, now, begin)
        yield Phase(_EXPOSED, begin, after)
        now = after
    yield Phase(op.phase, now, end)


def _overlap(start: float, end: float, waits: Sequence[Phase]) -> float:
    """Seconds of a span that lie in waits, which ascend and do not overlap."""
    first, total = bisect_right(waits, start, key=lambda wait: wait.end), 0.0
    for wait in waits[first:]:
        if wait.start >= end:
            break
        total += min(end, wait.end) - max(start, wait.start)
    return total


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """What a rank of one place holds: ``resting_bytes`` all the time (parameters, gradients, optimizer, buffers), and
    ``activations`` as (seconds, bytes) after each change; ``returning_bytes`` come on top while a backward runs.
    """

    resting_bytes: int
    returning_bytes: int
    activations: tuple[tuple[float, float], ...]

    @property
    def activation_bytes(self) -> int:
        """The most of them at once."""
        return round(max(level for _, level in self.activations)) + self.returning_bytes

    @property
    def peak_bytes(self) -> int:
        """The most of all."""
        return self.resting_bytes + self.activation_bytes


def changes(bytes_of_stages: Mapping[int, ActivationBytes]) -> dict[tuple[Work, int], float]:
    """By (work, stage), what an action leaves on the device or takes away; of a split one W takes what I leaves."""
    change: dict[tuple[Work, int], float] = {}
    for stage, stage_bytes in bytes_of_stages.items():
        change[Work.FORWARD, stage], change[Work.BACKWARD, stage] = stage_bytes.device, -stage_bytes.device
        change[Work.INPUT, stage], change[Work.WEIGHT, stage] = (
            stage_bytes.waiting - stage_bytes.device,
            -stage_bytes.waiting,
        )
    return change


def memory_of(config: RunConfig, simulated: SimulatedStep, replica: int = 0) -> list[MemoryLine]:
    """One line for each rank of a pipeline; ``simulated`` is a step of this configuration.

    Its peak is that of ``engine.footprint.footprint``: a rank's list decides the order in which activations come and
    go.
    """
    plan, parts, lines = simulated.step.plan, parts_of(config, simulated.step.plan), list[MemoryLine]()
    for place, row in enumerate(footprints(config)):
        bytes_of_stages = {stage: kept_of(config, parts[stage]) for stage in plan.stages_of(place)}
        levels = simulated.levels(place * simulated.step.replicas + replica, changes(bytes_of_stages))
        returning = max(stage_bytes.returning for stage_bytes in bytes_of_stages.values())
        lines.append(MemoryLine(row.total_bytes - row.activation_bytes, returning, tuple(levels)))
    return lines
