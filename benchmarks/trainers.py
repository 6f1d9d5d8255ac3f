"""The engine and public trainers on the same small Llama, each trainer started with the file that ``export`` writes.

Each round has three trainings in random order: the engine's twice, and the trainer's; the first two stand against each
other in the A/A row. A training's number is the median step on its slowest rank, without the first steps. The engine
records itself meanwhile, as it does in any run. Models have equally many parameters, or the benchmark ends. Each
trainer has an environment of its own, made at the first use (``tests/support/trainers``), and takes its own
implementation of the model. On a CPU some of their functions are replaced: ``benchmarks/results/exports.md`` says how
many. Ranks have one thread each; run it on a quiet machine. With ``--save`` each round is kept in
``results/trainers.json`` as it ends, and the same command goes on where it was stopped; the table has all that is kept.
"""

from __future__ import annotations

import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _table as table
from benchmarks._plain import PlainDecoder, Sizes
from benchmarks._ratio import ratio
from engine.config.run_config import RunConfig
from engine.run.outcome import Ending
from engine.session import Session
from tests.support.trainers.small_llama import VARIABLE, Shape
from tests.support.trainers.training import small, trained

KINDS = ("engine", "again", "trainer")
WARMUP = 4
#: Of fewer rounds no interval is told.
LEAST_ROUNDS = 5
SHAPE = Shape(layers=4, hidden=128, heads=8, kv_heads=4, ffn_hidden=256, vocabulary=512, length=128)
BATCH = {"batch.micro_batch": 4, "batch.global_batch": 16, "environment.OMP_NUM_THREADS": 1}
_CPU, _REPLACED = {"ACCELERATE_TORCH_DEVICE": "cpu"}, ("replaced",)
_MEGATRON = {"TORCHDYNAMO_DISABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@dataclass(frozen=True)
class Match:
    """A trainer and a layout; ``words`` and ``variables`` are what its script is given on CPUs."""

    trainer: str
    layout: str
    values: dict[str, Any]
    words: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Both."""
        return f"{self.trainer} {self.layout}"


def _match(trainer: str, layout: str, values: dict[str, Any], *words: str, **variables: str) -> Match:
    return Match(trainer, layout, values, words, tuple(variables.items()))


def _zero(stage: int) -> dict[str, Any]:
    return {"parallel.dp": 2, "parallel.zero_stage": stage}


_TP = {"parallel.dp": 1, "parallel.tp": 2}
MATCHES = [
    _match("hf", "dp 2", _zero(0) | {"device": "cpu"}),
    _match("hf", "ZeRO 3", _zero(3), *_REPLACED, **_CPU),
    _match("accelerate", "dp 2", _zero(0), "4", "2", ACCELERATE_USE_CPU="true"),
    _match("accelerate", "ZeRO 3", _zero(3), "4", "2", *_REPLACED, **_CPU),
    *(_match("deepspeed", f"ZeRO {stage}", _zero(stage)) for stage in (0, 1, 2, 3)),
    _match("megatron", "tp 2", _TP, **_MEGATRON),
    _match("torchtitan", "ZeRO 2", _zero(2)),
    _match("torchtitan", "ZeRO 3", _zero(3)),
    _match("torchtitan", "tp 2", _TP),
]


def shape_of(steps: int) -> Shape:
    """Sizes with a text that is long enough."""
    sequences = steps * int(BATCH["batch.global_batch"])
    return Shape(**asdict(SHAPE) | {"steps": steps, "sequences": sequences})


def config_of(match: Match, shape: Shape) -> RunConfig:
    """What the engine trains, and the trainer's file is written from."""
    sizes = {f"model.{name}": getattr(shape, name)
             for name in ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary")}  # fmt: skip
    length = {"data.sequence_length": shape.length, "train.steps": shape.steps, "train.warmup": WARMUP}
    return small(2).with_values(sizes | length | BATCH | match.values)


def parameters_of(shape: Shape) -> int:
    """Of the decoder."""
    sizes = Sizes(shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn_hidden, shape.vocabulary)
    return sum(one.numel() for one in PlainDecoder(sizes, shape.length).parameters())


def engine_seconds(config: RunConfig) -> float:
    """Of the engine's median step."""
    config = config.with_values({"device": "cpu"})
    with tempfile.TemporaryDirectory() as folder, Session(Path(folder)) as session:
        outcome, summary = session.execute(config, {}, lambda: False)
    if outcome.ending is not Ending.COMPLETED or summary.step_seconds is None:
        sys.exit(f"the engine's run ended as {outcome.ending}: {outcome.reason}")
    return summary.step_seconds.median


def trainer_seconds(match: Match, config: RunConfig, shape: Shape) -> float:
    """Of the trainer's median step on its slowest rank; it has to have trained the model that was meant."""
    with tempfile.TemporaryDirectory() as folder:
        variables = dict(match.variables) | {VARIABLE: json.dumps(asdict(shape))}
        told = trained(match.trainer, config, Path(folder), *match.words, **variables)
    wanted = (2, shape.steps, parameters_of(shape))
    for rank in told:
        found = (rank["world"], rank["steps"], rank["parameters"])
        if found != wanted:
            sys.exit(f"{match.name}: ranks, steps and parameters are {found}, not {wanted}")
    return float(np.median(np.array([rank["seconds"][WARMUP:] for rank in told]).max(axis=0)))


Kept = dict[str, dict[str, Any]]
KEPT = table.RESULTS / "trainers.json"


def one_round(match: Match, steps: int, number: int) -> dict[str, float]:
    """Median step seconds of each kind, in an order of chance."""
    shape = shape_of(steps)
    config = config_of(match, shape)
    taken = {}
    for kind in random.Random(f"{match.name} {number}").sample(KINDS, len(KINDS)):
        trainer = kind == "trainer"
        taken[kind] = trainer_seconds(match, config, shape) if trainer else engine_seconds(config)
    return taken


def measure(
    matches: Sequence[Match], steps: int, rounds: int, kept: Kept, save: bool, minutes: float
) -> None:
    """The rounds that are missing, of all matches in turn; ``kept`` gets each as it ends, and so does the file if it
    is to.
    """
    until = time.monotonic() + 60 * minutes
    for number, match in product(range(rounds), matches):
        mine = kept.get(match.name)
        if mine is None or mine["steps"] != steps:  # rounds of another length are none of these
            mine = kept[match.name] = {"steps": steps, "seconds": {kind: [] for kind in KINDS}}
        if len(mine["seconds"]["engine"]) > number:
            continue
        if time.monotonic() > until:
            return
        print(f"{match.name}: round {number + 1} of {rounds} ...", file=sys.stderr)
        for kind, seconds in one_round(match, steps, number).items():
            mine["seconds"][kind].append(seconds)
        mine["commit"] = table.commit()
        if save:
            table.keep(KEPT, kept)


def rows_of(match: Match, one: dict[str, Any]) -> list[list[str]]:
    """The engine beside the trainer, and beside itself; throughputs are those of the mean of the rounds' medians."""
    tokens = int(BATCH["batch.global_batch"]) * SHAPE.length
    seconds = {kind: np.array(one["seconds"][kind]) for kind in KINDS}
    rows = []
    for label, other in ((f"engine / {match.trainer}", "trainer"), ("A/A: engine / engine", "again")):
        ours, theirs = (tokens / seconds[kind].mean() for kind in ("engine", other))
        faster, rounds = ratio(seconds[other], seconds["engine"]), len(seconds[other])
        told = faster.plain() if rounds >= LEAST_ROUNDS else f"{faster.middle:.3f}"
        rows.append([match.layout, label, str(rounds), f"{ours:,.0f}", f"{theirs:,.0f}", told, one["commit"]])
    return rows


def wanted(only: str) -> Sequence[Match]:
    """Matches whose names begin so."""
    found = [match for match in MATCHES if match.name.startswith(only)]
    if not found:
        sys.exit(f"--only {only}: none begins so; there are {', '.join(match.name for match in MATCHES)}")
    return found


def main() -> None:
    """Measure each match and print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=7, help="rounds of a match")
    arguments.add_argument(
        "--steps", type=int, default=24, help=f"steps of a training, {WARMUP} of them unmeasured"
    )
    arguments.add_argument("--only", default="", help="measure only matches whose names begin so")
    arguments.add_argument("--minutes", type=float, default=math.inf, help="begin no round later than that")
    given = arguments.parse_args()
    if given.steps <= WARMUP or given.rounds < 1:
        sys.exit(
            f"--steps {given.steps} --rounds {given.rounds}: give more than {WARMUP} steps, and a round or more"
        )
    kept: Kept = json.loads(KEPT.read_text("utf-8")) if given.save and KEPT.is_file() else {}
    measure(wanted(given.only), given.steps, given.rounds, kept, given.save, given.minutes)
    rows = [
        row
        for match in MATCHES
        if "commit" in kept.get(match.name, {})
        for row in rows_of(match, kept[match.name])
    ]
    header = [
        *("layout", "row", "rounds", "tokens/s", "tokens/s of the other", "ratio of throughputs", "commit"),
    ]
    title = (
        f"The engine beside public trainers (2 gloo ranks, a Llama of {parameters_of(SHAPE):,} parameters)"
    )
    table.show("trainers", title, header, rows, given.save)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
