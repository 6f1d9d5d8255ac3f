"""The engine against loops written with torch alone: same model, data, ranks and processes, step by step in turn.

Each round has four steps in random order, the same on all ranks: the engine's twice, recorded as in training, once
more without recording, and the peer's. The first two stand against each other in the A/A row, made like the others.
A pilot tells how many rounds make the 95 % interval narrower than the bar's margin; they are then measured in a run
of their own, and again with more of them if it is still too wide, whatever it says. Before that both take the same
steps from the same tensors, and a difference in loss or gradient norm ends the benchmark. How ranks are placed and
scheduled, for both alike: see ``_ranks``.

``--picotron FOLDER`` adds rows for a checkout of picotron; there both go without clipping, which it lacks.
torchtitan (0.3.0 and its main branch of August 2026) cannot run on gloo: without an accelerator it takes its device
for "cuda", and its trainer begins with ``torch.cuda.set_device``, which a CPU build of torch does not have.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from benchmarks import _picotron
from benchmarks import _plain as plain
from benchmarks import _table as table
from benchmarks._ranks import Engine, EngineSteps, Silent, Steps, in_turn, on_cores, whole_weights
from benchmarks._ratio import Ratio, Taken, cpu_seconds, ratio, rounds_needed, wall_seconds
from engine.comm.context import RankContext
from engine.config.presets import resolve
from engine.config.run_config import RunConfig, parse
from engine.model.data import open_corpus

KINDS = ("engine", "again", "unrecorded", "peer")
PILOT = 30
LOSS_TOLERANCE = 1e-5
NORM_TOLERANCE = 1e-4
COMPARED_STEPS = 3


class Peer(Protocol):
    """A training loop of somebody else."""

    def step(self, tokens: Tensor) -> tuple[float, float | None]:
        """Train on int64 [sequences, length + 1]; returns the mean loss and the gradient's norm, where it has one."""


@dataclass(frozen=True)
class Match:
    """A layout and its peer. ``most`` is the bar: the engine's seconds over the peer's; without it none is set."""

    name: str
    values: dict[str, Any]
    peer: Callable[[RankContext], Peer]
    most: float | None = None
    margin: float = 0.05
    wall_counts: bool = False


class Result(NamedTuple):
    """What a rank brings home: its steps, and how far the two models were apart before them."""

    taken: list[Taken]
    loss_difference: float
    norm_difference: float


class PeerSteps:
    """Steps of a plain loop on the windows that the engine would give this rank."""

    def __init__(self, rank: RankContext, peer: Peer) -> None:
        self._rank, self._peer, self._number = rank, peer, 0
        self._corpus = open_corpus(rank.config.data, 0)
        self.loss: float = 0.0
        self.norm: float | None = None

    def prepare(self) -> None:
        """Peers are not recorded."""
        self._rank.recorder.stop()

    def step(self) -> None:
        """The peer's next step, its data included."""
        batch, at = self._rank.config.batch.global_batch, self._rank.groups.coordinates.dp
        each = batch // self._rank.layout.dp
        windows = self._corpus.training(self._number * batch + at * each, each)
        self.loss, self.norm = self._peer.step(torch.from_numpy(windows))
        self._number += 1

    def finish(self) -> None:
        """Nothing."""


def ddp(rank: RankContext) -> plain.Loop:
    """A loop with DistributedDataParallel."""
    assert rank.groups.data is not None
    return plain.DataParallelLoop(model_of(rank), recipe_of(rank.config), rank.groups.data)


def fsdp2(rank: RankContext) -> plain.Loop:
    """A loop with fully_shard."""
    assert rank.groups.data is not None
    mesh = DeviceMesh.from_group(rank.groups.data, "cpu")
    return plain.FullyShardedLoop(model_of(rank), recipe_of(rank.config), mesh)


def eager_tp(rank: RankContext) -> plain.Loop:
    """A loop with parallelize_module."""
    assert rank.groups.tp is not None
    mesh = DeviceMesh.from_group(rank.groups.tp.group, "cpu")
    return plain.TensorParallelLoop(model_of(rank), recipe_of(rank.config), mesh)


def picotron(rank: RankContext) -> Peer:
    """Picotron's own step."""
    return _picotron.PicotronLoop(rank)


def model_of(rank: RankContext) -> plain.PlainDecoder:
    """The plain model of a rank's configuration, with the engine's first tensors."""
    config = rank.config
    model = plain.PlainDecoder(plain.Sizes(**asdict(resolve(config.model))), config.data.sequence_length)
    model.load_state_dict(whole_weights(config))
    return model


def recipe_of(config: RunConfig) -> plain.Recipe:
    """The configuration's training section, as a plain loop takes it."""
    train = config.train
    return plain.Recipe(config.batch.micro_batch, train.learning_rate, train.weight_decay, train.clip_norm)


NARROW = {"parallel.tp": 2, "model.hidden": 64, "model.ffn_hidden": 176}
MATCHES = [
    Match("dp=2", {"parallel.dp": 2}, ddp, most=1.03, margin=0.03),
    Match("dp=2 zero=3", {"parallel.dp": 2, "parallel.zero_stage": 3}, fsdp2, most=1.03, margin=0.03),
    Match("tp=2 width 64", NARROW, eager_tp, most=0.5, wall_counts=True),
]
#: Measured only where there is a checkout.
OPTIONAL = [
    Match("dp=2, no clipping", {"parallel.dp": 2, "train.clip_norm": None}, picotron),
    Match("tp=2 width 64, no clipping", NARROW | {"train.clip_norm": None}, picotron),
]


def measure(rank: RankContext, peer_of: Callable[[RankContext], Peer], rounds: int) -> Result:
    """One rank of a match: first both are compared, then they step in turn."""
    engine, peer = Engine(rank), PeerSteps(rank, peer_of(rank))
    loss_difference, norm_difference = difference(engine, peer)
    kinds: dict[str, Steps] = {
        "engine": EngineSteps(engine, recorded=True),
        "again": EngineSteps(engine, recorded=True),
        "unrecorded": EngineSteps(engine, recorded=False),
        "peer": peer,
    }
    return Result(in_turn(kinds, rounds), loss_difference, norm_difference)


def difference(engine: Engine, peer: PeerSteps) -> tuple[float, float]:
    """Largest difference of the losses, and largest relative one of the gradient norms, over the first steps."""
    losses, norms, seen = [0.0], [0.0], Silent()
    for _ in range(COMPARED_STEPS):
        engine.one_step(seen)
        peer.step()
        assert seen.loss is not None
        losses.append(abs(seen.loss - peer.loss))
        norms += [] if peer.norm is None else [abs(seen.norm - peer.norm) / peer.norm]
    return max(losses), max(norms)


def config_of(match: Match) -> RunConfig:
    """A tiny decoder with four micro-batches a rank."""
    return parse({"batch": {"global_batch": 16, "micro_batch": 2}}).with_values(match.values)


def run(match: Match, rounds: int) -> list[list[Taken]]:
    """All ranks' steps of a match; ends the benchmark if the two do not train the same model."""
    results = on_cores(config_of(match), measure, match.peer, rounds)
    for result in results:
        if result.loss_difference > LOSS_TOLERANCE or result.norm_difference > NORM_TOLERANCE:
            sys.exit(f"{match.name}: engine and peer differ, {result[1:]} in loss and gradient norm")
    return [result.taken for result in results]


def rows_of(match: Match, taken: list[list[Taken]]) -> list[list[str]]:
    """A match's rows: recorded, unrecorded, and the engine against itself."""
    cpu, wall, name = cpu_seconds(taken, KINDS), wall_seconds(taken, KINDS), match.peer.__name__
    rows = []
    for label, top, bottom in (
        (f"engine / {name}", "engine", "peer"),
        (f"engine, not recording / {name}", "unrecorded", "peer"),
        ("A/A: engine / engine", "engine", "again"),
    ):
        cells = [match.name, label, str(len(cpu[top]))]
        for seconds, counts in ((cpu, True), (wall, match.wall_counts)):
            found = ratio(seconds[top], seconds[bottom])
            judged = counts and match.most is not None and (top, bottom) == ("engine", "peer")
            cells.append(f"{1e3 * seconds[top].mean():.1f} / {1e3 * seconds[bottom].mean():.1f}")
            cells += [found.plain(), verdict(match, found) if judged else ""]
        rows.append(cells)
    return rows


def verdict(match: Match, found: Ratio) -> str:
    """The bar, and whether it is kept."""
    assert match.most is not None
    return f"at most {match.most}: {found.verdict(match.most)}"


def measured(match: Match, pilot: int, most: int) -> list[list[Taken]]:
    """Steps of a match, as many as its interval takes to be narrow; those of too short a run are thrown away."""
    rounds = max(pilot, needed(match, run(match, pilot)))
    while True:
        rounds = min(rounds, most)
        print(f"{match.name}: {rounds} rounds beside {match.peer.__name__} ...", file=sys.stderr)
        taken = run(match, rounds)
        if rounds == most or max(found.width for found in bounded(match, taken)) < match.margin:
            return taken
        rounds = max(2 * rounds, needed(match, taken))


def needed(match: Match, taken: list[list[Taken]]) -> int:
    """Rounds that make the interval of each ratio with a bar narrower than the margin, by its width in these."""
    rounds = len(cpu_seconds(taken, KINDS)["peer"])
    return max(rounds_needed(found, rounds, match.margin) for found in bounded(match, taken))


def bounded(match: Match, taken: list[list[Taken]]) -> list[Ratio]:
    """The ratios that a bar or a margin is for: CPU seconds, and wall seconds where they count."""
    columns = [cpu_seconds(taken, KINDS)] + [wall_seconds(taken, KINDS)] * match.wall_counts
    return [ratio(column["engine"], column["peer"]) for column in columns]


def main() -> None:
    """Measure each match and print the table."""
    arguments = table.parser(__doc__)
    arguments.add_argument("--pilot", type=int, default=PILOT, help="rounds of the pilot")
    arguments.add_argument("--most", type=int, default=600, help="most rounds of a match")
    arguments.add_argument("--only", default="", help="measure only matches whose names begin so")
    arguments.add_argument("--picotron", metavar="FOLDER", help="a checkout of picotron to measure too")
    given = arguments.parse_args()
    rows = []
    if given.picotron:
        os.environ[_picotron.FOLDER] = given.picotron
    for match in [*MATCHES, *(OPTIONAL if given.picotron else [])]:
        if match.name.startswith(given.only):
            rows += rows_of(match, measured(match, given.pilot, given.most))
    header = ["layout", "row", "rounds", "CPU ms per step, both ranks", "CPU ratio", "bar"]
    header += ["wall ms per step", "wall ratio", "bar"]
    title = "The engine beside loops written with torch alone (2 gloo ranks, tiny decoder)"
    table.show("engine_vs_peers", title, header, rows, given.save)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
    sys.exit(0)
