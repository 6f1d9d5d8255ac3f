"""Home folders full of made-up but believable runs and one study, so that pages can be seen without ranks.

``python -m tests.support.workbench.synthetic HOME`` writes one and keeps its live run growing until it is interrupted.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.config import run_config
from engine.config.layout import layout_of
from engine.config.presets import resolve
from engine.run import ownership, run_folder
from engine.run.progress import Progress
from profilers.records.operations import is_message
from profilers.records.reader import RunRecords
from profilers.records.schema import (
    PHASES,
    CommSample,
    CoreSample,
    GpuSample,
    HostSample,
    MemorySample,
    ProcessSample,
    StepSample,
)
from profilers.records.writer import RecordWriter
from profilers.summary import RunFacts, summarize
from tests.support.samples import busy_gpu
from tests.support.workbench.synthetic_study import write_study

GIB = 2**30
CORES = 4
#: The part of each call's time in which its rank stands still.
EXPOSED = 0.6
LAST_LINES = [
    '  File "engine/rank/loop.py", line 88, in train_step',
    "    loss = self.workload.loss(self.model(tokens), targets)",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 268435456 bytes. Error code 12 (Cannot allocate memory)",
]


@dataclass
class FakeRun:
    """One run: what it is asked to do, how long its step takes, and how it ends (None: it still goes on)."""

    id: str
    values: dict[str, Any]
    step_seconds: float
    steps: int
    ending: str | None = "completed"
    reason: str = ""
    study: str | None = None
    trial: int | None = None
    started_unix: float = 0.0
    gpus: int = 0

    def __post_init__(self) -> None:
        self.config = run_config.RunConfig().with_values(
            {"train.steps": self.steps, "train.warmup": 4} | self.values
        )
        self.random = random.Random(self.id.rsplit("-", 1)[-1])  # what is before it is the time
        self.world_size = layout_of(self.config).world_size
        self.started_unix = self.started_unix or time.time() - self.steps * self.step_seconds

    def shares(self) -> dict[str, float]:
        """How a step divides into phases; what its calls expose is its exposed communication."""
        shares = {"data": 0.01, "forward": 0.3, "backward": 0.5, "optimizer": 0.05, "other": 0.02}
        shares["bubble"] = 0.12 if self.config.parallel.pp > 1 else 0.0
        computed, exposed = sum(shares.values()), EXPOSED * sum(row[-1] for row in self.calls())
        shares = {name: share / computed * (1 - exposed) for name, share in shares.items()}
        return {phase: shares.get(phase, exposed) for phase in PHASES}

    def step(self, rank: int, number: int) -> StepSample:
        """One step of one rank, with noise, a hiccup now and then, and a slower first step."""
        factor = self.random.lognormvariate(0.0, 0.025) + 0.01 * rank
        factor += 0.8 * (number == 0) + 0.5 * (self.random.random() < 0.015)
        shares = self.shares()
        exposed = shares.pop("communication_exposed")
        seconds = {
            phase: share * self.step_seconds * factor * self.random.uniform(0.95, 1.05)
            for phase, share in shares.items()
        }
        total = sum(seconds.values()) / (1 - exposed)
        seconds["communication_exposed"] = total * exposed
        loss = 2.1 + 3.45 * 0.97**number + self.random.gauss(0, 0.02)
        return StepSample(
            step=number,
            measured=number >= self.config.train.warmup,
            start_unix=self.begin_of(number),
            step_seconds=total,
            cpu_seconds=total * 0.93,
            **{f"{phase}_seconds": value for phase, value in seconds.items()},
            tokens=self.tokens,
            loss=loss if rank % 2 else None,
            gradient_norm=1.0,
        )

    def begin_of(self, number: int) -> float:
        """Unix time."""
        return self.started_unix + number * self.step_seconds

    @property
    def tokens(self) -> int:
        """Tokens of a global batch."""
        return self.config.batch.global_batch * self.config.data.sequence_length

    def calls(self) -> list[tuple[str, str, int, int, float]]:
        """Operation, axis, calls per step, bytes per step and the share of a step that they take."""
        parallel, size = self.config.parallel, 4 * resolve(self.config.model).parameters
        rows: list[tuple[str, str, int, int, float]] = []
        if parallel.dp > 1 and parallel.zero_stage == 3:
            rows += [("all_gather", "dp", 8, size * 2, 0.16), ("reduce_scatter", "dp", 4, size, 0.12)]
        elif parallel.dp > 1:
            rows.append(("all_reduce", "dp", 3, size, 0.14))
        if parallel.tp > 1:
            rows.append(("all_reduce", "tp", 32, 32 * 1_310_720, 0.1))
        if parallel.pp > 1:
            rows += [("send", "pp", 8, 8 * 655_360, 0.0), ("recv", "pp", 8, 8 * 655_360, 0.0)]
        return rows


class RunFolder:
    """Writes the folder of one fake run, a step at a time."""

    def __init__(self, home: Path, run: FakeRun) -> None:
        self.run, self.folder = run, home / run.id
        for part in (run_folder.RECORDS, run_folder.LOGS, run_folder.COMMANDS):
            (self.folder / part).mkdir(parents=True)
        (self.folder / run_folder.CONFIG).write_text(run.config.dumps(), "utf-8")
        labels = {"study": run.study, "trial": str(run.trial)} if run.study else {"purpose": "train"}
        run_folder.write_json(self.folder / run_folder.STATUS, self._status(labels))
        self._used, self._sampled = 0.0, run.started_unix
        self.progress = Progress(self.folder, run.world_size)
        records = self.folder / run_folder.RECORDS
        self.ranks = [RecordWriter(records, f"rank-{rank}") for rank in range(run.world_size)]
        self.launcher = RecordWriter(records, "launcher")
        if not run.gpus:
            self.launcher.event("nvml_unavailable", reason="libnvidia-ml.so.1 was not found")
        for rank in range(run.world_size):
            log = f"rank {rank} of {run.world_size}: pid {os.getpid()}, gloo\nmodel tiny, 1.4 M parameters\n"
            (self.folder / run_folder.LOGS / f"rank-{rank}.log").write_text(log, "utf-8")

    def _status(self, labels: dict[str, str]) -> dict[str, Any]:
        return {
            "id": self.run.id,
            "state": "running",
            "labels": labels,
            "owner": asdict(ownership.this_process()),
            "created_unix": self.run.started_unix - 0.4,
            "started_unix": self.run.started_unix,
            "world_size": self.run.world_size,
            "layout": layout_of(self.run.config).as_dict(),
            "backend": "nccl" if self.run.gpus else "gloo",
            "backend_reason": f"{self.run.gpus} GPUs" if self.run.gpus else "no GPU was found",
            "devices": ["cpu"] * self.run.world_size,
            "rank_pids": [os.getpid()] * self.run.world_size,
        }

    def write_step(self, number: int) -> None:
        """Everything that ranks and launcher write in one step."""
        for rank, writer in enumerate(self.ranks):
            sample = self.run.step(rank, number)
            writer.write(sample)
            for row in self.run.calls():
                for call in _calls(sample, layout_of(self.run.config).as_dict()[row[1]], *row):
                    writer.write(call)
            rss = int((0.41 + 0.02 * rank) * GIB + 2e6 * min(number, 30))
            writer.write(MemorySample(number, sample.start_unix, rss, rss + 2**24, None, None, None))
            self.progress.enter_state(rank, number + 1, ("backward", "forward")[rank % 2])
        self._host(self.run.begin_of(number), number)

    def _host(self, at: float, number: int) -> None:
        cpu = min(1.0, 0.9 + 0.08 * self.run.random.random()) if number else 0.2
        for gpu in range(self.run.gpus):
            self.launcher.write(self._gpu(at, gpu))
        memory = int(9.1 * GIB + 3e7 * min(number, 60))
        self.launcher.write(HostSample(at, cpu, memory, 24 * GIB, *([0] * 5), 3.5))
        self._used += cpu * CORES / self.run.world_size * max(0.0, at - self._sampled)
        self._sampled, used = at, self._used
        for core in range(CORES):
            self.launcher.write(CoreSample(at, core, cpu))
        for rank in range(self.run.world_size):
            self.launcher.write(ProcessSample(at, rank, used, None, 8, 40 * number, 9 * number, None, None))

    def _gpu(self, at: float, gpu: int) -> GpuSample:
        return busy_gpu(at, gpu, min(1.0, 0.88 + 0.1 * self.run.random.random()))

    def write(self, steps: int) -> None:
        """The first ``steps`` steps, and the ending if there is one."""
        for number in range(steps):
            self.write_step(number)
        if self.run.ending:
            self.end()

    def end(self) -> None:
        """Status and summary of a run that is over."""
        run = self.run
        bad = run.ending not in ("completed", "pruned")
        for writer in [] if bad else self.ranks[1::2]:
            writer.event("validation", loss=2.1 + 3.45 * 0.97**run.steps + 0.03)
        outcome = {
            "ending": run.ending,
            "reason": run.reason,
            "rank": 2 if bad else None,
            "phase": "forward" if bad else None,
            "last_lines": LAST_LINES if bad else [],
            "killed_from_outside": False,
        }
        ended = run.started_unix + run.steps * run.step_seconds
        run_folder.update_status(self.folder, state="ended", outcome=outcome, ended_unix=ended)
        run_folder.write_json(self.folder / run_folder.SUMMARY, summary(self.folder, run))
        for writer in (*self.ranks, self.launcher):
            writer.close()


def _calls(
    sample: StepSample, ranks: int, operation: str, axis: str, *numbers: float
) -> Iterator[CommSample]:
    """``ranks`` are those of the axis. Nobody can time a message: one end is posted before the other is there."""
    count, size, share = numbers
    seconds = share * sample.step_seconds / count
    for call in range(int(count)):
        yield CommSample(
            step=sample.step,
            operation=operation,
            axis=axis,
            dtype="float32",
            group_size=ranks,
            bytes=int(size / count),
            start_unix=sample.start_unix + sample.step_seconds * (call + 1) / (count + 1),
            seconds=None if is_message(operation) else seconds,
            exposed_seconds=seconds * EXPOSED,
        )


def summary(folder: Path, run: FakeRun) -> dict[str, Any]:
    """``summary.json`` as the engine would make it from the records."""
    facts = RunFacts(
        run=run.id,
        layout=layout_of(run.config).as_dict(),
        world_size=run.world_size,
        backend="gloo",
        tokens_per_step=run.tokens,
        model_flops_per_step=6.0 * resolve(run.config.model).parameters * run.tokens,
        peak_flops_per_second=None,
        peak_source="no table entry for this CPU",
        parameters=resolve(run.config.model).parameters,
    )
    return summarize(RunRecords(folder / run_folder.RECORDS), facts).as_dict()


def finished_runs(now: float) -> list[FakeRun]:
    """Three runs of a person trying things out."""
    times = [now - 90_000, now - 7_400, now - 3_900]
    ids = [time.strftime("%Y%m%d-%H%M%S", time.gmtime(at)) for at in times]
    return [
        FakeRun(f"{ids[0]}-3c01", {}, 0.62, 40, started_unix=times[0]),
        FakeRun(
            f"{ids[1]}-a7e2",
            {"parallel.dp": 2, "parallel.tp": 2, "batch.micro_batch": 4},
            0.21,
            60,
            started_unix=times[1],
            gpus=4,
        ),
        FakeRun(
            f"{ids[2]}-9f10",
            {"parallel.dp": 4, "parallel.zero_stage": 3},
            0.25,
            18,
            "crashed",
            "rank 2 raised ValueError: token 311 is not in the vocabulary (256)",
            started_unix=times[2],
        ),
    ]


def write_home(home: Path, live_steps: int = 70) -> RunFolder:
    """Fills a home folder; returns the folder of the run that is still going."""
    home.mkdir(parents=True, exist_ok=True)
    for run in finished_runs(time.time()):
        RunFolder(home, run).write(run.steps)
    live = write_study(home, FakeRun, RunFolder)
    live.write(live_steps)
    return live


def main() -> None:
    """Write a home and keep its live run growing."""
    home = Path(sys.argv[1])
    live = write_home(home)
    print(json.dumps({"home": str(home), "live": live.run.id}), flush=True)
    for number in range(70, live.run.steps):
        time.sleep(live.run.step_seconds)
        live.write_step(number)
    live.run.ending = "completed"
    live.end()


if __name__ == "__main__":
    main()
