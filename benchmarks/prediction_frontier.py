"""Frontier's 22B, 175B and 1T (arXiv 2312.12705), predicted by constants of other machines.

    python -m benchmarks.prediction_frontier [--save]

The paper's best layouts could not be read: the layouts are those of the authors' launch scripts, a stand-in. What an
MI250X reaches of its peak is not in any table at hand either: the constants are those of A100s (vTrain's), with the
catalogue's peak, memory and links of a GCD. So nothing here is fitted to Frontier; what is printed beside the paper's
percentages tells how far an A100's software on an MI250X's figures is from them. Weak scaling keeps a replica's batch,
strong scaling the global batch, from the script's GCDs to the abstract's MI250X, two GCDs each.
"""

from __future__ import annotations

import numpy as np

from benchmarks import _published as published
from benchmarks import _table as table
from benchmarks.published import columns as columns_of
from benchmarks.published import papers
from tuning.predict.cluster import catalogue
from tuning.predict.model import step_time
from tuning.predict.model.cases import Array, Cases

HEADER = (
    "model",
    "layout, from the authors' scripts",
    "step, s",
    "of peak, recomputation counted",
    "of peak, without recomputation",
    "paper",
    "slowest terms",
)
SCALING = ("model", "scaling", "GCDs", "predicted", "paper")
PAPER = {"22B": 38.38, "175B": 36.14, "1T": 31.96}
#: Model -> kind -> the abstract's MI250X, as GCDs, and percent.
SCALES = {
    ("175B", "weak"): (2048, 100.0),
    ("1T", "weak"): (6144, 100.0),
    ("175B", "strong"): (2048, 89.0),
    ("1T", "strong"): (6144, 87.0),
}
_SETTINGS = {
    "vocabulary": 51200.0,
    "sequence": 2048.0,
    "positions": 2048.0,
    "flash": 1.0,
    "reduce_bytes": 2.0,
}


def layouts() -> tuple[list[str], Cases]:
    """The three scripts that tell their batch; one for each model."""
    columns = papers.frontier_layouts(published.DATA / "frontier_2312.csv")
    kept = ~np.isnan(columns["global_batch"]) & ~np.isnan(columns["zero_stage"])
    columns = columns_of.take(columns, kept)
    count = int(kept.sum())
    more = {name: np.full(count, value) for name, value in _SETTINGS.items()}
    more["micro_batches"] = columns["global_batch"] / columns["dp"] / columns["micro_batch"]
    return [str(name) for name in columns["model"]], columns_of.cases(columns | more)


def rows(names: list[str], cases: Cases) -> list[list[str]]:
    """A line for each model."""
    found = step_time.step(cases, published.on("frontier", 2), published.a100())
    seconds = found.seconds
    model, whole = (
        flops / (cases.world * seconds * _peak()) for flops in (cases.model_flops, _counted(cases))
    )
    return [
        [
            name,
            f"tp {cases.tp[i]:g}, pp {cases.pp[i]:g}, dp {cases.dp[i]:g}, micro-batch {cases.micro_batch[i]:g}, "
            f"batch {cases.global_batch[i]:g}, ZeRO {cases.zero_stage[i]:g}",
            f"{seconds[i]:.1f}",
            f"{whole[i]:.1%}",
            f"{model[i]:.1%}",
            f"{PAPER[name]:.2f} %",
            ", ".join(f"{term} {share:.0%}" for term, share in found.largest(i, 3)),
        ]
        for i, name in enumerate(names)
    ]


def scaling(names: list[str], cases: Cases) -> list[list[str]]:
    """Throughput per device over that of the script's layout, with more replicas."""
    lines = []
    for (name, kind), (devices, paper) in SCALES.items():
        one = cases.take(np.array([names.index(name)]))
        factor = devices / float(one.world[0])
        turns = one.micro_batches / factor if kind == "strong" else one.micro_batches
        many = one.put(dp=one.dp * factor, micro_batches=np.maximum(turns, 1.0))
        share = _rate(many) / _rate(one)
        lines.append(
            [name, kind, f"{one.world[0]:,.0f} to {devices:,}", f"{float(share[0]):.0%}", f"{paper:.0f} %"]
        )
    return lines


def _rate(cases: Cases) -> Array:
    seconds = step_time.step(cases, published.on("frontier", 2), published.a100()).seconds
    rate: Array = cases.tokens / seconds / cases.world
    return rate


def _counted(cases: Cases) -> Array:
    """FLOPs as Megatron's equation 3 counts them: with the forward that is computed again (arXiv 2104.04473)."""
    return cases.model_flops * 4 / 3


def _peak() -> float:
    return catalogue.accelerator("mi250x-gcd").peak_flops["bf16"]


def report(save: bool) -> None:
    """Print both tables."""
    names, cases = layouts()
    title = "Frontier's models by constants of A100s"
    table.show("prediction_frontier", title, HEADER, rows(names, cases), save)
    title = "Frontier's scaling by constants of A100s"
    table.show("prediction_frontier_scaling", title, SCALING, scaling(names, cases), save)


if __name__ == "__main__":
    report(table.parser(__doc__).parse_args().save)
