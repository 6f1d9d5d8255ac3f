"""Registers between a loader of data and its steps (OneFlow's actors, arXiv 2110.15032) here: batches made ahead.

Every fourth batch takes long to make; on the average a batch takes as long as a step. Both are paced, so that a busy
machine changes little. Settings have a run each in every round, in random order, and are simulated with as many
registers.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import _table as table
from benchmarks._ratio import ratio
from engine.config.run_config import RunConfig, parse
from engine.launch.pool import LocalPool
from engine.model.workload import Workload
from engine.session import Session

NAME, KEPT = "systems_batches_ahead", table.RESULTS / "systems_batches_ahead.json"
#: Seconds of a step's products, and of making each batch, in turn.
STEP, MAKING = 0.1, (0.04, 0.04, 0.04, 0.28)
BATCH, STEPS, WARM_UP, ROUNDS = 2, 44, 4, 5
AGAIN = "none, again (A/A)"
KINDS: dict[str, int] = {"none": 0, AGAIN: 0, "1": 1, "2": 2, "4": 4}
#: A simulation is right within this.
WITHIN = 0.15


@dataclass(frozen=True)
class Bursts:
    """Vectors that follow from their number, as from a disk that now and then has to look for them."""

    def training(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """``count`` samples from ``first`` on."""
        time.sleep(MAKING[first // count % len(MAKING)])
        return self.validation(first, count)

    def validation(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """The same, at once."""
        drawn = [np.random.default_rng([7, one]).standard_normal(8) for one in range(first, first + count)]
        inputs = torch.as_tensor(np.stack(drawn), dtype=torch.float32)
        return inputs, inputs.square().mean(dim=1, keepdim=True)


class PacedLinear(nn.Module):
    """Takes as long as a step is to take."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """[samples, 8], as it came."""
        time.sleep(STEP)
        return torch.tanh(self.inner(x))


def bursts() -> Workload:
    """What is trained."""
    last: Callable[[], nn.Module] = lambda: nn.Linear(8, 1)  # noqa: E731
    return Workload(blocks=[PacedLinear], last=last, batches=Bursts(), loss=F.mse_loss)


def config_of(kind: str) -> RunConfig:
    """A kind's."""
    return parse(
        {
            "model": {"workload": f"{__name__}:bursts"},
            "data": {"ahead": KINDS[kind]},
            "batch": {"micro_batch": BATCH, "global_batch": BATCH},
            "train": {"steps": STEPS, "warmup": WARM_UP, "validation_batches": 0},
            "device": "cpu",
        }
    )


def run(rounds: int = ROUNDS, kept_at: Path = KEPT) -> dict[str, Any]:
    """What is missing is measured; what has been is kept after each round."""
    kept = {"rounds": 0, "seconds": {kind: [] for kind in KINDS}, "losses": {}} | table.kept(kept_at)
    with tempfile.TemporaryDirectory() as home, Session(Path(home), LocalPool()) as session:
        while kept["rounds"] < rounds:
            for kind in random.sample(list(KINDS), len(KINDS)):
                outcome, summary = session.execute(config_of(kind), {}, lambda: False)
                assert outcome.good, outcome
                kept["seconds"][kind].append(float(np.mean(summary.step_samples)))
                kept["losses"][kind] = summary.losses
                kept.setdefault("ready", {})[kind] = sum(row.ready for row in summary.batches_ahead)
            kept["rounds"] += 1
            table.keep(kept_at, kept)
    return kept


def simulated(registers: int) -> float:
    """Seconds of a step: a batch is made once the one before it is made and a register is free, a step begins once the
    one before it is through and its batch is there, and then frees the register.
    """
    taken, made, through = list[float](), 0.0, 0.0
    for step in range(STEPS):
        free = through if registers == 0 else taken[step - registers] if step >= registers else 0.0
        made = max(made, free) + MAKING[step % len(MAKING)]
        taken.append(max(through, made))
        through = taken[-1] + STEP
    return (through - taken[WARM_UP - 1] - STEP) / (STEPS - WARM_UP)


HEADER = ["batches ahead", "measured, ms a step", "simulated, ms", "simulated / measured", "its time / with none",
          "batches that were ready", "losses as with none"]  # fmt: skip


def rows(kept: dict[str, Any]) -> list[list[str]]:
    """Of the table."""
    found, plain = [], np.array(kept["seconds"]["none"])
    for kind, registers in KINDS.items():
        seconds, foretold = np.array(kept["seconds"][kind]), simulated(registers)
        found.append(
            [
                kind,
                f"{1e3 * seconds.mean():,.1f}",
                f"{1e3 * foretold:,.1f}",
                f"{foretold / seconds.mean():.3f}",
                ratio(seconds, plain).plain(),
                f"{kept['ready'][kind]} of {STEPS}" if registers else "",
                "to the bit" if kept["losses"][kind] == kept["losses"]["none"] else "no",
            ]
        )
    return found


def bars(kept: dict[str, Any]) -> dict[str, float]:
    """How many kinds are simulated rightly and have the losses of none; how long they take beside it."""
    seconds = {kind: float(np.mean(of)) for kind, of in kept["seconds"].items()}
    return {
        "simulated": sum(abs(simulated(KINDS[kind]) / of - 1) <= WITHIN for kind, of in seconds.items()),
        "exact": sum(of == kept["losses"]["none"] for of in kept["losses"].values()),
        **{kind: seconds["none"] / of for kind, of in seconds.items()},
    }


def title(kept: dict[str, Any]) -> str:
    """Of the table."""
    making = ", ".join(f"{1e3 * one:g}" for one in MAKING)
    return (
        f"Batches made ahead: steps of {1e3 * STEP:g} ms, batches that take {making} ms in turn; {kept['rounds']} "
        f"runs of {STEPS - WARM_UP} steps each"
    )
