"""The engine and public trainers on the same small Llama, each trainer started with the file that ``export`` writes.

Each round has three trainings in random order: the engine's twice, and the trainer's; the first two stand against each
other in the A/A row. A training's number is the median step on its slowest rank, without the first steps. The engine
records itself meanwhile, as it does in any run. Models have equally many parameters, or the benchmark ends. Each
trainer has an environment of its own, made at the first use (``tests/support/trainers``), and takes its own
implementation of the model. On a CPU some of their functions are replaced: ``benchmarks/results/exports.md`` says how
many. Ranks have one thread each; run it on a quiet machine.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
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


def measured(match: Match, steps: int, rounds: int) -> dict[str, np.ndarray]:
    """Median step seconds of each kind, one for each round."""
    shape, pick = shape_of(steps), random.Random(match.name)
    config = config_of(match, shape)
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        print(f"{match.name}: round {number + 1} of {rounds} ...", file=sys.stderr)
        for kind in pick.sample(KINDS, len(KINDS)):
            one = trainer_seconds(match, config, shape) if kind == "trainer" else engine_seconds(config)
            taken[kind].append(one)
    return {kind: np.array(seconds) for kind, seconds in taken.items()}


def rows_of(match: Match, seconds: dict[str, np.ndarray]) -> list[list[str]]:
    """The engine beside the trainer, and beside itself; throughputs are those of the mean of the rounds' medians."""
    tokens = int(BATCH["batch.global_batch"]) * SHAPE.length
    rows = []
    for label, other in ((f"engine / {match.trainer}", "trainer"), ("A/A: engine / engine", "again")):
        ours, theirs = (tokens / seconds[kind].mean() for kind in ("engine", other))
        faster = ratio(seconds[other], seconds["engine"])
        rows.append(
            [match.layout, label, str(len(seconds[other])), f"{ours:,.0f}", f"{theirs:,.0f}", faster.plain()]
        )
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
    given = arguments.parse_args()
    if given.steps <= WARMUP or given.rounds < 1:
        sys.exit(
            f"--steps {given.steps} --rounds {given.rounds}: give more than {WARMUP} steps, and a round or more"
        )
    rows = []
    for match in wanted(given.only):
        rows += rows_of(match, measured(match, given.steps, given.rounds))
    header = ["layout", "row", "rounds", "tokens/s", "tokens/s of the other", "ratio of throughputs"]
    title = (
        f"The engine beside public trainers (2 gloo ranks, a Llama of {parameters_of(SHAPE):,} parameters)"
    )
    table.show("trainers", title, header, rows, given.save)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
