"""A configuration played by events on a named cluster: near its closed form, and what only events can tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config.run_config import RunConfig, parse
from engine.run.calibration.host_links import HostLinks
from tests.support.engine import calibrations
from tuning.predict.forecast import forecast
from tuning.predict.placement.link_traffic import volumes_of
from tuning.predict.simulation.simulate import simulate_config, stage_costs
from tuning.predict.target import Target, calibrated_target
from workbench.home.calibrations import target_of

LAYOUTS: dict[str, dict[str, Any]] = {
    "dp8": {"dp": 8},
    "dp4 tp2": {"dp": 4, "tp": 2},
    "dp2 pp4": {"dp": 2, "pp": 4},
    "tp2 pp4": {"tp": 2, "pp": 4},
    "dp8 zero1": {"dp": 8, "zero_stage": 1},
}


def config(parallel: dict[str, Any], **more: Any) -> RunConfig:
    """A model of one billion parameters on eight devices."""
    return parse(
        {
            "model": {"preset": "1b"},
            "data": {"sequence_length": 2048},
            "precision": "bf16",
            "batch": {"micro_batch": 2, "global_batch": 64},
            "parallel": parallel,
        }
        | more
    )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """One node of eight A100."""
    return target_of(tmp_path_factory.mktemp("home"), "selene", 1, 8)


@pytest.mark.parametrize("parallel", LAYOUTS.values(), ids=LAYOUTS)
def test_events_and_closed_form_agree(target: Target, parallel: dict[str, Any]) -> None:
    asked = config(parallel)
    played = simulate_config(asked, target).seconds
    assert played == pytest.approx(forecast(asked, target).step_seconds.median, rel=0.15)


def test_the_last_stage_has_the_head_and_recomputation_its_price(target: Target) -> None:
    plain = stage_costs(config({"pp": 4, "dp": 2}), target)
    again = stage_costs(config({"pp": 4, "dp": 2}, memory={"recompute": "full"}), target)
    assert plain[-1].forward > plain[0].forward == plain[1].forward
    assert again[0].backward == pytest.approx(plain[0].backward + plain[0].forward)


def test_jitter_makes_a_step_longer_and_the_same_seed_the_same_step(target: Target) -> None:
    asked = config({"dp": 2, "pp": 4})
    quiet, *noisy = (
        simulate_config(asked, target, jitter, seed).seconds
        for jitter, seed in ((0.0, 0), (0.2, 7), (0.2, 7))
    )
    assert noisy[0] == noisy[1] != quiet
    assert np.mean([simulate_config(asked, target, 0.2, seed).seconds for seed in range(20)]) > quiet


def test_a_run_that_nobody_ran_is_kept_and_says_so(target: Target, tmp_path: Path) -> None:
    from tuning.predict.simulation.run_folder import write_run
    from workbench.home import runs

    asked = config({"dp": 2, "pp": 4})
    name, summary = write_run(tmp_path, asked, simulate_config(asked, target))
    document = runs.document(runs.load(tmp_path / name))
    assert "simulated" in document["reason"] and document["backend"] == "simulated"
    assert document["step_seconds"]["median"] == pytest.approx(
        simulate_config(asked, target).seconds, rel=1e-3
    )
    assert summary.notes and "no rank ran" in summary.notes[0]


def measured(rate: float) -> HostLinks:
    """Two hosts that reach each other at so many bytes/s."""
    return HostLinks(
        "hosts-x",
        ("one", "two"),
        ((0.0, 1e-5),) * 2,
        ((0.0, rate), (rate, 0.0)),
        (None, None),
        "nccl",
        0.0,
        1.0,
    )


def test_measured_hosts_and_places_of_ranks_are_played(tmp_path: Path) -> None:
    """A hundredth of a rate takes a step longer, and more so where the pipeline goes from host to host three times."""
    target, asked = target_of(tmp_path, "selene", 2, 16), config({"dp": 2, "pp": 8})
    winding = asked.with_values({"parallel.placement": list(range(0, 16, 2)) + list(range(1, 16, 2))})

    def seconds(links: HostLinks | None, one: RunConfig) -> float:
        return simulate_config(
            one, replace(target, cluster=replace(target.cluster, host_links=links))
        ).seconds

    fast, slow = (seconds(measured(rate), asked) for rate in (1e11, 1e9))
    assert fast < slow
    assert fast == pytest.approx(seconds(None, asked), rel=0.2)
    assert seconds(measured(1e9), winding) > slow


def test_links_of_a_lab_and_its_second_cards_are_played() -> None:
    """An all-reduce of two takes its bytes over its card; with data ranks apart it crosses the bridge."""
    lab = {"hosts": 4, "islands": 2, "rate_mbit": 100.0, "between_mbit": 50.0, "inside_mbit": 200.0}
    made = calibrations.calibration((2, 4))
    curves = tuple(replace(one, ranks=4) if one.ranks == 1 else one for one in made.curves)
    here = calibrated_target(replace(made, curves=curves))
    asked = parse(
        {
            "model": {"preset": "tiny"},
            "data": {"sequence_length": 64},
            "batch": {"micro_batch": 1, "global_batch": 8},
            "parallel": {"dp": 2, "pp": 2},
            "overlap": {"bucket_mb": 1e3},
            "lab": lab,
        }
    )
    payload = volumes_of(asked).dp.bytes_

    def seconds(**values: Any) -> float:
        config = asked.with_values({key.replace("__", "."): value for key, value in values.items()})
        return simulate_config(config, here.adapt_to_config(config)).seconds

    def over(mbit: float) -> float:
        return payload / (mbit * 125e3 * 1448 / 1514)

    by_members, one_card, apart = (
        seconds(),
        seconds(network__inside="data"),
        seconds(parallel__placement=[0, 2, 1, 3]),
    )
    assert by_members - seconds(lab={}) > over(200.0)
    assert one_card - by_members == pytest.approx(over(100.0) - over(200.0), rel=0.1)
    # Both stages' gradients share the bridge; messages of pipelines, which stay on islands then, take less.
    assert apart - by_members > 2 * over(50.0) - over(200.0) - over(50.0)
