"""Steps of a foreign job, recorded as under ``workbench run``: plain DDP, nothing of this project in its loop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from profilers.rank import attachment
from profilers.rank.job_rank import FLIGHT, RECORDS, SEATS
from profilers.rank.recording import BUDGET
from profilers.steps.sampling_budget import DetailChoice

_WIDTH, _LAYERS = 256, 8
#: Rows of a batch, with which a step takes some ten milliseconds.
ROWS = 256
#: Steps after the recording was put in or taken out that are not measured: a job never switches between two steps, and
#: kernels that were put in a moment ago are in no cache (the first step after it took 280 microseconds more a call).
SETTLING = 2


class Held(DetailChoice):
    """Records as much of a step as it is told to; what the job would choose is kept as ``every``."""

    detailed = True

    def wants(self, step: int) -> bool:
        """As told."""
        return self.detailed


class Job:
    """The loop, and what records it: it comes in by the same door as in any job."""

    def __init__(self, folder: Path, rows: int) -> None:
        for part in (SEATS, RECORDS, FLIGHT):
            (folder / part).mkdir(exist_ok=True)
        os.environ[attachment.FOLDER_VARIABLE] = str(folder)
        attachment.arm(_refused)
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(_LAYERS)]
        self._model = DistributedDataParallel(nn.Sequential(*blocks), bucket_cap_mb=0.5)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._batches = iter(torch.utils.data.DataLoader(_Batches(rows), batch_size=None))
        self.one_step()
        recording = attachment.process_recording()
        assert recording is not None
        self._recording, self.steps, self._recorded = recording, recording.steps(), True
        self.choice = Held(BUDGET)
        self.steps.records.choice = self.choice
        self.one_step()

    def switch(self, recorded: bool) -> None:
        """Put everything in or take it out, and call what the dispatcher sees once: the first call is slower."""
        if recorded != self._recorded:
            self._recorded = recorded
            (self.steps.instrument if recorded else self.steps.take_out)()
            for asynchronous in (True, False):
                work = dist.all_reduce(torch.zeros(1), async_op=asynchronous)
                if work is not None:
                    work.wait()
        # While the job tells its steps itself, and tells none, none ends.
        self._recording.exact = not recorded
        self.steps.discard()
        if recorded:
            self.steps.restart_step()

    def one_step(self) -> None:
        """As anybody writes it."""
        loss = self._model(next(self._batches)).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


class _Batches(torch.utils.data.IterableDataset[torch.Tensor]):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __iter__(self) -> Any:
        batch = torch.randn(self._rows, _WIDTH)
        while True:
            yield batch


class JobSteps:
    """Its steps, recorded in detail, as a whole or not at all; the switch is not measured."""

    def __init__(self, job: Job, recorded: bool, detailed: bool = True) -> None:
        self._job, self._recorded, self._detailed = job, recorded, detailed

    def prepare(self) -> None:
        """As it is to be recorded, and settled."""
        self._job.choice.detailed = self._detailed
        self._job.switch(self._recorded)
        for _ in range(SETTLING):
            self._job.one_step()

    def step(self) -> None:
        """The next step."""
        self._job.one_step()

    def finish(self) -> None:
        """Nothing."""


def _refused(problem: str) -> None:
    raise RuntimeError(problem)
