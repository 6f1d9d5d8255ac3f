"""What joins hosts: measured in a lab and under torchrun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.config.errors import InputError
from engine.config.sections import Lab
from engine.launch.lab import registry
from engine.launch.measure.calibrate import Progress
from engine.launch.measure.lab_hosts import measure_lab
from engine.run.calibration import host_links
from tests.support.engine.lab import needs_lab

TWO_ISLANDS = Lab(hosts=4, islands=2, rate_mbit=400.0, between_mbit=20.0)


@needs_lab
@pytest.mark.timeout(300)
def test_the_hosts_of_a_lab_are_told_apart_by_what_they_reach() -> None:
    """Rates that it is set up with are the witness; a busy machine may be late to see either end."""
    told = list[Progress]()
    found = measure_lab(TWO_ISLANDS, lambda: False, told.append)
    assert found is not None
    assert found.islands == (0, 0, 1, 1) and found.count == 2
    for one, row in enumerate(found.bytes_per_second):
        for other, rate in enumerate(row):
            if one != other:
                asked = 400.0 if found.islands[one] == found.islands[other] else 20.0
                assert 0.15 * asked < rate * 8 / 1e6 < 2 * asked, (one, other)
    for together in found.island_bytes_per_second:
        assert together is not None
        assert 0.3 * 20.0 < together * 8 / 1e6 < 2 * 20.0, "two hosts share one uplink"
    assert told[0].total == 12 and told[-1].done <= 12
    assert all(not lab.pid or not lab.deserted for lab in registry.list_labs())


@needs_lab
@pytest.mark.timeout(120)
def test_it_can_be_stopped_and_leaves_nothing() -> None:
    before = set(registry.list_labs())
    said = list[Progress]()
    assert measure_lab(TWO_ISLANDS, lambda: len(said) > 1, said.append) is None
    assert set(registry.list_labs()) == before


@pytest.mark.parametrize(
    ("asked", "message"),
    [(Lab(), "there is no lab"), (Lab(hosts=65), "from 2 to 64 hosts")],
)
def test_what_cannot_be_measured_is_refused(asked: Lab, message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure_lab(asked, lambda: False, lambda _: None)


def under_torchrun(ranks: int, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "engine.launch.measure.pairs", "--device", "cpu", *more]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.timeout(250)
def test_torchrun_measures_the_nodes_it_starts(tmp_path: Path) -> None:
    file = tmp_path / "links.json"
    done = under_torchrun(3, "--out", str(file))
    assert done.returncode == 0, done.stderr
    links = host_links.read_links(file)
    assert len(links.hosts) == len(set(links.hosts)) == 3
    assert links.key == host_links.key_of(links.hosts)
    assert all(
        rate > 1e6
        for one, row in enumerate(links.bytes_per_second)
        for to, rate in enumerate(row)
        if to != one
    )
    assert done.stdout.startswith(links.words())


@pytest.mark.timeout(200)
def test_one_process_is_told_how_to_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine.launch.measure.pairs", "--out", str(tmp_path / "links.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "error: ranks=1: must be from 2 to 64: start it with torchrun, one process on each node"
    )
