"""A run that grows by thousands of steps at once: records of a few written steps, repeated with later numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine.run import run_folder
from profilers.records.codec import decode_header, record_dtype
from profilers.records.schema import STREAMS
from tests.support.workbench.synthetic import FakeRun, RunFolder

#: Steps that are written one by one and then repeated.
PATTERN = 50
RANKS = 8


class LongRun:
    """A run of 8 ranks under way, of as many steps as are asked for."""

    def __init__(self, home: Path, name: str = "20260101-000000-cccc", step_seconds: float = 0.2) -> None:
        values = {"parallel.dp": RANKS, "batch.global_batch": 64}
        self.fake = FakeRun(name, values, step_seconds, 10_000_000, ending=None)
        self.written = RunFolder(home, self.fake)
        self.folder = self.written.folder
        self.steps = PATTERN
        self.written.write(PATTERN)
        self._patterns: dict[Path, np.ndarray[Any, np.dtype[Any]]] = {}
        for path in sorted((self.folder / run_folder.RECORDS).iterdir()):
            if path.suffix[1:] in STREAMS and path.suffix != ".comm":
                decoded = decode_header(path.read_bytes())
                assert decoded is not None
                header, head_bytes = decoded
                self._patterns[path] = np.fromfile(path, record_dtype(header), offset=head_bytes)

    def grow(self, steps: int, spike: tuple[int, float] | None = None) -> None:
        """Writes as many more steps, a multiple of ``PATTERN``; ``spike`` is a step of rank 3 and its seconds."""
        rounds = np.arange(self.steps // PATTERN, (self.steps + steps) // PATTERN)
        for path, pattern in self._patterns.items():
            records = np.tile(pattern, len(rounds))
            shift = np.repeat(rounds * PATTERN, len(pattern))
            for name in records.dtype.names or ():
                if name == "step":
                    records[name] += shift
                elif name in ("start_unix", "time_unix"):
                    records[name] += shift * self.fake.step_seconds
            if spike is not None and path.name == "rank-3.step":
                records["step_seconds"][records["step"] == spike[0]] = spike[1]
            with path.open("ab") as file:
                file.write(records.tobytes())
        self.steps += steps
