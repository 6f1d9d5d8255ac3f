"""Steps that were played as the records that ranks write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from profilers.records.schema import PHASES, ActionSample, CommSample, MemorySample, SpanSample, StepSample
from tuning.predict.events.memory import MemoryLine
from tuning.predict.events.played import Simulated
from tuning.predict.events.program import Code


@dataclass(frozen=True)
class PlayedStep:
    """One step at one place: its number, and the unix seconds at which it began and at which the next one does."""

    simulated: Simulated
    place: int
    step: int
    began: float
    length: float

    def step_sample(self, tokens: int) -> StepSample:
        """Its phases; what is left until the slowest place is through counts to ``other``."""
        seconds = dict.fromkeys(PHASES, 0.0)
        for one in self.simulated.phases(self.place):
            seconds[one.phase] += one.end - one.start
        seconds["other"] += max(0.0, self.length - sum(seconds.values()))
        phases = {f"{name}_seconds": value for name, value in seconds.items()}
        whole = sum(seconds.values())
        known = {"tokens": tokens, "loss": None, "gradient_norm": None}
        return StepSample(self.step, True, self.began, whole, 0.0, **phases, **known)  # type: ignore[arg-type]

    def actions(self) -> list[ActionSample]:
        """Of its schedule."""
        return [
            ActionSample(
                self.step,
                str(span.action.work),
                span.action.stage,
                span.action.micro_batch,
                self.began + span.start,
                span.end - span.start,
            )
            for span in self.simulated.spans(self.place)
        ]

    def spans(self) -> list[SpanSample]:
        """Its phases in time."""
        found = self.simulated.phases(self.place)
        return [
            SpanSample(self.step, one.phase, self.began + one.start, one.end - one.start)
            for one in found
            if one.end > one.start
        ]

    def calls(self, pp: int, dtype: str) -> list[CommSample]:
        """Collectives, and messages to and from other stages, by their begin."""
        found = [
            CommSample(
                self.step,
                one.call.operation,
                one.call.axis,
                one.call.dtype,
                one.call.group_size,
                round(one.call.bytes),
                self.began + one.begin,
                one.seconds,
                one.exposed,
            )
            for one in self.simulated.calls(self.place)
        ]
        return sorted([*found, *self._messages(pp, dtype)], key=attrgetter("start_unix"))

    def memory(self, line: MemoryLine) -> list[MemorySample]:
        """The most that the step holds, and what is left at its end, as a device's allocator would tell."""
        highest = max(line.activations, key=lambda one: one[1])
        rest = line.resting_bytes
        moments = ((highest[0], line.peak_bytes, "backward"), (self.length, rest, "optimizer"))
        return [
            MemorySample(self.step, self.began + at, 0, 0, bytes_, line.peak_bytes, None, phase)
            for at, bytes_, phase in moments
        ]

    def _messages(self, pp: int, dtype: str) -> Iterator[CommSample]:
        """A send lasts until it is there, a receive from when its rank has nothing else to do."""
        simulated, free = self.simulated, 0.0
        starts, ends = simulated.starts[self.place], simulated.ends[self.place]
        arrivals, replicas = simulated.arrivals, simulated.step.replicas

        def message(name: str, bytes_: float, begin: float, end: float) -> CommSample:
            began, seconds = self.began + begin, max(0.0, end - begin)
            return CommSample(self.step, name, "pp", dtype, pp, round(bytes_), began, seconds, 0.0)

        for number, op in enumerate(simulated.program(self.place)):
            if op.needs:
                yield message("recv", op.arriving, free, arrivals[self.place][number] or 0.0)
            if op.to >= 0:
                there = arrivals[op.to * replicas + self.place % replicas][op.slot] or 0.0
                yield message("send", op.bytes, ends[number], there)
            if op.code != Code.START:
                free = max(starts[number], ends[number])
