"""Real ranks on this machine: small gloo runs calibrate a prediction of layouts that were held out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import rules
from engine.calibration import fingerprint
from engine.config import RunConfig, parse
from engine.session import Session
from tests.support import calibrations
from tuning.predict import experience, target
from tuning.predict.finished import Finished, finished
from tuning.predict.forecast import forecasts
from tuning.predict.trials import layout

LAYOUTS = ({"dp": 2}, {"tp": 2}, {"pp": 2}, {"cp": 2}, {"dp": 1})
SIZES: tuple[dict[str, Any], ...] = ({"hidden": 128}, {"hidden": 256, "layers": 6})


def configs() -> Iterator[RunConfig]:
    """Ten small runs of one or two ranks."""
    for parallel in LAYOUTS:
        for size in SIZES:
            tree = {
                "model": {"layers": 4, "heads": 4, "kv_heads": 4, "ffn_hidden": 512, **size},
                "data": {"sequence_length": 128},
                "batch": {"micro_batch": 2, "global_batch": 8},
                "parallel": parallel,
                "train": {"steps": 8, "warmup": 3, "validation_batches": 0},
                "device": "cpu",
            }
            config = parse(tree)
            rules.check(config)
            yield config


@pytest.fixture(scope="module")
def own_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Finished]:
    """What they took."""
    home = tmp_path_factory.mktemp("own")
    folders: list[Path] = []
    with Session(home) as session:
        for config in configs():
            session.execute(config, {}, lambda: False, folders.append)
    return finished(folders)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_layout_is_predicted_from_the_others(own_runs: list[Finished]) -> None:
    base = target.measured_here(calibrations.calibration((2,)))
    assert len(own_runs) == len(LAYOUTS) * len(SIZES)
    inside = 0
    for parallel in LAYOUTS:
        name = layout(parse({"parallel": parallel}))
        known = [run for run in own_runs if run.trial and layout(run.trial.config) != name]
        here = experience.learned(base, known, fingerprint.here())
        for run in own_runs:
            if run.trial is None or layout(run.trial.config) != name:
                continue
            found = forecasts([run.trial.config], here)[0]
            seconds, peak = found.step_seconds, run.trial.peak_bytes
            assert peak is not None
            print(
                f"{parallel}: predicted {seconds.median:.3f} s ({seconds.low:.3f} to {seconds.high:.3f}), "
                f"measured {run.trial.seconds:.3f} s; memory {found.memory_bytes.median / 2**20:.0f} MiB "
                f"({found.memory_bytes.low / 2**20:.0f} to {found.memory_bytes.high / 2**20:.0f}), "
                f"measured {peak / 2**20:.0f} MiB"
            )
            inside += seconds.low <= run.trial.seconds <= seconds.high
            assert found.memory_bytes.median == pytest.approx(peak, rel=0.25)
    assert inside >= 7
