"""The roofline's numbers, by hand and by the formula that counts a step's FLOPs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config.run_config import RunConfig
from engine.footprint.flops import model_flops_per_step, workload_of
from profilers.model.run_summary import CommunicationRow, RunSummary
from tests.support.engine import calibrations
from workbench.figures.cluster import roofline
from workbench.figures.cluster.roofline import CollectiveRate, Product, RooflineSeries, products_of

SUMMARY = RunSummary(
    "x", {}, 2, "gloo", 1, 1, phases={"forward": 0.1, "backward": 0.3}, hardware_flops_per_step=8e9
)
REDUCE = CommunicationRow(
    "dp", "all_reduce", calls=4, bytes=4e6, seconds=0.02, exposed_seconds=0.01, bus_bandwidth=2e8,
    peak_bandwidth=1e9, expected_seconds=0.005,
)  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"parallel.tp": 2},
        {"parallel.pp": 2, "parallel.dp": 2},
        {"model.preset": "7b", "parallel.tp": 4, "batch.micro_batch": 2},
    ],
)
def test_products_and_attention_are_all_the_flops_of_a_step(values: dict[str, object]) -> None:
    config = RunConfig().with_values(values)
    shape, parallel = roofline.resolve(config.model), config.parallel
    ranks = parallel.dp * parallel.tp * parallel.pp
    forward = sum(one.flops * one.times for one in products_of(config, 1.0, 1.0)) * ranks
    tokens = config.batch.global_batch * config.data.sequence_length
    attention = 4 * tokens * config.data.sequence_length * shape.hidden * shape.layers
    assert 3 * (forward + attention) == pytest.approx(model_flops_per_step(workload_of(config)), rel=1e-9)


def test_the_roof_is_the_lower_of_peak_and_memory() -> None:
    """A product of 2 m n k FLOPs and 4 (m k + k n + m n) bytes in fp32."""
    config = RunConfig().with_values({"batch.micro_batch": 1, "data.sequence_length": 64})
    fast = products_of(config, peak=1e18, bandwidth=1e9)
    logits = next(one for one in fast if one.name == "logits")
    rows, inner, outer = 64, 160, 256
    assert logits.flops == 2 * rows * inner * outer
    assert logits.bytes_ == 4 * (rows * inner + inner * outer + rows * outer)
    assert logits.roof == pytest.approx(logits.flops / logits.bytes_ * 1e9)
    assert all(one.roof == 1e6 for one in products_of(config, peak=1e6, bandwidth=1e9))


def test_what_was_reached_is_of_one_rank_and_its_forward_and_backward() -> None:
    series = RooflineSeries(2e10, 1e10, [Product("a", 40.0, 10.0, 1.0, 2e10)], 4.0, None, [])
    assert series.fraction is None
    reached = roofline._achieved_flops(SUMMARY)
    assert reached == pytest.approx(8e9 / 2 / 0.4)
    assert replace_reached(series, reached).fraction == pytest.approx(1e10 / 2e10)
    assert replace_reached(series, reached)._replace(intensity=0.5).fraction == pytest.approx(1e10 / 5e9)


def replace_reached(series: RooflineSeries, reached: float | None) -> RooflineSeries:
    return series._replace(reached=reached)


def test_a_collective_stands_beside_its_fit_and_its_best() -> None:
    summary = replace(SUMMARY, communication=[REDUCE, replace(REDUCE, operation="send", bus_bandwidth=None)])
    series = roofline.roofline(RunConfig(), summary, None, "not calibrated")
    assert series.collectives == [CollectiveRate("all_reduce · dp", 1e6, 2e8, pytest.approx(8e8), 1e9)]
    assert series.reason == "not calibrated"
    assert "25 % of what the calibration's fit says" in roofline.roofline_note(series)
    names = {trace.name for trace in roofline.draw(series).data}
    assert names == {"collectives, by the fit", "collectives, at best", "collectives, reached"}


def test_peak_and_bandwidth_are_those_of_the_calibration() -> None:
    found = calibrations.calibration((2,))
    series = roofline.roofline(RunConfig(), replace(SUMMARY, world_size=1), found, None)
    assert (series.peak, series.bandwidth) == (pytest.approx(1e11), pytest.approx(2e10))
    told = series.as_dict()
    assert told["reached_flops_per_second"] == pytest.approx(8e9 / 0.4)
    assert len(told["products"]) == 5
    assert {trace.name for trace in roofline.draw(series).data} == {
        "measured roof", "products, where they could be", "forward and backward, reached",
    }  # fmt: skip
    assert "reach 20.0 GFLOP/s" in roofline.roofline_note(series)


def test_more_ranks_than_were_calibrated_have_no_roof_and_it_is_said() -> None:
    series = roofline.roofline(
        RunConfig().with_values({"parallel.dp": 2}), SUMMARY, calibrations.calibration(), None
    )
    assert (series.peak, series.products) == (None, [])
    assert "at most 1 device" in roofline.roofline_note(series)


def test_a_panel_without_numbers_says_so() -> None:
    sent = CollectiveRate("dp", 1e6, 1e8, 2e8, 3e8)
    without = roofline.draw(RooflineSeries(None, None, [], None, None, [sent], "not calibrated"))
    assert [note.text for note in without.layout.annotations] == ["no roof for products"]
    alone = roofline.draw(RooflineSeries(2e10, 1e10, [Product("a", 40.0, 10.0, 1.0, 2e10)], 4.0, 1e9, []))
    assert [note.text for note in alone.layout.annotations] == ["no collective was timed"]
    assert (alone.layout.xaxis.dtick, without.layout.xaxis2.dtick) == ("D2", "D2")
    wide = [sent, sent._replace(bytes_=1e9)]
    assert roofline.draw(RooflineSeries(None, None, [], None, None, wide)).layout.xaxis2.dtick == 1
    left, right = without.layout.annotations[0], alone.layout.annotations[0]
    assert left.x < 0.5 < right.x and left.xref == right.xref == "paper"


def test_what_was_not_measured_stands_in_no_legend() -> None:
    """Without a calibration there is neither a fit nor a best of a collective."""
    reached = CollectiveRate("all_reduce · dp", 1e6, 2e8, None, None)
    with_fit = reached._replace(fitted=3e8)

    def names(row: CollectiveRate) -> list[str]:
        return [trace.name for trace in roofline.draw(RooflineSeries(None, None, [], None, None, [row])).data]

    assert names(reached) == ["collectives, reached"]
    assert names(with_fit) == ["collectives, by the fit", "collectives, reached"]
