"""Lines of LSH-MoE, SliceOut and WTA-CRS say what was kept, whichever way it falls; their runs are legal."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import _bucketed as bucketed
from benchmarks import _row_sampling as sampling
from benchmarks import _slices as slices
from benchmarks.literature import lsh_moe, thinned
from engine.config.validation.rules import check


def buckets(more: float, spread: float = 0.0) -> dict[str, Any]:
    """As if what travels in buckets had cost so much of the loss, and one seed more than the next."""
    shares = {bucketed.ALL: 1.0, bucketed.INT8: 0.258}
    loss = {
        f"{kind}, seed {seed}": {
            "bytes": 1e6 * shares.get(kind, 0.1299),
            "sent": None if kind in shares else 0.13,
            "residual": None if kind in shares else 0.5,
            "loss": 2.0 if kind in shares else 2.0 * (1 + more + spread * (-1) ** seed),
        }
        for kind in bucketed.VALUES
        for seed in range(bucketed.SEEDS[kind])
    }
    times = {
        kind: {"seconds": [0.5, 0.6], "said": 100.0, "counted": 100.5} for kind in (*bucketed.VALUES, "again")
    }
    return {"steps": 100, "rounds": 2, "loss": loss, "lab": times}


def cut(seconds: float, loss: float) -> dict[str, Any]:
    """As if a step had taken so much of whole matrices' time, and the loss had come to this at equal seconds."""
    kinds = {slices.WHOLE: (1.0, 2.0), slices.SLICES: (seconds, loss), slices.AGAIN: (1.0, 2.0)}
    return {
        "size": slices.Size()._asdict(),
        "bytes": {kind: {"counted": 75, "formula": 75} for kind in slices.SHARES},
        "times": {width: {kind: [one, one] for kind, (one, _) in kinds.items()} for width in slices.WIDTHS},
        "loss": {f"{kind}, {end}, seed {seed}": kinds[kind][1] for kind in slices.SHARES
                 for end in ("steps", "seconds") for seed in range(slices.SEEDS)},
    }  # fmt: skip


def test_every_run_is_legal() -> None:
    for values in bucketed.VALUES.values():
        check(bucketed.config_of().with_values(values))
    for share in slices.SHARES.values():
        for width in slices.WIDTHS.values():
            check(slices.config_of(train__slice_keep=share).with_values(width))


@pytest.mark.parametrize(
    ("more", "verdict"), [(0.005, "keeps its bar: lsh; lsh, no residual; lsh_int8"), (0.05, "int8 wins")]
)
def test_buckets_keep_their_bar_only_where_the_loss_stays(more: float, verdict: str) -> None:
    line = lsh_moe.line(buckets(more))
    assert verdict in line[-1]
    assert f"{more:+.1%}" in line[4]
    assert line[2] == "within 0.1% of the rate"
    table = bucketed.rows(buckets(more))
    assert [len(row) for row in table] == [len(bucketed.HEADER)] * (len(bucketed.VALUES) + 1)


def test_a_loss_whose_interval_holds_the_bar_is_not_told() -> None:
    line = lsh_moe.line(buckets(0.005, spread=0.02))
    assert line[-1].startswith("not told from so few seeds, so int8 wins: lsh; lsh, no residual; lsh_int8")
    assert bucketed.keeps(buckets(0.005, spread=0.001), bucketed.BOTH_ALONE)
    assert bucketed.keeps(buckets(0.05, spread=0.001), bucketed.BOTH_ALONE) is False


@pytest.mark.parametrize(
    ("seconds", "loss", "verdict"),
    [
        (0.8, 1.9, "keeps its bars"),
        (0.95, 1.9, "its bar of time"),
        (0.8, 2.1, "its bar of loss at equal seconds"),
    ],
)
def test_slices_keep_their_bars_only_where_time_and_loss_fall(
    seconds: float, loss: float, verdict: str
) -> None:
    line = thinned.slice_line(cut(seconds, loss))
    assert verdict in line[-1]
    assert [len(row) for row in slices.rows(cut(seconds, loss))] == [len(slices.HEADER)] * 3


@pytest.mark.parametrize(("lost", "verdict"), [(0.01, "keeps its bars"), (0.03, "its bar of loss")])
def test_sampled_gradients_keep_their_bar_only_where_the_loss_stays(lost: float, verdict: str) -> None:
    kinds = {"plain": 1.0, "plain, each once": 0.8, "norms of inputs": 1.0, "remembered": 0.7, "ideal": 0.5}
    kept: dict[str, Any] = {
        "scatter": {"0 down": kinds},
        "bytes": {
            kind: {"counted": size, "formula": size}
            for kind, size in zip(sampling.SHARES, (9, 6, 5, 36, 24), strict=True)
        },
    }
    assert thinned.sampling_line(kept)[-1] == "not measured yet"
    kept["loss"] = {f"{kind}, seed {seed}": {"loss": 2.0 * (1 + lost * (kind in sampling.BESIDE))}
                    for kind in sampling.SHARES for seed in range(sampling.SEEDS)}  # fmt: skip
    assert verdict in thinned.sampling_line(kept)[-1]
