"""Where the steps of a trial are read: our two lines, a file of JSON lines, TensorBoard's events, or what it prints.

What the trainer tells in our own protocol (:mod:`engine.rank.foreign`) counts alone, as soon as it tells anything.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.rank.foreign import TOLD
from tuning.execution.command.event_file import EventFile
from tuning.spec.terms import StepSource
from tuning.spec.trainers.facts import Reading, StepLine, duration

Timed = tuple[float, Reading]
#: A step of this number or less begins to count anew after one that is so much later: ranks are less apart.
_ANEW, _APART = 1, 3


class JsonLines:
    """Files of JSON lines that match a pattern, and grew since this was made."""

    def __init__(self, directory: Path, pattern: str, step: str = "step", seconds: str = "seconds") -> None:
        self._directory, self._pattern, self._keys = directory, pattern, (step, seconds)
        self._read = {path: path.stat().st_size for path in self._paths()}

    def new(self) -> list[Timed]:
        """What was told since the last look."""
        readings = []
        for path in self._paths():
            readings += self._new_readings(path)
        return readings

    def _paths(self) -> list[Path]:
        try:
            return sorted(self._directory.glob(self._pattern))
        except (NotImplementedError, ValueError):  # an absolute one
            return [path for path in (Path(self._pattern),) if path.is_file()]

    def _new_readings(self, path: Path) -> list[Timed]:
        try:
            with path.open("rb") as file:
                if file.seek(0, 2) < self._read.get(path, 0):
                    self._read[path] = 0
                file.seek(self._read.get(path, 0))
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return []
        whole = [line for line in lines if line.endswith(b"\n")]
        self._read[path] = self._read.get(path, 0) + sum(map(len, whole))
        now = time.monotonic()
        return merge_simultaneous(
            (now, reading) for line in whole if (reading := self._reading(line)) is not None
        )

    def _reading(self, line: bytes) -> Reading | None:
        try:
            document = json.loads(line)
        except ValueError:
            return None
        return reading_of(document, *self._keys) if isinstance(document, dict) else None


def reading_of(document: dict[str, Any], step: str = "step", seconds: str = "seconds") -> Reading | None:
    """What a document tells of a step; None if it has no number of one."""
    if document.get("event", "step") != "step":
        return None
    try:
        number, took, loss = document[step], document.get(seconds), document.get("loss")
        return Reading(
            int(number),
            None if took is None else duration(float(took)),
            None if loss is None else float(loss),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


class Events:
    """The event files in a folder that were not there before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = set(self._paths())
        self._files: dict[Path, EventFile] = {}
        #: Their wall time on the clock of ``time.monotonic``.
        self._offset = time.monotonic() - time.time()

    def new(self) -> list[Timed]:
        """Each step once, when its first value was noted."""
        readings = []
        for path in self._paths():
            if path not in self._before:
                file = self._files.setdefault(path, EventFile(path))
                readings += [(wall + self._offset, Reading(step)) for step, wall in file.new()]
        return readings

    def _paths(self) -> list[Path]:
        return sorted(self._folder.rglob("*tfevents*"))


class Lines:
    """What a trainer prints; only bars of one length count, once one was seen."""

    def __init__(self, kinds: Sequence[StepLine]) -> None:
        self._kinds = kinds
        self._total: int | None = None

    def read(self, lines: Sequence[tuple[float, str]]) -> list[Timed]:
        """The steps that these lines tell of."""
        return merge_simultaneous(
            (seconds, reading) for seconds, line in lines if (reading := self._reading(line)) is not None
        )

    def _reading(self, line: str) -> Reading | None:
        if line.lstrip().startswith("{"):
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                return reading_of(document) if isinstance(document, dict) else None
        reading = next((parsed for kind in self._kinds if (parsed := kind.read(line)) is not None), None)
        if reading is not None and reading.total is not None:
            self._total = self._total or reading.total
            if reading.total != self._total:
                return None
        return reading


def merge_simultaneous(readings: Iterable[Timed]) -> list[Timed]:
    """Without steps that came at once with a later one and have no time of their own: the last one's is theirs, too."""
    merged: list[Timed] = []
    for seconds, reading in readings:
        if merged and merged[-1][0] == seconds and reading.seconds is None and merged[-1][1].seconds is None:
            merged[-1] = seconds, max(merged[-1][1], reading, key=lambda candidate: candidate.step)
        else:
            merged.append((seconds, reading))
    return merged


class Sources:
    """All of a trial's: ``place`` is its own folder, ``directory`` where the command starts."""

    def __init__(
        self, place: Path, directory: Path, kinds: Sequence[StepLine], source: StepSource | None
    ) -> None:
        self._own = JsonLines(place, TOLD)
        self._lines = Lines(kinds)
        self._asked: JsonLines | Events | None = None
        self._told_itself = False
        if source is not None and source.file is not None:
            self._asked = JsonLines(directory, source.file, source.step, source.seconds)
        elif source is not None and source.tensorboard is not None:
            self._asked = Events(directory / source.tensorboard)

    def new(self, lines: Sequence[tuple[float, str]]) -> list[Timed]:
        """Steps that were told of since the last look, beside these new lines of output."""
        own_readings = self._own.new()
        self._told_itself |= bool(own_readings)
        if self._told_itself:
            return own_readings
        if self._asked is not None:
            return self._asked.new()
        return self._lines.read(lines)


@dataclass(slots=True)
class Step:
    """One sample: ``seconds`` of a step, the mean of several where only every so many are told of."""

    time: float
    seconds: float
    loss: float | None
    steps: int = 1


class StepClock:
    """Readings as samples: several ranks may tell of one step, and a loop may begin to count anew."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        #: The most steps that one sample is the mean of.
        self.spacing = 1

    def step(self, seconds: float, reading: Reading) -> Step | None:
        """The sample that a reading completes; None of one that is no later step, or where no time is known."""
        last = self._last
        if last is not None and reading.step <= last[0]:
            if reading.step <= _ANEW and last[0] > _ANEW + _APART:
                self._last = reading.step, seconds
            return None
        self._last = reading.step, seconds
        if reading.seconds is not None:
            return Step(seconds, reading.seconds, reading.loss)
        if last is None or seconds <= last[1]:
            return None
        count = reading.step - last[0]
        self.spacing = max(self.spacing, count)
        return Step(seconds, (seconds - last[1]) / count, reading.loss, count)
