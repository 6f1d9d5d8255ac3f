"""Published tables as trials to fit to and to score: configurations, the machine of each row, seconds of a step."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.published import columns as columns_of
from benchmarks.published import llmfoundry, megatron, playbook, vtrain
from tuning.predict.cluster import catalogue
from tuning.predict.fit import calibrate
from tuning.predict.fit.calibrate import TrialMeasurements
from tuning.predict.model import compute
from tuning.predict.model.cases import Cases
from tuning.predict.model.compute import Device
from tuning.predict.model.constants import Constants
from tuning.predict.model.network import Links
from tuning.predict.model.step_time import Machine

DATA = Path(__file__).parent / "data"
#: Rows of published tables count as so many independent ones at the most: those of one layout share what the formulas
#: leave out. Of 12 to 240, errors of left-out groups over all tables are least about here.
EFFECTIVE_ROWS = 25.0
#: Tables that ``--table NAME=CSV`` can take the place of.
FILES: dict[str, Path] = {
    "vtrain_single": vtrain.SINGLE,
    "vtrain_multi": vtrain.MULTI,
    "llmfoundry": llmfoundry.RUNS,
    "ultrascale_playbook_benchmarks": playbook.TRIALS,
    "megatron_2104_table1": DATA / "megatron_2104_table1.csv",
    "megatron_2205_table3_table5": DATA / "megatron_2205_table3_table5.csv",
}
#: The 16-bit gradients that both systems reduce; Megatron's pipeline sends each tp rank's slice.
_MEGATRON = {"reduce_bytes": 2.0, "scattered_boundary": 1.0}
#: What joins llm-foundry's H100 nodes is told nowhere; eight 400 Gb/s cards are taken.
_CLUSTERS = {"a100-40gb": "mosaic-a100-40gb", "a100-80gb": "mosaic-a100", "h100-sxm": "dgx-h100"}


def single(path: Path) -> TrialMeasurements:
    """vTrain's one node, grouped by hidden size."""
    columns = vtrain.single(path)
    return _measured(columns, on("vtrain-a100"), columns["hidden"], {"reduce_bytes": 2.0})


def multi(path: Path) -> TrialMeasurements:
    """vTrain's 64 to 512 devices, grouped by model size; vocabularies are padded as Megatron's are by default."""
    columns = vtrain.multi(path)
    padded = {"vocabulary": np.ceil(columns["vocabulary"] / (128 * columns["tp"])) * 128 * columns["tp"]}
    return _measured(columns, on("vtrain-a100", 64), columns["parameters"], {**_MEGATRON, **padded})


def recomputation(path: Path) -> TrialMeasurements:
    """Tables 3 and 5 of arXiv 2205.05198, grouped by model."""
    columns = megatron.recomputation(path)
    return _measured(columns, on("selene", 64), columns["model"], _MEGATRON)


def fsdp(path: Path, by: str) -> TrialMeasurements:
    """llm-foundry's, grouped by ``accelerator`` or ``model``; values between blocks are fp32 under autocast."""
    columns = llmfoundry.runs(path)
    machines = [_llm(*row) for row in zip(columns["accelerator"], columns["format"], strict=True)]
    values = np.where(columns["reduce_bytes"] > 2, 4.0, 2.0)
    return _measured(columns, stacked(machines), columns[by], {"value_bytes": values})


def on(name: str, nodes: int = 2, number_format: str = "bf16") -> Machine:
    """The only kind of node of a cluster in the catalogue."""
    group = catalogue.cluster(name, nodes).groups[0]
    links = Links(group.inside.bytes_per_second, group.between.bytes_per_second)
    return Machine(compute.device_of(group.accelerator, number_format), links)


def stacked(machines: list[Machine]) -> Machine:
    """A machine for each row, as columns."""
    device = Device(*(np.array(figures) for figures in zip(*(one.device for one in machines), strict=True)))
    return Machine(
        device, Links(*(np.array(rates) for rates in zip(*(one.links for one in machines), strict=True)))
    )


def each(measured: TrialMeasurements) -> list[Machine]:
    """The machine of each row."""
    return [
        Machine(Device(*map(float, device)), Links(*map(float, links)))
        for device, links in zip(
            *(_rows(part, len(measured.seconds)) for part in measured.machine), strict=True
        )
    ]


def joined(one: TrialMeasurements, other: TrialMeasurements) -> TrialMeasurements:
    """Both, one after the other."""
    return TrialMeasurements(
        Cases.join([one.cases, other.cases]),
        stacked([*each(one), *each(other)]),
        np.concatenate([one.seconds, other.seconds]),
        np.concatenate([one.groups.astype(str), other.groups.astype(str)]),
    )


@functools.cache
def a100() -> Constants:
    """Fitted to all of vTrain's rows."""
    return calibrate.fit_constants(
        joined(single(FILES["vtrain_single"]), multi(FILES["vtrain_multi"])), most=EFFECTIVE_ROWS
    )


def plausible(columns: Mapping[str, NDArray[Any]], index: int) -> Cases:
    """A row of Megatron's table 1 with every micro-batch up to 16 and every number of chunks that its layers allow."""
    row = {name: column[index] for name, column in columns.items()}
    share, stages = row["global_batch"] // row["dp"], row["pp"]
    pairs = [
        (batch, chunks)
        for batch in (1, 2, 4, 8, 16)
        for chunks in range(1, row["layers"] // stages + 1 if stages > 1 else 2)
        if share % batch == 0 and row["layers"] % (stages * chunks) == 0
        if chunks == 1 or share // batch % stages == 0
    ]
    batches, chunks = (np.array(values) for values in zip(*pairs, strict=True))
    many = {name: np.full(len(pairs), value) for name, value in row.items()}
    return columns_of.cases(
        many
        | {"micro_batch": batches, "micro_batches": share // batches, "chunks": chunks}
        | {name: np.full(len(pairs), value) for name, value in _MEGATRON.items()}
    )


def _rows(part: Device | Links, count: int) -> list[tuple[float, ...]]:
    return list(zip(*(np.broadcast_to(figure, count).tolist() for figure in part), strict=True))


def _llm(accelerator: str, number_format: str) -> Machine:
    return on(_CLUSTERS[accelerator], 64, number_format)


def _measured(
    columns: Mapping[str, NDArray[Any]],
    machine: Machine,
    groups: NDArray[Any],
    more: Mapping[str, float | NDArray[np.float64]],
) -> TrialMeasurements:
    count = len(columns["layers"])
    given = dict(columns) | {name: np.broadcast_to(value, count) for name, value in more.items()}
    return TrialMeasurements(columns_of.cases(given), machine, columns["iteration_seconds"], groups)
